"""Write files and folders so that a kill or a loss of power leaves them whole or as they were, and lock them."""

from __future__ import annotations

import csv
import errno
import fcntl
import hashlib
import io
import json
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from runner_core.base.secrets import without_secrets

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""`errno` of a write that found no space."""
_NO_FLUSH = (errno.EACCES, errno.EPERM, errno.EINVAL, errno.EOPNOTSUPP, errno.EBADF)


# ------------------------------------------------------------ to the disk


def flush(path: Path) -> None:
    """Flush a file with fsync, or a folder: the names in it, not the contents of its files.

    A folder that cannot be flushed (another user's, or on a file system that does not support it) is skipped.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in _NO_FLUSH or not path.is_dir():
            raise


def flush_all(path: Path) -> None:
    """Flush a file with fsync, or a folder with everything in it."""
    for inside in [*path.rglob("*"), path]:
        flush(inside)


def make_folder(path: Path) -> None:
    """Make a folder, with those above it, that survives a loss of power; it may exist already."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        flush(folder.parent)


def move(source: Path, target: Path) -> None:
    """Rename a file or folder, which is flushed already; the new name survives a loss of power."""
    os.replace(source, target)
    flush(target.parent)


# ------------------------------------------------------------ whole or not at all


def _own_word() -> str:
    """Return digits for temporary names that no other process has, on whatever machine: process ids repeat there.

    Leftovers of killed processes are known by digits in this place.
    """
    return str(int.from_bytes(os.urandom(6), "big"))


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a hidden path beside `path` to write, renamed to `path` at the end, removed after an error.

    The hidden name keeps the suffixes, by which libraries choose a format. An OSError names `path`, which is the name
    that the user knows.
    """
    temporary = path.with_name(f".{_own_word()}.{path.name}")
    try:
        yield temporary
        flush(temporary)
        move(temporary, path)
    except OSError as error:
        if error.errno is not None:  # else the message is all it says
            error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Yield a hidden folder beside `folder` to write into, renamed to `folder` at the end, removed after an error.

    `folder` must be empty or not exist.
    """
    temporary = folder.with_name(f".{folder.name}.{_own_word()}")
    try:
        temporary.mkdir(parents=True)
        yield temporary
        flush_all(temporary)
        move(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def replace_text(path: Path, text: str) -> None:
    """Write a file whole or not at all; bytes of a file name that are not text are escaped, as in JSON."""
    with whole_file(path) as temporary:
        temporary.write_bytes(text.encode(errors="backslashreplace"))


def replace_json(path: Path, value: Any) -> None:
    """Write `json_text` of a value, whole or not at all."""
    replace_text(path, json_text(value) + "\n")


def replace_csv(path: Path, rows: Iterable[Sequence[Any]]) -> None:
    """Write a table, the column names first, whole or not at all."""
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    replace_text(path, text.getvalue())


def write_once(path: Path, text: str) -> None:
    """Write a file whole unless it exists. Of several processes that call this at once, one writes."""
    own = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    try:
        own.write_text(text, encoding="utf-8")
        flush(own)
        with suppress(FileExistsError):
            os.link(own, path)
            flush(path.parent)
    finally:
        own.unlink(missing_ok=True)


def append_line(path: Path, line: str) -> None:
    """Append a line in one write and flush it. Several processes may append to one file."""
    data = f"{line}\n".encode()
    with path.open("ab", buffering=0) as file:
        new = file.tell() == 0
        if file.write(data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    flush(path)
    if new:
        flush(path.parent)


def json_text(value: Any) -> str:
    """Return standard JSON (no NaN) from values that may hold NumPy scalars and paths."""
    return json.dumps(to_json(value), indent=1, ensure_ascii=False, allow_nan=False)


def to_json(value: Any) -> Any:
    """Return `value` as plain JSON values.

    NumPy scalars and arrays, tuples and paths become plain, values that are not finite become None, and passwords are
    taken out of URLs.
    """
    if isinstance(value, Mapping):
        return {without_secrets(str(k)): to_json(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(v) for v in value]
    if hasattr(value, "tolist"):  # a NumPy scalar or array
        return to_json(value.tolist())
    if isinstance(value, float) and value - value != 0:
        return None
    return without_secrets(str(value)) if isinstance(value, (str, Path)) else value


def full_disk(error: BaseException) -> OSError | None:
    """Return the error of a full disk that `error` is or came from, else None.

    Libraries wrap it in their own errors, or only mention its number in the text (safetensors: "os error 28", HDF5:
    "errno = 28").
    """
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        if isinstance(cause, OSError) and cause.errno in NO_SPACE:
            return cause
        number = re.search(r"\b(?:os error|errno =) (\d+)", str(cause))
        if number and int(number[1]) in NO_SPACE:
            return OSError(int(number[1]), os.strerror(int(number[1])))
        seen.add(id(cause))
        cause = cause.__cause__ or cause.__context__
    return None


# ------------------------------------------------------------ locks


_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
"""`errno` of a lock on a file system that has none, as some network disks are mounted."""
LONG_AGO = 86400.0
"""Seconds after which nobody writes any more into a folder that nobody has touched."""


def host_word() -> str:
    """Return 12 hexadecimal digits that stand for this machine in temporary names."""
    return hashlib.blake2b(platform.node().encode(), digest_size=6).hexdigest()


def untouched(folder: Path, seconds: float) -> bool:
    """Return True if nothing in the folder has changed for so long, by the clock of its own disk."""
    with tempfile.TemporaryFile(dir=folder.parent) as now:
        newest = max((os.lstat(path).st_mtime for path in [folder, *folder.rglob("*")]), default=0.0)
        return os.fstat(now.fileno()).st_mtime - newest > seconds


def has_no_locks(error: OSError) -> bool:
    """Return True for the error of a lock on a file system without locks."""
    return error.errno in _NO_LOCKS


def lock(descriptor: int, *, shared: bool = False, wait: bool = True) -> None:
    """Lock an open file or folder until it is closed, or the process ends.

    Raises BlockingIOError if `wait` is False and another process holds the lock, and OSError on a file system without
    locks.
    """
    fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))


def unlock(descriptor: int) -> None:
    """Release the lock of a file that stays open."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)


def is_locked(path: Path) -> bool:
    """Return True if a process holds a lock on the file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        lock(descriptor, wait=False)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)


@contextmanager
def locked(file: Path, *, wait: bool = True, busy: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the lock `file`, which is made if it is missing; the lock of a killed process is free.

    On a disk without locks, the file `FILE.held` stands for it, with the holder's host and process in it. What a killed
    process left of it is removed by the next one on the same machine, but not by another machine.
    If another process holds it, `busy` is called, and then this one waits. Without `wait` it raises BlockingIOError.
    """
    from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

    held: BaseFileLock = FileLock(file)
    try:
        try:
            held.acquire(timeout=0)
        except (NotImplementedError, OSError) as error:
            if isinstance(error, Timeout) or (isinstance(error, OSError) and not has_no_locks(error)):
                raise
            held = SoftFileLock(f"{file}.held")
            held.acquire(timeout=0)
    except Timeout:
        if not wait:
            raise BlockingIOError(errno.EAGAIN, "another process holds the lock", held.lock_file) from None
        busy()
        held.acquire()
    try:
        yield
    finally:
        held.release()
