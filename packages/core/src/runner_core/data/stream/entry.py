"""A prepared record as one file: a header, then its arrays one after another; read as a memory map."""

from __future__ import annotations

import json
import mmap
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

from runner_core.contract import Array, Arrays, Json

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
