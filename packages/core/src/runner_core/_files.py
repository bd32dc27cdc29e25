"""What the cache and the checkpoints both do with files."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import xxhash

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""`errno` of a write that found no room."""

_BLOCK = 1 << 22


def hash_file(path: Path | str) -> str:
    """xxh3_128 of a file's contents (32 hex digits)."""
    state = xxhash.xxh3_128()
    block = memoryview(bytearray(_BLOCK))
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(block):
            state.update(block[:count])
    return state.hexdigest()


def flush(path: Path) -> None:
    """fsync a file or a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def size_text(size: float) -> str:
    """Bytes as people read them.

    >>> size_text(3_200_000_000)
    '3.2 GB'
    """
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size:.0f} B"
