"""The second stage: a network that also sees what an earlier network, the first stage, made of the volume.

`runner vesuvius first-stage` stores the first stage's probabilities, each by runs that were not trained on the volume:
predictions of training volumes look better than those of new ones, and a second stage would learn to trust them.

    KEY_probability.tif   0 to 255 for 0 to 1
    first_stage.json      the runs, seen from this folder, and the file of each volume

Volumes are known by their content: they may be moved, and others may have their names. The folder may be moved with its
runs.
"""

from __future__ import annotations

import json
import os
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import runner_core
from runner_core import (
    Array,
    BadInput,
    Infer,
    Record,
    Run,
    counted,
    first_few,
    glance,
    progress,
    refuse_full_folder,
    replace_json,
    shape_text,
    whole_file,
)

from runner_vesuvius import files, volumes
from runner_vesuvius.outputs import PROBABILITY

FIRST = "first"
"""Role of the file, and name of the array, of the first stage's probabilities."""
TABLE = "first_stage.json"
_UNFINISHED = "first_stage.unfinished.json"
"""The table while volumes are missing: it takes its name at the end, so that no training uses a part of them."""
_HOW = "`runner vesuvius first-stage --run RUN --data DIR --out FOLDER` writes them"


def first_stage(parser: ArgumentParser, words: Sequence[str]) -> int:
    """Store a first stage's probabilities of labelled volumes, each by runs that were not trained on it."""
    parser.add_argument(
        "--run", type=Path, nargs="+", required=True, metavar="RUN",
        help="runs of the first stage: a volume is predicted by those that were not trained on it, so the runs of a "
        "cross-validation predict every volume",
    )  # fmt: skip
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="volumes with labels, as for `train`")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR",
        help="new folder for data.first_stage; if it was killed, the same line goes on",
    )  # fmt: skip
    options = parser.parse_args(words)
    runs = [_open(path) for path in options.run]
    records = files.find_records(options.data)
    unseen = {record.key: [run for run in runs if not _trained_on(run, record)] for record in records}
    if leaked := [key for key, free in unseen.items() if not free]:
        raise BadInput(
            f"--run: every run was trained on {first_few(leaked)} or their scrolls, and would predict them better than "
            "new volumes. Add runs that were not (those of `runner vesuvius crossval` suffice), or name other volumes"
        )
    table = _begun(options.out, runs)
    done = {(key, own["content"]) for key, own in table["volumes"].items()}
    left = [record for record in records if (record.key, glance(record.files["image"])) not in done]
    with progress("volumes", len(left), lambda text: print(text, flush=True)) as advance:
        for record in left:
            name = f"{record.key.replace('/', '_')}{PROBABILITY}.tif"
            with whole_file(options.out / name) as path:
                volumes.write_tif(path, _mean(unseen[record.key], record.files["image"]))
            table["volumes"][record.key] = {"file": name, "content": glance(record.files["image"])}
            replace_json(options.out / _UNFINISHED, table)
            print(f"{name}: by {counted(len(unseen[record.key]), 'run')}", flush=True)
            advance()
    replace_json(options.out / TABLE, table)
    (options.out / _UNFINISHED).unlink()
    print(f"train the second stage with --data.first-stage {options.out}")
    return 0


def _begun(folder: Path, runs: Sequence[Run]) -> dict[str, Any]:
    """Return the table of the volumes that are done, if the same runs began this folder, else an empty one."""
    names = [Path(os.path.relpath(run.path.resolve(), folder.resolve())).as_posix() for run in runs]
    if (folder / _UNFINISHED).is_file():
        table = _table(folder, _UNFINISHED)
        if table["runs"] != names:
            raise BadInput(
                f"--out {folder} was begun with other runs ({first_few(table['runs'])}); name another folder"
            )
        print(f"goes on with {folder}: {counted(len(table['volumes']), 'volume')} of it are there", flush=True)
        return table
    refuse_full_folder(folder, "name another --out")
    table = {"runs": names, "volumes": {}}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        replace_json(folder / _UNFINISHED, table)
    except OSError as error:
        raise BadInput(f"--out {folder} cannot be written: {error.strerror}") from error
    return table


def with_first(records: Sequence[Record], folder: Path) -> list[Record]:
    """Return records with the file of their first stage, where `folder` has one of the same content."""
    by_content = {own["content"]: own for own in _table(folder)["volumes"].values()}
    found = []
    for record in records:
        own = by_content.get(glance(record.files["image"]))
        files_now = record.files if own is None else {**record.files, FIRST: folder / own["file"]}
        found.append(Record(record.key, record.group, files_now, record.split, values=record.values))
    return found


def probabilities(record: Record, folder: Path, shape: tuple[int, ...]) -> Array:
    """Return the first stage's probabilities of a volume (D, H, W) uint8, stored ones or those of its runs now.

    Raises BadInput for a labelled volume without stored ones: nothing would keep its own training apart.
    """
    if FIRST in record.files:
        path = record.files[FIRST]
        found = volumes.read_image(path)
        if found.shape != shape:
            raise BadInput(f"{path}: {shape_text(found.shape)} voxels, its volume has {shape_text(shape)}: {_HOW} anew")
        return found
    if "label" in record.files:
        raise BadInput(f"{folder}: has no probabilities of {record.files['image']}: {_HOW}")
    runs = _runs(folder)
    return _mean([run for run in runs if not _trained_on(run, record)] or runs, record.files["image"])


class Paired:
    """Image and first stage as one volume of uint16, so that windows of both are cut at once."""

    def __init__(self, image: Any, first: Any) -> None:
        self._image, self._first, self.shape = image, first, image.shape

    def __getitem__(self, region: Any) -> Array:
        return np.asarray(self._image[region]) | np.asarray(self._first[region]).astype(np.uint16) << 8


def unpaired(infer: Infer) -> Infer:
    """Return `infer` for windows of `Paired` volumes."""

    def run(arrays: Mapping[str, Array]) -> dict[str, Array]:
        both = arrays["image"]
        return infer({**arrays, "image": both.astype(np.uint8), FIRST: (both >> 8).astype(np.uint8)})

    return run


def _mean(runs: Sequence[Run], image: Path) -> Array:
    found = [run.predict(image).prediction.probability for run in runs]
    if len(found) == 1:
        return np.asarray(found[0])
    return np.rint(sum(each.astype(np.float32) for each in found) / len(found)).astype(np.uint8)


def _open(path: Path) -> Run:
    found = runner_core.open(path, "vesuvius")
    if found.settings.get("data.first_stage"):
        raise BadInput(f"{path}: is a second stage itself; name runs of the first")
    return found


def _trained_on(run: Run, record: Record) -> bool:
    return not run.trained_on.isdisjoint((record.key, record.group))


@lru_cache(maxsize=2)
def _runs(folder: Path) -> list[Run]:
    found = []
    for place in _table(folder)["runs"]:
        path = Path(os.path.normpath(folder.resolve() / place))  # tables of earlier versions have absolute paths
        if not path.exists():
            raise BadInput(
                f"{folder / TABLE}: its run {path} is gone, and is needed for volumes without stored probabilities. "
                "Move the folder and its runs together"
            )
        found.append(_open(path))
    return found


def _table(folder: Path, name: str = TABLE) -> dict[str, Any]:
    path = folder / name
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(found["runs"], list) and all(own["file"] and own["content"] for own in found["volumes"].values()):
            return dict(found)
    except OSError as error:
        raise BadInput(f"data.first_stage: {path} cannot be read ({error.strerror}): {_HOW}") from error
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    raise BadInput(f"data.first_stage: {path} is damaged: {_HOW} anew")
