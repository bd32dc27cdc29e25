"""Results that are there whole or not at all: written into a hidden folder first, then moved to their places.

A full disk or a kill in between leaves older files of the same names as they were.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from runner_core._errors import BadInput
from runner_core._files import flush, full_disk

_PREFIX = ".runner-writing-"

Write = Callable[[Path], Sequence[Path]]
"""Writes files into a folder; which."""


def write_whole(out: Path, write: Write) -> list[Path]:
    """The files that `write` wrote, in `out`, sub-folders as it made them. On an error none of them is there; a full
    disk is an OSError that says so, whatever the writer made of it."""
    with _folder(out) as temporary:
        try:
            written = write(temporary)
            files = sorted(path for path in temporary.rglob("*") if not path.is_dir())
            for file in files:
                flush(file)  # what finds no room is not moved over an older file
        except Exception as error:
            if full := full_disk(error):
                raise OSError(full.errno, full.strerror, str(out)) from error
            if isinstance(error, BadInput):  # it names the file as the user knows it
                error.args = (str(error).replace(str(temporary), str(out)),)
            raise
        for file in files:
            place = out / file.relative_to(temporary)
            place.parent.mkdir(parents=True, exist_ok=True)
            os.replace(file, place)
        return [_moved(path, temporary, out) for path in written]


def remove_leftovers(out: Path) -> None:
    """What killed processes left half-written in `out`; those at work hold a lock."""
    for folder in out.glob(f"{_PREFIX}*"):
        with suppress(OSError), _open(folder) as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _folder(out: Path) -> Iterator[Path]:
    """A new hidden folder in `out`, so on the same disk, locked by this process; gone afterwards."""
    try:
        temporary = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=out))
    except OSError as error:
        error.filename = str(out)  # the name that people know
        raise
    try:
        with _open(temporary) as descriptor:
            with suppress(OSError):  # a network's disk may have no locks
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def _open(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _moved(path: Path, temporary: Path, out: Path) -> Path:
    for base in (temporary, temporary.resolve()):
        if path.is_relative_to(base):
            return out / path.relative_to(base)
    return path
