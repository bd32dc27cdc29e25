"""What an extension writes to keep prepared arrays in its own way; the cache does everything around it.

    from runner_core import hookimpl
    from runner_core.cache.prepared import PreparedCache

    @hookimpl
    def runner_cache(config):
        return PreparedCache(config.cache, storage=MyStorage())

PreparedCache plans, refuses what does not fit, prepares records in parallel, lists the faulty ones together, holds the
locks, writes beside and renames, checks what was written by reading it back, copies records that lie in other caches
of the same settings, and opens. `runner cache list|verify|prune` knows such caches by their files alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from runner_core.protocols import Array, StoredArray

Region = tuple[slice, ...]
Shapes = Sequence[tuple[int, ...]]


class ArrayFile(Protocol):
    """One array of every record, being written, in the records' order."""

    def append(self, array: Array) -> None:
        """The next record's, C-contiguous; it may be empty. Raises OSError when the disk is full."""
        ...

    def close(self) -> None: ...


class Storage(Protocol):
    """How arrays are kept: each at one path, as a file or as a folder of files."""

    @property
    def name(self) -> str:
        """The cache's mode as users read it, and the ending of its folder: small letters and digits."""
        ...

    def create(self, path: Path, first: Array) -> ArrayFile:
        """Nothing is at `path` yet. `first`: the first record's array, which is then appended like the others; theirs
        have its dtype, and shapes of their own."""
        ...

    def open(self, path: Path, dtype: np.dtype[Any], shapes: Shapes) -> StoredArray:
        """What was written, for reading: picklable to worker processes, each of which opens it anew."""
        ...

    def bytes(self, array: Array) -> int:
        """About what `array` will take on the disk."""
        ...


class Layout:
    """Where each record lies in the concatenation: a base for stored arrays.

    `starts` (records + 1,): in items. `trailing`: the shape of a row, when every record has the same, else None.
    """

    def __init__(self, dtype: np.dtype[Any], shapes: Shapes) -> None:
        self.dtype, self.shapes = dtype, shapes
        self.starts = np.cumsum([0, *(int(np.prod(s, dtype=np.int64)) for s in shapes)])
        trailing = {s[1:] for s in shapes}
        self.trailing = trailing.pop() if len(trailing) == 1 and all(shapes) else None

    def row_shape(self) -> tuple[int, ...]:
        """The shape of a row, or ValueError: `take` begins with it."""
        if self.trailing is None:
            raise ValueError("records have rows of different shapes: they cannot be gathered; read() them one by one")
        return self.trailing

    def by_record(self, rows: Array) -> list[tuple[int, Array, Array]]:
        """Rows (n,) of the concatenation, by the records that hold them: (record, places in `rows`, rows there)."""
        ends = np.cumsum([s[0] for s in self.shapes])
        records = np.searchsorted(ends, rows, side="right")
        found = []
        for record in np.unique(records).tolist():
            places = np.flatnonzero(records == record)
            found.append((record, places, rows[places] - (ends[record] - self.shapes[record][0])))
        return found
