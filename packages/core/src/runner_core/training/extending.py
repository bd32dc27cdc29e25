"""Go on with a finished run of schedule wsd: more epochs, from before its learning rate fell."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import yaml

from runner_core.base.errors import BadInput
from runner_core.base.writing import replace_text, whole_folder
from runner_core.contract.project import Project
from runner_core.engines.schedule import decay_begin
from runner_core.output.runfolder import RunFolder, free_path
from runner_core.training.cadence import Cadence
from runner_core.training.checkpoints import BEST, MANIFEST, Checkpoints, Manifest


class Newest(NamedTuple):
    """The checkpoint that a run resumes from; `epochs` is the length of the run to set apart first, if there is one."""

    path: Path
    manifest: Manifest
    epochs: int | None = None


def newest(checkpoints: Checkpoints, run: RunFolder, project: Project, cadence: Cadence) -> Newest | None:
    """Return the checkpoint that a run resumes from: the newest, or the one before the decay that more epochs move.

    Nothing is written. Raises BadInput if no checkpoint from before the decay is left.
    """
    found, train = checkpoints.latest(), project.config.train
    if found is None:
        return None
    if train.schedule != "wsd" or project.learning().schedule is not None:
        return Newest(*found)
    length = checkpoints.load(found[0]).values.get("length", {})
    epochs = int(length.get("epochs", cadence.epochs))
    if epochs >= cadence.epochs or length.get("steps_per_epoch") != cadence.steps_per_epoch:
        return Newest(*found)
    before = decay_begin(train, epochs * cadence.steps_per_epoch)
    if found[1].step <= before:
        return Newest(*found)
    earlier = checkpoints.latest(until=before)
    if earlier is None:
        raise BadInput(
            f"{run.path} has no checkpoint from before its learning rate fell (step {before}), so no epochs can be "
            "added: start a new run from its weights with --from"
        )
    return Newest(*earlier, epochs)


def set_apart(checkpoints: Checkpoints, run: RunFolder, epochs: int, step: int) -> Path:
    """Move what came after `step` into a run folder of its own, with copies of the run's files; return that folder.

    It is written whole before anything is removed here. After a kill in between, the next start removes the rest.
    """
    later = checkpoints.after(step)
    kept = run.path / f"epochs-{epochs}"
    try:
        for left in run.path.glob(".epochs-*"):  # a kill came while it was being written
            shutil.rmtree(left)
        whole = next((folder for folder in run.path.glob(f"{kept.name}*") if _holds(folder, later)), None)
        kept = whole or free_path(kept)
        if whole is None:
            with whole_folder(kept) as folder:
                _copy(checkpoints, run, folder, later)
                _name_epochs(folder / run.config_file.name, epochs)
        for picture in run.figures.rglob("*.png"):
            if not _drawn_until(picture, step):
                picture.unlink()
        for scores in run.path.glob("scores*"):  # of a network that is not here any more
            scores.unlink()
        for path in later.values():
            checkpoints.remove(path)
    except OSError as error:
        raise BadInput(f"{kept} cannot be written: {error.strerror or error}") from error
    return kept


def _holds(kept: Path, later: Mapping[str, Path]) -> bool:
    """Return whether `kept` has all these checkpoints already."""

    def manifest(checkpoint: Path) -> bytes | None:
        file = checkpoint / MANIFEST
        return file.read_bytes() if file.is_file() else None

    return all(manifest(kept / "checkpoints" / n) == manifest(path) for n, path in later.items())


def _copy(checkpoints: Checkpoints, run: RunFolder, folder: Path, later: Mapping[str, Path]) -> None:
    """Copy the run's files, figures, later checkpoints and best checkpoint into `folder`."""
    for file in run.path.iterdir():
        if file.is_file() and not file.name.startswith("."):
            shutil.copy2(file, folder)
    if run.figures.is_dir():
        shutil.copytree(run.figures, folder / run.figures.name)
    best = checkpoints.best_step_in(run.checkpoints)
    chosen = dict(later)
    if best is not None and checkpoints.of(best).is_dir():
        chosen[checkpoints.of(best).name] = checkpoints.of(best)
    for name, path in chosen.items():
        shutil.copytree(path, folder / "checkpoints" / name, copy_function=_link)
    if best is not None:
        shutil.copy2(run.checkpoints / BEST, folder / "checkpoints")


def _link(source: str, target: str) -> None:
    """Give a file a second name, so that it needs no more space; copy it where the file system has no such links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _name_epochs(config_file: Path, epochs: int) -> None:
    """Write the number of epochs into config.yaml, where the longer run's number is already."""
    config = yaml.safe_load(config_file.read_text(encoding="utf-8"))
    config["train"]["epochs"] = epochs
    replace_text(config_file, yaml.safe_dump(config, sort_keys=False))


def _drawn_until(picture: Path, step: int) -> bool:
    """Return whether the picture is a snapshot of a step up to `step`, and none of the finished run's results."""
    drawn = re.search(r"-(\d{8,})$", picture.stem)
    return drawn is not None and int(drawn[1]) <= step
