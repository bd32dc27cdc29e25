"""contents.json in a run's folder: digests of the records that the run was trained on.

In other data names say little: "sub-01" is another person there, and a copy under another name is the same scan.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from runner_core.base.errors import BadInput
from runner_core.base.text import counted
from runner_core.base.writing import replace_json
from runner_core.contract.records import AnyRecord
from runner_core.data.cache.identity import Identities
from runner_core.data.duplicates import known_digests
from runner_core.training.data import SavedSplit

CONTENTS_FILE = "contents.json"


def save_contents(run: Path, index: Identities, records: Sequence[AnyRecord], training: Sequence[int]) -> None:
    """Write digests of the training records' main files at the run's first start, as far as the cache knows them."""
    path = run / CONTENTS_FILE
    if path.exists():
        return
    trained = [records[n] for n in training]
    found = {r.key: digest for r, digest in zip(trained, known_digests(index, trained), strict=True) if digest}
    try:
        replace_json(path, {"train": found})
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror or error}") from error


def read_contents(run: Path) -> dict[str, str]:
    """Return record key → digest of the training records; empty if the run does not record them."""
    path = run / CONTENTS_FILE
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["train"]
        if isinstance(found, dict) and all(isinstance(digest, str) for digest in found.values()):
            return found
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    raise BadInput(f"{path} is damaged; remove it, and training records are recognised by their names")


@dataclass
class Seen:
    """The records to score that were trained on, and how this is known."""

    keys: frozenset[str]
    groups: frozenset[str]
    notes: list[str] = field(default_factory=list)

    def __call__(self, record: AnyRecord) -> bool:
        """Return whether the record, or another of its group, was trained on."""
        return record.key in self.keys or record.group in self.groups


def seen(
    sides: SavedSplit | None,
    contents: Mapping[str, str],
    records: Sequence[AnyRecord],
    digests: Sequence[str | None],
    own: bool,
) -> Seen:
    """Find the records that were trained on, among all `records` of the data.

    Compares by content if both contents are known, else by name. With `own` these are the data that the run was trained
    on; there the same name means the same record, or one of its group.
    """
    names, trained = frozenset((sides or {}).get("train", ())), {digest: key for key, digest in contents.items()}
    named = [r for r in records if r.key in names or r.group in names]
    same = [r for r, digest in zip(records, digests, strict=True) if digest in trained]
    unknown = {r.key for r, digest in zip(records, digests, strict=True) if digest is None or not contents}
    unknown |= {r.key for r in named if r.key in names and r.key not in contents}
    by_name = named if own else [r for r in named if r.key in unknown]
    keys = frozenset(r.key for r in (*same, *by_name))
    groups = frozenset(r.group for r in same) | frozenset(r.group for r in by_name)
    return Seen(keys, groups, _notes(named, same, by_name, keys, names))


def _notes(
    named: Sequence[AnyRecord],
    same: Sequence[AnyRecord],
    by_name: Sequence[AnyRecord],
    keys: frozenset[str],
    names: frozenset[str],
) -> list[str]:
    notes = []
    if copies := [r.key for r in same if r.key not in names and r.group not in names]:
        shown = ", ".join(copies[:3]) + ", …" * (len(copies) > 3)
        notes.append(
            f"scans that were trained on have other names in this data: {counted(len(copies), 'record')} ({shown})"
        )
    if others := [r.key for r in named if r.key not in keys]:
        notes.append(
            "names of training records or of their groups stand for other contents in this data: "
            f"{counted(len(others), 'record')}, not counted as trained on"
        )
    if by_name and not same:
        notes.append("training records are recognised by their names, because their contents are not known")
    return notes
