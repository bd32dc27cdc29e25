"""The newest prepared records on disk, limited in bytes; any number of processes share them.

    <cache.dir>/stream/
        NAME             a record, whole
        .writing-NAME-…  a record being written, at its final size from the beginning; locked by its writer
        total            the bytes of both, or more; locked by a process that adds or removes files

NAME is 32 hexadecimal digits. A file with another name is not ours, and is neither counted nor removed. A reader holds
a shared lock on a file, which then is not removed, so files in use count. The total is raised before a file is made and
lowered after files were removed. A killed process leaves it too high at worst, until files are counted again, which
happens before any is removed. Nothing here waits for the disk (fsync): each process compares a record with its checksum
when it first reads it, and fetches it again if a power loss has damaged it.
"""

from __future__ import annotations

import errno
import itertools
import json
import mmap
import os
import re
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from runner_core.base.errors import OutOfSpace
from runner_core.base.files import size_text
from runner_core.base.writing import NO_SPACE, lock, unlock
from runner_core.contract import Array, Arrays, Json
from runner_core.data.cache.folder import unwritable

_MAGIC = b"runner-1"
_HEAD = struct.Struct("<8sQQ")
"""Magic, length of the header (JSON), its xxh3_64."""
_ALIGNMENT = 64

Layout = tuple[tuple[str, str, tuple[int, ...]], ...]
"""Name, dtype and shape of each array."""


class Torn(Exception):
    """The file differs from what was written."""


@dataclass(frozen=True)
class Entry:
    """A prepared record; its arrays are read-only views that keep the file's content alive."""

    arrays: Mapping[str, Array]
    meta: Mapping[str, Json]

    @property
    def layout(self) -> Layout:
        return tuple((name, a.dtype.str, a.shape) for name, a in sorted(self.arrays.items()))


class PackedRecord:
    """Arrays and `meta`, laid out for a file of `size` bytes."""

    def __init__(self, arrays: Arrays, meta: Mapping[str, Json]) -> None:
        digest = xxhash.xxh3_64()
        table, end = [], 0
        for name, array in arrays.items():
            digest.update(_bytes(array))
            table.append([name, array.dtype.str, array.shape, end])
            end = _aligned(end + array.nbytes)
        text = json.dumps({"arrays": table, "meta": meta, "checksum": digest.hexdigest()}).encode()
        self._head = _HEAD.pack(_MAGIC, len(text), xxhash.xxh3_64_intdigest(text)) + text
        self._begin = _aligned(len(self._head))
        self._parts = [(self._begin + begin, arrays[name]) for name, _, _, begin in table]
        self.size = self._begin + end

    def write(self, descriptor: int) -> None:
        """Write into a file that already has `size` bytes."""
        _write_all(descriptor, memoryview(self._head), 0)
        for begin, array in self._parts:
            _write_all(descriptor, _bytes(array), begin)


def open_entry(descriptor: int, check: bool = True) -> Entry:
    """Return the entry in an open file; `check` reads all bytes, not only the header. Raises Torn."""
    size = os.fstat(descriptor).st_size
    if size < _HEAD.size:
        raise Torn
    # The map has a descriptor of its own, for the same open file: a lock on that lasts as long as the map.
    content = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    magic, length, expected = _HEAD.unpack_from(content)
    text = content[_HEAD.size : _HEAD.size + length]
    if magic != _MAGIC or len(text) != length or xxhash.xxh3_64_intdigest(text) != expected:
        raise Torn
    header = json.loads(text)
    first = _aligned(_HEAD.size + length)
    arrays: Arrays = {}
    digest = xxhash.xxh3_64()
    for name, dtype, shape, begin in header["arrays"]:
        kind = np.dtype(dtype)
        if first + begin + kind.itemsize * int(np.prod(shape, dtype=np.int64)) > size:
            raise Torn
        arrays[name] = np.ndarray(tuple(shape), kind, content, first + begin)
        if check:
            digest.update(_bytes(arrays[name]))
    if check and digest.hexdigest() != header["checksum"]:
        raise Torn
    return Entry(arrays, header["meta"])


def _bytes(array: Array) -> memoryview[Any]:
    flat: Any = array.reshape(-1).view(np.uint8) if array.size else b""
    return memoryview(flat)


def _write_all(descriptor: int, data: memoryview[Any], at: int) -> None:
    while data:
        written = os.pwrite(descriptor, data, at)
        data, at = data[written:], at + written


def _aligned(size: int) -> int:
    return size + -size % _ALIGNMENT


FOLDER = "stream"
"""Folder below `cache.dir`."""
_NAME = re.compile(r"[0-9a-f]{32}")
_WRITING = re.compile(rf"\.writing-{_NAME.pattern}-\d+-\d+")
_TOTAL = "total"
_COUNT = struct.Struct("<Q")
_PAGE = 4096
_SPARE = 0.05
"""Share of the limit that is freed beyond what is needed, because counting all files takes time."""
_CHECKED = 100_000
"""Number of files that a process remembers as compared with their checksums."""
_NUMBERS = itertools.count()


class Lru:
    """Records in `folder`, at most `max_bytes` (file sizes in whole pages); picklable, safe for threads."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder, self.max_bytes = folder, max_bytes
        self._begin()

    def _begin(self) -> None:
        self._threads = threading.Lock()
        self._descriptor: int | None = None
        self._counted = False
        self._checked: set[tuple[str, int]] = set()

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "max_bytes": self.max_bytes}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def __del__(self, close: Any = os.close) -> None:
        if getattr(self, "_descriptor", None) is not None:
            close(self._descriptor)

    def get(self, name: str) -> Entry | None:
        """Return the record and make it the newest, or return None if it is missing.

        Its bytes are compared with their checksum the first time that this process reads it.
        """
        try:
            descriptor = os.open(self.folder / name, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            lock(descriptor, shared=True)
            if not os.fstat(descriptor).st_nlink:
                return None  # removed since it was opened
            _touch(descriptor)
            return self._open(name, descriptor)
        except Torn:
            pass
        finally:
            os.close(descriptor)
        with self._locked():
            self._remove(name)
        return None

    def _open(self, name: str, descriptor: int) -> Entry:
        """Open a record; raise Torn if it is damaged."""
        mark = (name, os.fstat(descriptor).st_ino)
        entry = open_entry(descriptor, check=mark not in self._checked)
        if len(self._checked) >= _CHECKED:
            self._checked.clear()
        self._checked.add(mark)
        return entry

    def touch(self, name: str) -> bool:
        """Return True if the record exists, and make it the newest."""
        try:
            _touch(self.folder / name)
        except FileNotFoundError:
            return False
        return True

    def put(self, name: str, arrays: Arrays, meta: Mapping[str, Json]) -> Entry:
        """Store a record, and return it as stored.

        If all other records are in use and leave no room, it is not stored, and only the returned entry holds it.
        Raises OutOfSpace if the disk is full.
        """
        packed = PackedRecord(arrays, meta)
        reserved = self._reserve(name, packed.size)
        if reserved is None:
            return Entry(arrays, meta)
        descriptor, temporary = reserved
        try:
            packed.write(descriptor)
            _touch(descriptor)
            with self._locked():
                if not (self.folder / name).exists():  # never replace a file in use: its bytes would not count
                    temporary.rename(self.folder / name)
                    lock(descriptor, shared=True)
                    return open_entry(descriptor, check=False)
                temporary.unlink()
                self._total -= _pages(packed.size)
            return self.get(name) or Entry(arrays, meta)
        except BaseException:
            with self._locked():
                temporary.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)

    def trim(self) -> int:
        """Remove what exceeds the limit; return the bytes that remain."""
        with self._locked():
            return self._make_room(0)

    def names(self) -> set[str]:
        """Return the names of the stored records."""
        if not self.folder.is_dir():
            return set()
        return set(filter(_NAME.fullmatch, os.listdir(self.folder)))

    def size(self) -> int:
        """Return about how many bytes are stored."""
        return sum(there.st_size for there in self._stats())

    def last_used(self) -> float:
        """Return when any record was last read or written (seconds since the epoch), or 0 if there is none."""
        return max((there.st_mtime for there in self._stats()), default=0.0)

    def _stats(self) -> Iterator[os.stat_result]:
        for name in self.names():
            with suppress(FileNotFoundError):
                yield os.stat(self.folder / name)

    def fit(self, size: int) -> int:
        """Return how many records of `size` bytes are kept at least, if there are more."""
        return max(0, int(self.max_bytes * (1 - _SPARE)) - _PAGE) // _pages(size)

    @staticmethod
    def needed(count: int, size: int) -> int:
        """Return the limit under which this many records of `size` bytes are kept."""
        return int((count * _pages(size) + 2 * _PAGE) / (1 - _SPARE))

    # ------------------------------------------------------------ the folder; all below with the lock held

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock under which only this process makes or removes files."""
        with self._threads:
            if self._descriptor is None:
                try:
                    self.folder.mkdir(parents=True, exist_ok=True)
                    self._descriptor = os.open(self.folder / _TOTAL, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
                except OSError as error:
                    raise unwritable(self.folder, error) from error
            lock(self._descriptor)
            try:
                yield
            finally:
                unlock(self._descriptor)

    def _reserve(self, name: str, size: int) -> tuple[int, Path] | None:
        """Return descriptor and path of a new locked file of `size` bytes, or None if there is no room."""
        wanted = _pages(size)
        with self._locked():
            total = self._total
            if not self._counted or total + wanted > self.max_bytes:
                total = self._make_room(wanted)
            if total + wanted > self.max_bytes:
                return None
            try:
                return self._make(name, size, total + wanted)
            except OSError as error:
                if error.errno not in NO_SPACE:
                    raise
            total = self._make_room(self.max_bytes - max(0, total - 2 * wanted))  # others filled the disk meanwhile
            try:
                return self._make(name, size, total + wanted)
            except OSError as error:
                raise OutOfSpace(
                    f"{self.folder}: the disk is full, and a record needs {size_text(wanted)}: free some space, or "
                    "set cache.dir to another disk"
                ) from error

    def _make(self, name: str, size: int, total: int) -> tuple[int, Path]:
        self._total = total
        path = self.folder / f".writing-{name}-{os.getpid()}-{next(_NUMBERS)}"
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC)
        try:
            lock(descriptor)
            os.posix_fallocate(descriptor, 0, size)
        except BaseException:
            os.close(descriptor)
            path.unlink()
            raise
        return descriptor, path

    def _make_room(self, wanted: int) -> int:
        """Count the files, and remove some if they leave less than `wanted` bytes; return the bytes that remain.

        Files of killed writers go first, then the oldest that are not in use.
        """
        found, total = [], 0
        with os.scandir(self.folder) as files:
            for file in files:
                kept, writing = _NAME.fullmatch(file.name), _WRITING.fullmatch(file.name)
                if not (kept or writing or file.name == _TOTAL):
                    continue  # not ours
                if writing and self._remove(file.name):
                    continue  # its writer is dead
                there = file.stat()
                size = max(_pages(there.st_size), there.st_blocks * 512)
                total += size
                if kept:
                    found.append((there.st_mtime_ns, size, file.name))
        if total + wanted > self.max_bytes:
            target = self.max_bytes - wanted - int(_SPARE * self.max_bytes)
            for _, size, name in sorted(found):
                if total <= target:
                    break
                if self._remove(name):
                    total -= size
        self._total, self._counted = total, True
        return total

    def _remove(self, name: str) -> bool:
        """Remove a file unless a process has it open; return True if it is gone."""
        try:
            descriptor = os.open(self.folder / name, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        except PermissionError:  # another user's
            return False
        try:
            lock(descriptor, wait=False)
            (self.folder / name).unlink()
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return False
            raise
        finally:
            os.close(descriptor)
        return True

    @property
    def _total(self) -> int:
        assert self._descriptor is not None
        stored = os.pread(self._descriptor, _COUNT.size, 0)
        return _COUNT.unpack(stored)[0] if len(stored) == _COUNT.size else self.max_bytes  # forces a count

    @_total.setter
    def _total(self, total: int) -> None:
        assert self._descriptor is not None
        os.pwrite(self._descriptor, _COUNT.pack(total), 0)


def _touch(file: int | Path) -> None:
    now = time.time_ns()
    with suppress(PermissionError):  # another user's
        os.utime(file, ns=(now, now))


def _pages(size: int) -> int:
    return -(-max(size, 1) // _PAGE) * _PAGE
