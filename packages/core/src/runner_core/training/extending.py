"""Go on with a finished run of schedule wsd: more epochs, from before its learning rate fell."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import yaml

from runner_core.base.errors import BadInput
from runner_core.base.writing import replace_text
from runner_core.config import TrainConfig
from runner_core.engines.schedule import decay_begin
from runner_core.output.runfolder import RunFolder
from runner_core.training.cadence import Cadence
from runner_core.training.checkpoints import BEST, Checkpoints, Manifest


def newest(
    checkpoints: Checkpoints, run: RunFolder, train: TrainConfig, cadence: Cadence, say: Callable[[str], None]
) -> tuple[Path, Manifest] | None:
    """Return the checkpoint that a run resumes from: the newest, or the one before the decay that more epochs move.

    In the latter case the run with its decay is kept in a folder of its own. Raises BadInput if no checkpoint from
    before the decay is left.
    """
    found = checkpoints.latest()
    if found is None or train.schedule != "wsd":
        return found
    length = checkpoints.load(found[0]).values.get("length", {})
    epochs = int(length.get("epochs", cadence.epochs))
    if epochs >= cadence.epochs or length.get("steps_per_epoch") != cadence.steps_per_epoch:
        return found
    before = decay_begin(train, epochs * cadence.steps_per_epoch)
    if found[1].step <= before:
        return found
    earlier = checkpoints.latest(until=before)
    if earlier is None:
        raise BadInput(
            f"{run.path} has no checkpoint from before its learning rate fell (step {before}), so no epochs can be "
            "added: start a new run from its weights with --from"
        )
    kept = _set_apart(run, epochs, earlier[1].step)
    say(
        f"the learning rate of {epochs} epochs fell after step {before}: going on from before, at step "
        f"{earlier[1].step}. The run of {epochs} epochs is kept in {kept}"
    )
    return earlier


def _set_apart(run: RunFolder, epochs: int, step: int) -> Path:
    """Move the checkpoints after `step` into a run folder of their own, with the run's files as they are.

    A kill in between leaves checkpoints in one of the two folders, and the next start moves the others.
    """
    kept = run.path / f"epochs-{epochs}"
    try:
        (kept / "checkpoints").mkdir(parents=True, exist_ok=True)
        for file in run.path.iterdir():
            if file.is_file() and not file.name.startswith(".") and not (kept / file.name).exists():
                shutil.copy2(file, kept)
        config = yaml.safe_load((kept / "config.yaml").read_text(encoding="utf-8"))
        config["train"]["epochs"] = epochs  # the run's own says the new number already
        replace_text(kept / "config.yaml", yaml.safe_dump(config, sort_keys=False))
        _copy_best(run.checkpoints, kept / "checkpoints", step)
        for later in (path for path in run.checkpoints.glob("step-*") if int(path.name.rpartition("-")[2]) > step):
            os.rename(later, kept / "checkpoints" / later.name)
    except OSError as error:
        raise BadInput(f"{kept} cannot be written: {error.strerror or error}") from error
    return kept


def _copy_best(source: Path, target: Path, step: int) -> None:
    """Give the set-apart run its best checkpoint: a copy if the run that goes on keeps it too."""
    best = Checkpoints.best_step_in(source)
    if best is None or (target / BEST).exists():
        return
    folder = f"step-{best:08d}"
    if best <= step and (source / folder).is_dir():
        shutil.copytree(source / folder, target / folder, dirs_exist_ok=True)
    shutil.copy2(source / BEST, target)
