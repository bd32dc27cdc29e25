"""Files of a cache's arrays: their sizes, and a checksum for each block of 16 MiB.

Block checksums allow a part of a large file to be verified by itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import xxhash

BLOCK = 1 << 24
_PIECE = 1 << 22
_DIGITS = 16


class Block(NamedTuple):
    """`size` bytes of a file from `begin` on, and the checksum of what was written there."""

    file: Path
    begin: int
    size: int
    checksum: str

    def sound(self) -> bool:
        """Read the bytes and compare their checksum; raise OSError if the file system reports an error."""
        return _checksum(self.file, self.begin, self.size) == self.checksum


class Checksums:
    """Checksums of a stream of bytes, one block after another."""

    def __init__(self) -> None:
        self._done: list[str] = []
        self._block, self._room = xxhash.xxh3_64(), BLOCK

    def update(self, data: memoryview) -> None:
        while len(data):
            part, data = data[: self._room], data[self._room :]
            self._block.update(part)
            self._room -= len(part)
            if not self._room:
                self._done.append(self._block.hexdigest())
                self._block, self._room = xxhash.xxh3_64(), BLOCK

    def text(self) -> str:
        """Return the checksums so far (16 hex digits each), joined."""
        return "".join(self._done) + (self._block.hexdigest() if self._room < BLOCK else "")


def content_bytes(path: Path) -> int:
    """Return the size of a file, or of all files in a folder."""
    return sum(file.stat().st_size for file in _files(path))


def content_checksums(path: Path) -> str:
    """Return the checksums of a file's blocks, or of all files in a folder, in the order of their names."""
    return "".join(_checksum(*place) for place in _places(path))


def content_blocks(path: Path, checksums: str) -> list[Block]:
    """Return the blocks of a file or folder with their `checksums`; raise ValueError if the numbers differ."""
    expected = [checksums[i : i + _DIGITS] for i in range(0, len(checksums), _DIGITS)]
    return [Block(*place, checksum) for place, checksum in zip(_places(path), expected, strict=True)]


def changed_ns(path: Path) -> int:
    """Return when a file, or the newest one in a folder, was changed (ns since the epoch)."""
    return max((file.stat().st_mtime_ns for file in _files(path)), default=0)


def _files(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]


def _places(path: Path) -> Iterator[tuple[Path, int, int]]:
    for file in _files(path):
        size = file.stat().st_size
        for begin in range(0, size, BLOCK):
            yield file, begin, min(BLOCK, size - begin)


def _checksum(file: Path, begin: int, size: int) -> str:
    """Return the checksum of a part of a file.

    It uses reads, which raise if the disk fails; with a memory map such a failure would end the process.
    """
    state, piece = xxhash.xxh3_64(), memoryview(bytearray(min(size, _PIECE)))
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        done = 0
        while done < size and (count := os.preadv(descriptor, [piece[: size - done]], begin + done)):
            state.update(piece[:count])
            done += count
    finally:
        os.close(descriptor)
    return state.hexdigest()
