"""Interface for extensions that store prepared arrays in their own format; the cache does everything else.

    from runner_core import PreparedCache, hookimpl

    @hookimpl
    def runner_cache(config):
        return PreparedCache(config.cache, storage=MyStorage())

PreparedCache plans, refuses what does not fit, prepares records in parallel, and lists the faulty ones together. It
holds the locks, writes beside the target and renames, and reads back what was written. It copies records from other
caches of the same settings, and opens the result. `runner cache list|verify|prune` handles such caches by their files
alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from runner_core.contract import Array, StoredArray

Region = tuple[slice, ...]
Shapes = Sequence[tuple[int, ...]]


class ArrayFile(Protocol):
    """One array of every record, written in the records' order."""

    def append(self, array: Array) -> None:
        """Append the next record's array (C-contiguous, maybe empty); raise OSError if the disk is full."""
        ...

    def close(self) -> None: ...


class Storage(Protocol):
    """Way to store arrays: each at one path, as a file or as a folder of files."""

    @property
    def name(self) -> str:
        """The cache's mode as users read it, and the suffix of its folder: small letters and digits."""
        ...

    def create(self, path: Path, first: Array) -> ArrayFile:
        """Create the file of an array at `path`, which does not exist yet.

        `first` is the first record's array, which is then appended like the others. All have the same dtype, but each
        may have its own shape.
        """
        ...

    def open(self, path: Path, dtype: np.dtype[Any], shapes: Shapes) -> StoredArray:
        """Open what was written, for reading; the result is picklable, and each worker process opens it anew."""
        ...

    def bytes(self, array: Array) -> int:
        """Return about how many bytes `array` will take on the disk."""
        ...


class Layout:
    """Position of each record in the concatenation: a base class for stored arrays.

    `starts` (records + 1,) counts items. `trailing` is the shape of a row if all records share it, else None.
    """

    def __init__(self, dtype: np.dtype[Any], shapes: Shapes) -> None:
        self.dtype, self.shapes = dtype, shapes
        self.starts = np.cumsum([0, *(int(np.prod(s, dtype=np.int64)) for s in shapes)])
        trailing = {s[1:] for s in shapes}
        self.trailing = trailing.pop() if len(trailing) == 1 and all(shapes) else None

    def row_shape(self) -> tuple[int, ...]:
        """Return the shape of a row; raise ValueError if the rows differ. `take` begins with it."""
        if self.trailing is None:
            raise ValueError("records have rows of different shapes: they cannot be gathered; read() them one by one")
        return self.trailing

    def by_record(self, rows: Array) -> list[tuple[int, Array, Array]]:
        """Group rows (n,) of the concatenation by record: (record, places in `rows`, rows in the record)."""
        ends = np.cumsum([s[0] for s in self.shapes])
        records = np.searchsorted(ends, rows, side="right")
        found = []
        for record in np.unique(records).tolist():
            places = np.flatnonzero(records == record)
            found.append((record, places, rows[places] - (ends[record] - self.shapes[record][0])))
        return found
