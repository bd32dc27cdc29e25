"""Writes results whole or not at all: into a hidden folder first, from which they are moved to their places.

A full disk or a kill in between leaves older files of the same names unchanged.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from runner_core.base.errors import BadInput
from runner_core.base.writing import flush, full_disk, lock, make_folder

_PREFIX = ".runner-writing-"

Write = Callable[[Path], Sequence[Path]]
"""Writes files into a folder, and returns them."""


def write_whole(out: Path, write: Write) -> list[Path]:
    """Return the files that `write` wrote, in `out`, with the sub-folders that it made.

    After an error none of them exists. A full disk raises OSError with its own message, even if the writer wrapped it.
    """
    with _folder(out) as temporary:
        try:
            written = write(temporary)
            files = sorted(path for path in temporary.rglob("*") if not path.is_dir())
            for file in files:
                flush(file)  # a file that does not fit is not moved over an older one
        except Exception as error:
            if full := full_disk(error):
                raise OSError(full.errno, full.strerror, str(out)) from error
            if isinstance(error, BadInput):  # name the file as the user knows it
                error.args = (str(error).replace(str(temporary), str(out)),)
            raise
        for file in files:
            place = out / file.relative_to(temporary)
            make_folder(place.parent)
            os.replace(file, place)
        for folder in {(out / file.relative_to(temporary)).parent for file in files}:
            flush(folder)
        return [_moved(path, temporary, out) for path in written]


def remove_leftovers(out: Path) -> None:
    """Remove the half-written folders of killed processes in `out`; running processes hold a lock."""
    for folder in out.glob(f"{_PREFIX}*"):
        with suppress(OSError), _open(folder) as descriptor:
            lock(descriptor, wait=False)
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _folder(out: Path) -> Iterator[Path]:
    """Yield a new hidden folder in `out`, so on the same disk, locked by this process; remove it afterwards."""
    try:
        temporary = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=out))
    except OSError as error:
        error.filename = str(out)  # the name that the user knows
        raise
    try:
        with _open(temporary) as descriptor:
            with suppress(OSError):  # a network file system may have no locks
                lock(descriptor, wait=False)
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
