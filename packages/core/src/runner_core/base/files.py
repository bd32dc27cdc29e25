"""Operations on files, and checks of sizes that files claim, before memory is taken for them."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import xxhash

from runner_core.base.errors import BadInput, OutOfSpace
from runner_core.base.resources import available_ram

Found = TypeVar("Found")

_SPLITS = {"train": "train", "training": "train", "val": "validation", "validation": "validation", "test": "test"}
"""Folder names, and the split that each names."""

_SPECIAL = {
    stat.S_IFIFO: "a named pipe (FIFO)",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}

_BLOCK = 1 << 22


def refuse_special_file(path: Path) -> Path:
    """Return `path`, or raise BadInput if it is a pipe, a socket or a device: reading one may never end.

    Call it before opening any file that a user named or that lies in a data folder. A folder, and a path that does not
    exist, pass: the reader's own message says what it needs.
    """
    try:
        kind = _SPECIAL.get(stat.S_IFMT(os.stat(path).st_mode))
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return path
        raise BadInput(f"{_shortened(path)} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise BadInput(f"{str(path)!r} is not a path, because it holds a NUL character; write it without") from error
    if kind is not None:
        raise BadInput(f"{path}: {kind}, not a file; copy its content into a file, or remove it")
    return path


def read_json(path: Path, read: Callable[[Any], Found | None], remedy: str) -> Found | None:
    """Return what `read` makes of a JSON file that the runner wrote, or None if there is no such file.

    `read` gets the content. If it returns None, or fails because a part is missing or of another kind, the file is
    damaged.

    Raises:
        BadInput: the file is damaged or cannot be read. The message ends with `remedy`.
    """
    try:
        found = read(json.loads(refuse_special_file(path).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        found = None
    if found is None:
        raise BadInput(f"{path} is damaged: it is not what the runner writes; {remedy}")
    return found


def refuse_full_folder(path: Path, remedy: str) -> None:
    """Raise BadInput, which ends with `remedy`, if the path is there and is not an empty folder."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise BadInput(f"{path} exists and is not an empty folder; {remedy}")


def is_own_file(path: Path, folder: Path) -> bool:
    """Return whether `path` is a plain file in `folder` or below it, where neither is a link that leads elsewhere.

    Only the folder that holds `folder` may be reached through links.
    """
    try:
        own = folder.parent.resolve() / folder.name / path.relative_to(folder)
        return stat.S_ISREG(path.lstat().st_mode) and path.resolve() == own
    except (OSError, ValueError):  # it is gone, outside, or no path
        return False


def _shortened(path: Path) -> str:
    text = str(path)
    return text if len(text) <= 300 else f"{text[:200]}…"


def hash_file(path: Path | str) -> str:
    """Return the xxh3_128 of a file's contents (32 hex digits)."""
    state = xxhash.xxh3_128()
    with open(refuse_special_file(Path(path)), "rb", buffering=0) as file:
        block = memoryview(bytearray(max(1, min(_BLOCK, os.fstat(file.fileno()).st_size))))
        while count := file.readinto(block):
            state.update(block[:count])
    return state.hexdigest()


def walk(root: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Yield each folder with the sorted names of its folders and of its files.

    Like `os.walk`, for data: links to folders are followed, but never back into a folder above. Hidden files and
    folders are left out. Folders that are removed from the list are not entered. A folder that cannot be read raises
    BadInput, so that no part of the data goes missing unnoticed.
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
    """Return a key for each record's file: its `stem`, or its path below `root` if stems repeat."""
    count = Counter(map(stem, paths))

    def below(path: Path) -> str:
        return "__".join((*path.relative_to(root).parts[:-1], path.name.replace(".", "_")))

    return {path: stem(path) if count[stem(path)] == 1 else below(path) for path in paths}


def split_of_folder(path: Path, root: Path) -> str | None:
    """Return the split that the outermost such folder between `root` and a file names: train, validation or test.

    >>> split_of_folder(Path("data/Val/a.npz"), Path("data")), split_of_folder(Path("train/a.npz"), Path("train"))
    ('validation', None)
    """
    folders = (name.lower() for name in path.relative_to(root).parts[:-1])
    return next((_SPLITS[name] for name in folders if name in _SPLITS), None)


def split_named(text: str, where: str) -> str:
    """Return train, validation or test, as named in a table's cell or in a part of a path.

    Raises BadInput that begins with `where`.

    >>> split_named("Val", "a.csv")
    'validation'
    """
    if text.lower() not in _SPLITS:
        raise BadInput(f"{where}: unknown split {text!r}: write one of {', '.join(_SPLITS)}.")
    return _SPLITS[text.lower()]


def size_text(size: float) -> str:
    """Return bytes as people read them.

    >>> size_text(3_200_000_000), size_text(1e18)
    ('3.2 GB', '1000000.0 TB')
    """
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size:.0f} B"


_DEFLATE = 1100
"""Most bytes that one byte can unpack to by deflate (zip, gzip)."""


def refuse_long_file(path: Path, most: int, what: str) -> Path:
    """Return `path`, or raise BadInput if it is longer than `what` ("a table") ever is, or not a file.

    Raises OSError if nothing exists there.
    """
    refuse_length(str(path), refuse_special_file(path).stat().st_size, most, what)
    return path


def refuse_length(where: str, size: int, most: int, what: str) -> None:
    """Raise BadInput if a file of `size` bytes is longer than `what` ("a table") ever is."""
    if size > most:
        raise BadInput(f"{where}: {size_text(size)}; {what} takes at most {size_text(most)}. Is it another file?")


def refuse_impossible_size(path: Path, what: str, promised: int, stored: int, packed: bool) -> None:
    """Raise BadInput if `what` ("its header") promises more bytes than `stored` ones can hold.

    `packed`: they may be compressed, by deflate.
    """
    if promised > stored * (_DEFLATE if packed else 1):
        raise BadInput(
            f"{path}: truncated or damaged: {what} promises {size_text(promised)}, which the {size_text(stored)} that "
            "are there cannot hold. Copy or write it again."
        )


def refuse_if_memory_is_short(path: Path, what: str, needed: int, remedy: str) -> None:
    """Raise OutOfSpace if `needed` bytes are more than is free. Call it before memory is taken.

    `what` is the subject with its verb ("256 × 256 voxels take"); `remedy` is advice in whole sentences.
    """
    if needed > (free := available_ram()):
        raise OutOfSpace(f"{path}: {what} {size_text(needed)} of memory, and {size_text(free)} are free. {remedy}")
