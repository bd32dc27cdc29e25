"""The split that a run was trained with: split.yaml in its folder, in the format that `data.split` takes.

A split computed anew would call training records "validation" as soon as the folder has other records than then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import yaml

from runner_core.base.errors import BadInput
from runner_core.base.writing import replace_text
from runner_core.contract.records import AnyRecord
from runner_core.data.splits import SPLITS, read_lists

SPLIT_FILE = "split.yaml"

SavedSplit = Mapping[str, Sequence[str]]
"""Split name → groups and record keys."""


def save_split(run: Path, records: Sequence[AnyRecord], splits: Mapping[str, Sequence[int]]) -> None:
    """Write split.yaml at the run's first start; a resumed run keeps its own."""
    path = run / SPLIT_FILE
    if path.exists():
        return
    names = {}
    for split, numbers in splits.items():
        chosen = [records[n] for n in numbers]
        names[split] = sorted({r.group for r in chosen} | {r.key for r in chosen})
    try:
        replace_text(path, "# groups and records of each split, when training began\n" + yaml.safe_dump(names))
    except OSError as error:
        raise BadInput(f"{path}: cannot be written: {error.strerror or error}") from error


def read_split(run: Path) -> SavedSplit | None:
    """Return the split of the run, or None if it has no split.yaml."""
    path = run / SPLIT_FILE
    return read_lists(path) if path.exists() else None


def kept_split(run: Path, records: Sequence[AnyRecord]) -> dict[str, list[int]] | None:
    """Return the split that a run was started with, as ascending numbers of `records`, or None if it is unknown.

    A resumed run keeps it, whatever the rule of `data.split` would give now. New records belong to no split.
    """
    saved = read_split(run)
    if saved is None:
        return None
    names = {split: frozenset(listed) for split, listed in saved.items()}
    return {
        split: [n for n, r in enumerate(records) if r.key in found and r.group in found]
        for split, found in ((split, names.get(split, frozenset())) for split in SPLITS)
    }


def trained_on(saved: SavedSplit | None) -> Callable[[AnyRecord], bool]:
    """Return a function that tells by name if training used a record or another of its group.

    It returns False for every record if the split is unknown.
    """
    names = frozenset((saved or {}).get("train", ()))
    return lambda record: record.key in names or record.group in names
