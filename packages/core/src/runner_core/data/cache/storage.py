"""Prepared arrays: what an extension that stores them implements, and the arrays as they are opened for reading."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from runner_core.base.workers import SharedMemory
from runner_core.contract import Array, Json, Pipeline, Store, StoredArray
from runner_core.contract.records import Record
from runner_core.data import columns
from runner_core.data.cache.folder import (
    CacheMeta,
    Checksums,
    Damaged,
    blocks_of,
    mark_used,
    open_shared,
    read_meta,
    verify,
)
from runner_core.data.cache.identity import digest_lists
from runner_core.data.cache.verification import Verification

Region = tuple[slice, ...]
Shapes = Sequence[tuple[int, ...]]


class ArrayFile(Protocol):
    """An array of every record, written in the records' order."""

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
        if isinstance(shapes, columns.Shapes):  # mapped: computed once, for all processes
            self.starts, self.trailing = shapes.starts, shapes.trailing
            return
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


BLOCK = 1 << 14
"""Bytes in a block that blosc2 compresses by itself."""


class PreparedStore:
    """Records' prepared arrays, from a cache folder or prepared at each read; picklable to a spawned process."""

    def __init__(
        self,
        keys: Sequence[str],
        meta: Sequence[Mapping[str, Json]],
        arrays: Mapping[str, StoredArray],
        identity: str,
        *,
        device: bool = False,
        folder: Path | None = None,
        identities: columns.Digests | None = None,
    ) -> None:
        self.keys, self.meta, self.arrays, self.identity = keys, meta, arrays, identity
        self.device, self.folder = device, folder
        self.identities = identities
        """The records' identities, if they are many."""
        self.verification: Verification | None = None
        """Blocks of the files still to be verified; None if all are verified or no files are read."""
        self._lock: int | None = None

    @classmethod
    def open(cls, folder: Path, storage: Storage, *, device: bool = False) -> PreparedStore:
        """Open a cache folder that `storage` wrote; raise Damaged or OSError."""
        lock = open_shared(folder)
        try:
            meta = read_meta(folder)
            identity = store_identity(meta.settings, meta.keys, meta.identities)
            arrays = {
                name: storage.open(folder / a.file, np.dtype(a.dtype), a.shapes) for name, a in meta.arrays.items()
            }
            known = meta.identities if isinstance(meta.identities, columns.Digests) else None
            store = cls(meta.keys, meta.meta, arrays, identity, device=device, folder=folder, identities=known)
            if not _verified_in_memory(folder, meta, arrays):
                store.verification = Verification(folder, blocks_of(folder, meta))
        except BaseException:
            os.close(lock)
            raise
        store._lock = lock
        mark_used(folder)
        return store

    def close(self) -> None:
        """Release the folder for `prune`; views taken from the arrays stay valid."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # At Python's end `os` may be gone before this object; the default argument is not.
        if (lock := getattr(self, "_lock", None)) is not None:
            close(lock)

    def __getstate__(self) -> dict[str, Any]:
        # The parent's lock and verification also cover its workers.
        return self.__dict__ | {"_lock": None, "verification": None, "identities": None}


def identities_of(store: Store) -> columns.Digests | None:
    """Return the identities of the records of a store, in their order, if they are many and it knows them."""
    return store.identities if isinstance(store, PreparedStore) else None


def _verified_in_memory(folder: Path, meta: CacheMeta, arrays: Mapping[str, StoredArray]) -> bool:
    """Return True if the arrays were read into memory; raise Damaged if they differ from what was written."""
    loaded = {name: a.loaded for name, a in arrays.items() if isinstance(a, FlatArray) and a.loaded is not None}
    for name, content in loaded.items():
        found = Checksums()
        found.update(content)
        if found.text() != meta.arrays[name].checksums:
            verify(folder)  # reports where
            file = folder / meta.arrays[name].file
            raise Damaged(f"{file} was read differently from what is there: are disk and memory sound?")
    return bool(loaded)


def store_identity(settings: Mapping[str, Json], keys: Sequence[str], identities: Sequence[str]) -> str:
    """Return the digest of the inputs of prepared arrays; it is the same for every mode."""
    return digest_lists(dict(settings), keys, identities)


class FlatArray(Layout):
    """A memory map of a file, or memory shared with workers."""

    def __init__(self, source: Path | SharedMemory, dtype: np.dtype[Any], shapes: Shapes) -> None:
        super().__init__(dtype, shapes)
        self._source = source
        # A plain array over the map: np.memmap costs Python at every slice.
        self._items = np.frombuffer(_buffer(source), dtype=dtype, count=int(self.starts[-1]))
        self._items.flags.writeable = False
        if self.trailing is not None:
            self._rows = self._items.reshape(-1, *self.trailing)

    @property
    def loaded(self) -> memoryview | None:
        """The bytes, if they are in RAM."""
        return self._items.view(np.uint8).data if isinstance(self._source, SharedMemory) else None

    def __reduce__(self) -> tuple[Any, ...]:
        return FlatArray, (self._source, self.dtype, self.shapes)

    def read(self, record: int, region: Region | None = None) -> Array:
        array = self._items[self.starts[record] : self.starts[record + 1]].reshape(self.shapes[record])
        return array if region is None else array[region]

    def take(self, rows: Array, out: Array) -> None:
        """Gather rows, which must lie in the array.

        `clip` skips NumPy's check, which would copy the batch once more.
        """
        self.row_shape()
        np.take(self._rows, rows, axis=0, out=out, mode="clip")


class BloscArray(Layout):
    """A blosc2 file of the same bytes, in chunks of whole rows and blocks of lines."""

    def __init__(self, path: Path, dtype: np.dtype[Any], shapes: Shapes) -> None:
        super().__init__(dtype, shapes)
        self._path = path

    @cached_property
    def _chunks(self) -> Any:
        import blosc2

        return blosc2.open(str(self._path), mode="r", mmap_mode="r", dparams={"nthreads": 1})

    def __reduce__(self) -> tuple[Any, ...]:
        return BloscArray, (self._path, self.dtype, self.shapes)

    def read(self, record: int, region: Region | None = None) -> Array:
        """Decompress only what the region needs.

        These are the rows in its first slice. In rows larger than a block, they are only the blocks with the lines in
        its second slice.
        """
        shape, begin = self.shapes[record], int(self.starts[record])
        if not region or not shape:
            return self._decompress(begin, shape)
        rows = range(*region[0].indices(shape[0]))
        if rows.step != 1:
            return self._decompress(begin, shape)[region]
        row = int(np.prod(shape[1:], dtype=np.int64))
        begin += rows.start * row
        if len(region) > 1 and row * self.dtype.itemsize > BLOCK:
            lines = range(*region[1].indices(shape[1]))
            if lines.step == 1 and len(lines) < shape[1]:
                return self._lines(begin, (len(rows), *shape[1:]), lines)[(slice(None), slice(None), *region[2:])]
        return self._decompress(begin, (len(rows), *shape[1:]))[(slice(None), *region[1:])]

    def take(self, rows: Array, out: Array) -> None:
        size = int(np.prod(self.row_shape(), dtype=np.int64))
        if size:
            for i, row in enumerate(rows.tolist()):
                self._chunks.get_slice(row * size, (row + 1) * size, out[i : i + 1])

    def _lines(self, begin: int, shape: tuple[int, ...], lines: range) -> Array:
        """Return the same lines of each row of an array (`shape`) that begins at item `begin`."""
        out = np.empty((shape[0], len(lines), *shape[2:]), self.dtype)
        line = int(np.prod(shape[2:], dtype=np.int64))
        for i, row in enumerate(out if out.size else ()):
            first = begin + (i * shape[1] + lines.start) * line
            self._chunks.get_slice(first, first + row.size, row)
        return out

    def _decompress(self, begin: int, shape: tuple[int, ...]) -> Array:
        out = np.empty(shape, self.dtype)
        if out.size:
            self._chunks.get_slice(begin, begin + out.size, out)
        return out


class LiveArray(Layout):
    """Prepares the record at each read (cache.mode off)."""

    def __init__(self, live: LiveRecords, name: str, dtype: np.dtype[Any], shapes: Shapes) -> None:
        super().__init__(dtype, shapes)
        self._live, self._name = live, name

    def read(self, record: int, region: Region | None = None) -> Array:
        array = self._live.prepare(record)[self._name]
        return array if region is None else array[region]

    def take(self, rows: Array, out: Array) -> None:
        self.row_shape()
        for record, places, own in self.by_record(rows):
            out[places] = self._live.prepare(record)[self._name][own]


class LiveRecords:
    """The pipeline over its records; it keeps the last prepared one for its other arrays."""

    def __init__(self, pipeline: Pipeline, records: Sequence[Record]) -> None:
        self._pipeline, self._records = pipeline, records
        self._last: tuple[int, Mapping[str, Array]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_last": None}

    def prepare(self, record: int) -> Mapping[str, Array]:
        if self._last is None or self._last[0] != record:
            self._last = record, self._pipeline(self._records[record]).arrays
        return self._last[1]


def _buffer(source: Path | SharedMemory) -> Any:
    if isinstance(source, SharedMemory):
        return source.memory
    with open(source, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return b""
        buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    _read_ahead(buffer)
    return buffer


def _read_ahead(buffer: mmap.mmap) -> None:
    """Ask the kernel to read the file ahead, in its own order and time, if it fits well.

    Otherwise random reads of a cold file wait for the disk one by one.
    """
    import psutil

    if len(buffer) < psutil.virtual_memory().available // 2:
        buffer.madvise(mmap.MADV_WILLNEED)


def in_memory(path: Path) -> SharedMemory:
    """Read a file into memory that worker processes share."""
    shared = SharedMemory(path.stat().st_size)
    view = memoryview(shared.memory)
    done = 0
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(view[done:]):
            done += count
    view.release()
    return shared
