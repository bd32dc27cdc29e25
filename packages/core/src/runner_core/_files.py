"""What the core's parts and the projects do with files."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import xxhash

from runner_core._errors import BadInput

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""`errno` of a write that found no room."""
_SPLITS = {"train": "train", "training": "train", "val": "validation", "validation": "validation", "test": "test"}
"""Names of folders, and the split that they say."""

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


def unique_keys(paths: Sequence[Path], root: Path, stem: Callable[[Path], str]) -> dict[Path, str]:
    """Keys of records: each file's `stem`, or its path below `root` where stems repeat."""
    count = Counter(map(stem, paths))

    def below(path: Path) -> str:
        return "__".join((*path.relative_to(root).parts[:-1], path.name.replace(".", "_")))

    return {path: stem(path) if count[stem(path)] == 1 else below(path) for path in paths}


def folder_split(path: Path, root: Path) -> str | None:
    """The split that a folder between `root` and a file says, the outermost one: train, validation or test.

    >>> folder_split(Path("data/Val/a.npz"), Path("data")), folder_split(Path("train/a.npz"), Path("train"))
    ('validation', None)
    """
    folders = (name.lower() for name in path.relative_to(root).parts[:-1])
    return next((_SPLITS[name] for name in folders if name in _SPLITS), None)


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

    >>> size_text(3_200_000_000), size_text(1e18)
    ('3.2 GB', '1000000.0 TB')
    """
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size:.0f} B"
