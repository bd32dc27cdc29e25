"""The core's storages (flat files, in memory, blosc2), and a writer that reads back what it wrote."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numpy as np

from runner_core.base.writing import flush_all
from runner_core.contract import Array, StoredArray
from runner_core.data.cache.content import Checksums, content_bytes, content_checksums
from runner_core.data.cache.folder import ArrayMeta, Damaged
from runner_core.data.cache.storage import ArrayFile, Shapes, Storage
from runner_core.data.cache.stored import BLOCK, BloscArray, FlatArray, in_memory

_CHUNK = 1 << 16
_LARGEST_CHUNK = 1 << 22


def as_bytes(array: Array) -> memoryview:
    """Return the bytes of an array, in C order."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


class ArrayWriter:
    """One named array of all records, appended record by record."""

    def __init__(self, path: Path, storage: Storage) -> None:
        self._path, self._storage = path, storage
        self._shapes: list[tuple[int, ...]] = []
        self._content = Checksums()
        self._dtype: np.dtype[Any] | None = None
        self._file: ArrayFile | None = None

    def append(self, array: Array) -> None:
        """Append an array; raise OSError (disk full) or ValueError (dtype differs from the records before)."""
        if self._file is None:
            self._dtype = array.dtype
            self._file = self._storage.create(self._path, array)
        if array.dtype != self._dtype:
            raise ValueError(f"has dtype {array.dtype}, records before it have {self._dtype}")
        self._shapes.append(array.shape)
        self._content.update(as_bytes(array))
        self._file.append(array)

    def finish(self) -> ArrayMeta:
        """Close, flush to the disk, and read back; raise Damaged if the content differs from what was written."""
        assert self._file is not None
        assert self._dtype is not None
        self._file.close()
        flush_all(self._path)
        checksums = content_checksums(self._path)
        # A flat file holds only the arrays' bytes, so its checksums suffice.
        if self._content.text() != checksums and self._content.text() != self._read_back():
            raise Damaged(f"{self._path} reads back differently from what was written: is the disk sound?")
        return ArrayMeta(self._path.name, self._dtype.str, self._shapes, content_bytes(self._path), checksums)

    def _read_back(self) -> str:
        assert self._dtype is not None
        state = Checksums()
        array = self._storage.open(self._path, self._dtype, self._shapes)
        for record in range(len(self._shapes)):
            state.update(as_bytes(array.read(record)))
        return state.text()


class FlatFile:
    """A file of bytes whose OSError says why writing failed, which NumPy's `tofile` does not."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "wb", buffering=0)  # noqa: SIM115

    def append(self, array: Array) -> None:
        content = as_bytes(array)
        while content:  # one write may take less than all
            content = content[self._file.write(content) :]

    def close(self) -> None:
        self._file.close()


class _BloscFile:
    """A blosc2 file whose chunks hold whole rows and whose blocks hold a few lines.

    A row is then one chunk to decompress, and a patch of a large row needs only the blocks that it touches. LZ4 without
    a filter decodes a 256 × 256 uint8 slice in 0.008 ms (ZSTD: 0.03 ms, for a fifth less space). Wider types are
    shuffled by byte first. Tiles of 32³ would give a patch of 72 × 136 × 136 in a third less time, and a slice in 30
    times as much.
    """

    def __init__(self, path: Path, first: Array) -> None:
        self._chunks = blosc_chunks(first, path)
        self._size = self._chunks.chunksize
        self._rest = bytearray()

    def append(self, array: Array) -> None:
        self._rest += as_bytes(array)
        whole = len(self._rest) - len(self._rest) % self._size
        for begin in range(0, whole, self._size):
            self._write(self._rest[begin : begin + self._size])
        del self._rest[:whole]

    def close(self) -> None:
        if self._rest:
            self._write(self._rest)
        del self._chunks

    def _write(self, chunk: bytearray) -> None:
        try:
            self._chunks.append_data(chunk)
        except RuntimeError as error:  # blosc2's only sign of a full disk
            raise OSError(errno.ENOSPC, str(error)) from error


def blosc_chunks(first: Array, path: Path | None = None) -> Any:
    """Return an empty blosc2 file (or, without `path`, memory) for arrays such as `first`."""
    import blosc2

    row = int(np.prod(first.shape[1:], dtype=np.int64)) * first.itemsize
    if not 0 < row <= _LARGEST_CHUNK:
        row = first.itemsize
    chunk = row * max(1, _CHUNK // row)
    bytewise = first.itemsize == 1
    return blosc2.SChunk(
        chunksize=chunk,
        urlpath=None if path is None else str(path),
        contiguous=True,
        cparams={
            "codec": blosc2.Codec.LZ4,
            "clevel": 5,
            "typesize": first.itemsize,
            "blocksize": min(chunk, BLOCK - BLOCK % first.itemsize),
            "nthreads": 1,
            "filters": [blosc2.Filter.NOFILTER if bytewise else blosc2.Filter.SHUFFLE],
            "filters_meta": [0],
        },
    )


class _Flat:
    """The arrays' bytes, one after the other, without gaps; read through a memory map."""

    name = "flat"

    def create(self, path: Path, first: Array) -> ArrayFile:
        return FlatFile(path)

    def open(self, path: Path, dtype: np.dtype[Any], shapes: Shapes) -> StoredArray:
        return FlatArray(path, dtype, shapes)

    def bytes(self, array: Array) -> int:
        return array.nbytes


class _Memory(_Flat):
    """Like `_Flat`, but read whole into memory that worker processes share."""

    def open(self, path: Path, dtype: np.dtype[Any], shapes: Shapes) -> StoredArray:
        return FlatArray(in_memory(path), dtype, shapes)


class _Blosc2:
    name = "blosc2"

    def create(self, path: Path, first: Array) -> ArrayFile:
        return _BloscFile(path, first)

    def open(self, path: Path, dtype: np.dtype[Any], shapes: Shapes) -> StoredArray:
        return BloscArray(path, dtype, shapes)

    def bytes(self, array: Array) -> int:
        chunks = blosc_chunks(array)
        content = as_bytes(array)
        for begin in range(0, len(content), chunks.chunksize):
            chunks.append_data(content[begin : begin + chunks.chunksize])
        return int(chunks.cbytes)


FLAT: Storage = _Flat()
MEMORY: Storage = _Memory()
BLOSC2: Storage = _Blosc2()
