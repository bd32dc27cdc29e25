"""Prepared arrays opened for reading.

A file holds one array of every record, one after the other, nothing between. Where the trailing shapes agree it is
one array over all rows, and a batch is one gather from it.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from runner_core._workers import SharedMemory
from runner_core.cache.folder import CacheMeta, mark_used, open_shared, read_meta
from runner_core.cache.identity import digest_json
from runner_core.project import Record
from runner_core.protocols import Array, Json, Pipeline, StoredArray

Region = tuple[slice, ...]
Shapes = Sequence[tuple[int, ...]]


class PreparedStore:
    """Records' prepared arrays, from a cache folder or prepared at each read. Picklable to a spawned process."""

    def __init__(
        self,
        keys: Sequence[str],
        meta: Sequence[Mapping[str, Json]],
        arrays: Mapping[str, StoredArray],
        identity: str,
        *,
        device: bool = False,
        folder: Path | None = None,
    ) -> None:
        self.keys, self.meta, self.arrays, self.identity = keys, meta, arrays, identity
        self.device, self.folder = device, folder
        self._lock: int | None = None

    @classmethod
    def open(cls, folder: Path, mode: str) -> PreparedStore:
        """`mode`: memmap, device, memory (folders of format flat) or blosc2. Raises Damaged, OSError."""
        lock = open_shared(folder)
        try:
            meta = read_meta(folder)
            identity = store_identity(meta.settings, meta.keys, meta.identities)
            store = cls(
                meta.keys, meta.meta, _open_arrays(folder, meta, mode), identity, device=mode == "device", folder=folder
            )
        except BaseException:
            os.close(lock)
            raise
        store._lock = lock
        mark_used(folder)
        return store

    def close(self) -> None:
        """Let `prune` have the folder. Views taken from the arrays stay valid."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __del__(self) -> None:
        if getattr(self, "_lock", None) is not None:
            self.close()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_lock": None}  # the parent's lock stands for its workers


def store_identity(settings: Mapping[str, Json], keys: Sequence[str], identities: Sequence[str]) -> str:
    """Digest of what prepared arrays were made of; the same for every mode."""
    return digest_json([dict(settings), list(keys), list(identities)])


def _open_arrays(folder: Path, meta: CacheMeta, mode: str) -> dict[str, StoredArray]:
    arrays: dict[str, StoredArray] = {}
    for name, a in meta.arrays.items():
        dtype = np.dtype(a.dtype)
        if meta.format == "blosc2":
            arrays[name] = BloscArray(folder / a.file, dtype, a.shapes)
        elif mode == "memory":
            arrays[name] = FlatArray(_in_memory(folder / a.file), dtype, a.shapes)
        else:
            arrays[name] = FlatArray(folder / a.file, dtype, a.shapes)
    return arrays


class _Layout:
    """Where each record lies in the concatenation, in items and in rows."""

    def __init__(self, dtype: np.dtype[Any], shapes: Shapes) -> None:
        self.dtype, self.shapes = dtype, shapes
        self.starts = np.cumsum([0, *(int(np.prod(s, dtype=np.int64)) for s in shapes)])
        trailing = {s[1:] for s in shapes}
        self.trailing = trailing.pop() if len(trailing) == 1 and all(shapes) else None
        """Shape of a row, when every record has the same."""

    def row_shape(self) -> tuple[int, ...]:
        if self.trailing is None:
            raise ValueError("records have rows of different shapes: they cannot be gathered; read() them one by one")
        return self.trailing


class FlatArray(_Layout):
    """A memory map of a file, or memory shared with workers."""

    def __init__(self, source: Path | SharedMemory, dtype: np.dtype[Any], shapes: Shapes) -> None:
        super().__init__(dtype, shapes)
        self._source = source
        # A plain array over the map: np.memmap costs Python at every slice.
        self._items = np.frombuffer(_buffer(source), dtype=dtype, count=int(self.starts[-1]))
        self._items.flags.writeable = False
        if self.trailing is not None:
            self._rows = self._items.reshape(-1, *self.trailing)

    def __reduce__(self) -> tuple[Any, ...]:
        return FlatArray, (self._source, self.dtype, self.shapes)

    def read(self, record: int, region: Region | None = None) -> Array:
        array = self._items[self.starts[record] : self.starts[record + 1]].reshape(self.shapes[record])
        return array if region is None else array[region]

    def take(self, rows: Array, out: Array) -> None:
        """Rows must lie in the array: `clip` skips NumPy's check, which would copy the batch once more."""
        self.row_shape()
        np.take(self._rows, rows, axis=0, out=out, mode="clip")


class BloscArray(_Layout):
    """A blosc2 file of the same bytes, in chunks of whole rows."""

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
        """Decompresses only the rows that the region's first slice spans."""
        shape, begin = self.shapes[record], int(self.starts[record])
        if not region or not shape:
            return self._decompress(begin, shape)
        first, last, step = region[0].indices(shape[0])
        if step != 1:
            return self._decompress(begin, shape)[region]
        row = int(np.prod(shape[1:], dtype=np.int64))
        return self._decompress(begin + first * row, (max(0, last - first), *shape[1:]))[(slice(None), *region[1:])]

    def take(self, rows: Array, out: Array) -> None:
        size = int(np.prod(self.row_shape(), dtype=np.int64))
        if size:
            for i, row in enumerate(rows.tolist()):
                self._chunks.get_slice(row * size, (row + 1) * size, out[i : i + 1])

    def _decompress(self, begin: int, shape: tuple[int, ...]) -> Array:
        out = np.empty(shape, self.dtype)
        if out.size:
            self._chunks.get_slice(begin, begin + out.size, out)
        return out


class LiveArray(_Layout):
    """Prepares the record at each read (cache.mode off)."""

    def __init__(self, live: LiveRecords, name: str, dtype: np.dtype[Any], shapes: Shapes) -> None:
        super().__init__(dtype, shapes)
        self._live, self._name = live, name

    def read(self, record: int, region: Region | None = None) -> Array:
        array = self._live.prepare(record)[self._name]
        return array if region is None else array[region]

    def take(self, rows: Array, out: Array) -> None:
        self.row_shape()
        ends = np.cumsum([s[0] for s in self.shapes])
        records = np.searchsorted(ends, rows, side="right")
        for record in np.unique(records).tolist():
            chosen = np.flatnonzero(records == record)
            begin = int(ends[record]) - self.shapes[record][0]
            out[chosen] = self._live.prepare(record)[self._name][rows[chosen] - begin]


class LiveRecords:
    """The pipeline over its records; the last prepared one is kept, for its other arrays."""

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
    """Ask the kernel to bring the file in, in its own order and time, when it fits well: random reads of a cold file
    otherwise wait for the disk one by one."""
    import psutil

    if len(buffer) < psutil.virtual_memory().available // 2:
        buffer.madvise(mmap.MADV_WILLNEED)


def _in_memory(path: Path) -> SharedMemory:
    shared = SharedMemory(path.stat().st_size)
    view = memoryview(shared.memory)
    done = 0
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(view[done:]):
            done += count
    view.release()
    return shared
