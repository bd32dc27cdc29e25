"""The records and their split, as files that all processes of a machine map into memory.

The first process lists the data and writes them. The others are told where, and which cache it opened, and list
nothing. The files are plain .npy columns: rows of records are compressed there, which columns of Arrow that are mapped
cannot be.
"""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from runner_core.contract import CachePlan
from runner_core.contract.records import AnyRecord
from runner_core.contract.setup import Data
from runner_core.contract.values import Json
from runner_core.data.cache.prepared import Opened
from runner_core.data.cache.storage import PreparedStore
from runner_core.data.columns import Numbers
from runner_core.data.table import RecordTable, compact, open_table

FOLDER = ".manifest"
"""Its name in the run folder; it is there while the run is trained."""
_VALIDATED = "validated"


@dataclass
class Manifest:
    """Records, the numbers of those of each split and of those that validations use, and each split's groups."""

    records: Sequence[AnyRecord]
    splits: Mapping[str, Sequence[int]]
    validated: Sequence[int]
    groups: Mapping[str, int]
    """Number of groups of each split."""
    opened: Opened | None = None
    """The cache of the records that the first process has opened; None if it is in no folder."""

    def mapped(self, folder: Path) -> Manifest:
        """Return the same, mapped from files below `folder` if the records are many; else, or on a full disk, this one.

        They lie in a folder with a name of their own, so that no process reads those of an earlier start. Records that
        were listed as objects are around as objects too until `release`.
        """
        table = compact(self.records)
        if not isinstance(table, RecordTable):
            return self
        try:
            remove_manifest(folder)
            own = folder / os.urandom(8).hex()
            own.mkdir(parents=True)
            table.save(own)
            for name, numbers in (*self.splits.items(), (_VALIDATED, self.validated)):
                Numbers(numbers).save(own, name)
            found = _read(own, table.kind, self.groups)
        except (OSError, ValueError, ImportError):  # it only saves memory
            remove_manifest(folder)
            return self
        assert isinstance(found.records, RecordTable)
        found.records.marks = table.marks
        if table is not self.records:
            found.records.objects = self.records
        return found


def manifest_place(data: Data) -> Json:
    """Return where other processes find the manifest of the data; None if it is in this process's memory."""
    if not isinstance(data.records, RecordTable) or data.records.folder is None:
        return None
    return [str(data.records.folder), data.records.kind, dict(data.groups), _opened(data)]


def read_manifest(place: Json) -> Manifest | None:
    """Return the manifest at a `manifest_place`; None if there is none, or if this machine does not see its files."""
    if place is None:
        return None
    try:
        folder, kind, groups, opened = _checked(place)
        return replace(_read(folder, kind, groups), opened=opened)
    except (OSError, ValueError, ImportError):
        return None


def release(records: Sequence[AnyRecord]) -> None:
    """Drop the objects and the marks of which a mapped table still knows, and give their memory back."""
    if isinstance(records, RecordTable) and (records.objects, records.marks) != (None, None):
        records.objects = records.marks = None
        with suppress(AttributeError, OSError):  # glibc keeps freed memory otherwise
            ctypes.CDLL(None).malloc_trim(0)


def remove_manifest(folder: Path) -> None:
    """Remove the files, or what a killed process left of them; processes that mapped them are not disturbed."""
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def removed_at_the_end(folder: Path, alone: bool) -> Iterator[None]:
    """Remove a manifest after the with-block.

    After an error it stays if the process is not `alone`: on a network disk others may read it until they end too. The
    next start replaces it.
    """
    try:
        yield
    except BaseException:
        if alone:
            remove_manifest(folder)
        raise
    remove_manifest(folder)


def _opened(data: Data) -> Json:
    store, plan = data.store, data.plan
    if not isinstance(store, PreparedStore) or store.folder is None or plan is None:
        return None
    found = {**asdict(plan), "folder": None if plan.folder is None else str(plan.folder), "notes": list(plan.notes)}
    return [str(store.folder), store.identity, found]


def _checked(place: Any) -> tuple[Path, str, dict[str, int], Opened | None]:
    folder, kind, groups, opened = place
    if opened is not None:
        at, identity, plan = opened
        below = None if plan["folder"] is None else Path(plan["folder"])
        opened = Opened(Path(at), identity, CachePlan(**(plan | {"folder": below, "notes": tuple(plan["notes"])})))
    return Path(str(folder)), str(kind), {str(name): int(count) for name, count in groups.items()}, opened


def _read(folder: Path, kind: str, groups: Mapping[str, int]) -> Manifest:
    splits: dict[str, Sequence[int]] = {name: Numbers.map(folder, name) for name in groups}
    return Manifest(open_table(folder, kind), splits, Numbers.map(folder, _VALIDATED), groups)
