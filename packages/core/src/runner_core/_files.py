"""What the core's parts and the projects do with files."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import xxhash

from runner_core._errors import BadInput

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


def walk(root: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Folder, names of its folders (shorten the list and those are not entered), names of its files; each sorted.

    As `os.walk`, for data: links to folders are followed, but never back into a folder above; hidden files and folders
    are left out; a folder that cannot be read is BadInput rather than a part of the data that is missing unnoticed.
    """

    def refuse(error: OSError) -> None:
        raise BadInput(
            f"{error.filename}: this folder cannot be read: {error.strerror}; make it readable, or move it elsewhere"
        ) from error

    marks: dict[Path, tuple[int, int]] = {}
    for place, folders, names in os.walk(root, followlinks=True, onerror=refuse):
        folder = Path(place)
        stat = folder.stat()
        marks[folder] = (stat.st_dev, stat.st_ino)
        if any(marks.get(above) == marks[folder] for above in folder.parents):
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield folder, folders, sorted(name for name in names if not name.startswith("."))


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A hidden folder beside `folder` to write into, renamed to it at the end; on an error it is gone.

    `folder` is empty, or not there.
    """
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        temporary.mkdir(parents=True)
        yield temporary
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def flush(path: Path) -> None:
    """fsync a file or a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def full_disk(error: BaseException) -> OSError | None:
    """The error of a disk without room that `error` is or came from: libraries wrap it in their own, or only tell its
    number in the text (safetensors: "os error 28", HDF5: "errno = 28")."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        if isinstance(cause, OSError) and cause.errno in NO_SPACE:
            return cause
        told = re.search(r"\b(?:os error|errno =) (\d+)", str(cause))
        if told and int(told[1]) in NO_SPACE:
            return OSError(int(told[1]), os.strerror(int(told[1])))
        seen.add(id(cause))
        cause = cause.__cause__ or cause.__context__
    return None


def size_text(size: float) -> str:
    """Bytes as people read them.

    >>> size_text(3_200_000_000)
    '3.2 GB'
    """
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size:.0f} B"
