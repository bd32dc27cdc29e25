"""The split that a run was trained with: split.yaml in its folder, in the format that `data.split` takes.

A split computed anew would call training records "validation" as soon as the folder has other records than then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import yaml

from runner_core._errors import BadInput
from runner_core.project import AnyRecord
from runner_core.runfolder import replace_text
from runner_core.splits import read_lists

SPLIT_FILE = "split.yaml"

Sides = Mapping[str, Sequence[str]]
"""Side → groups and record keys."""


def save_sides(run: Path, records: Sequence[AnyRecord], splits: Mapping[str, Sequence[int]]) -> None:
    """Write split.yaml at the run's first start; a run that goes on keeps its own."""
    path = run / SPLIT_FILE
    if path.exists():
        return
    sides = {}
    for side, numbers in splits.items():
        of_side = [records[n] for n in numbers]
        sides[side] = sorted({r.group for r in of_side} | {r.key for r in of_side})
    try:
        replace_text(path, "# groups and records of each side, when training began\n" + yaml.safe_dump(sides))
    except OSError as error:
        raise BadInput(f"{path}: cannot be written: {error.strerror or error}") from error


def read_sides(run: Path) -> Sides | None:
    """The sides as they were; None where the run does not say."""
    path = run / SPLIT_FILE
    return read_lists(path) if path.exists() else None


def trained_on(sides: Sides | None) -> Callable[[AnyRecord], bool]:
    """Was a record, or another of its group, trained on? By name; of none, where nothing is known."""
    names = frozenset((sides or {}).get("train", ()))
    return lambda record: record.key in names or record.group in names
