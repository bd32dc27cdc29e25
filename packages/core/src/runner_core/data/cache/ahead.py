"""Records that `cache build` has prepared ahead, one file each, until all are there and become one cache.

    <cache.dir>/<project>/<pipeline settings>/.ahead/<2 digits>/<record>

A file is there whole or not at all, and its name says which record it holds, of which contents. So it does not matter
which process wrote it, or into how many parts the work was divided: whoever builds the cache takes what is there.
Processes that write hold a shared lock on the folder.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from runner_core.base.errors import DataErrors, OutOfSpace
from runner_core.base.files import size_text
from runner_core.base.progress import progress
from runner_core.base.writing import lock, make_folder, whole_file
from runner_core.contract import Array, Arrays, Json, Pipeline
from runner_core.contract.records import AnyRecord
from runner_core.data.cache.build import Part, Prepare, Task, as_bytes, run_all
from runner_core.data.cache.folder import Checksums, Say, unwritable
from runner_core.data.cache.identity import FileMark, Identities, Known, digest_json

NAME = ".ahead"
_SECONDS_TO_NOTE = 0.5
"""Seconds between two notes of which records are prepared. A killed process prepares later ones again."""


class Ahead:
    """The records that are prepared ahead below the folder of one pipeline's settings."""

    def __init__(self, parent: Path) -> None:
        self.folder = parent / NAME

    def file(self, key: str, identity: str) -> Path:
        """Return the file of a record, which may not exist."""
        name = digest_json([key, identity])[:24]
        return self.folder / name[:2] / name

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Keep `prune` away while records are written."""
        make_folder(self.folder)
        (self.folder.parent / "build.lock").touch()  # by which `runner cache` finds the folder
        with _locked(self.folder, shared=True):
            yield

    def files(self) -> list[Path]:
        """Return the files of all records."""
        return [file for file in self.folder.glob("??/*") if file.name[0] != "."]

    def discard(self, files: Iterable[Path]) -> None:
        """Remove records that a cache holds now, and if no other is left, what killed processes left."""
        for file in files:
            file.unlink(missing_ok=True)
        with suppress(OSError), _locked(self.folder, shared=False):  # another process writes
            if not self.files():
                shutil.rmtree(self.folder, ignore_errors=True)

    def remove(self) -> str:
        """Remove everything, or return why not."""
        try:
            with _locked(self.folder, shared=False):
                shutil.rmtree(self.folder, ignore_errors=True)
        except BlockingIOError:
            return "a process prepares records"
        except OSError as error:
            return error.strerror or str(error)
        return ""


class PrepareAhead(Prepare):
    """Work of a process: like `Prepare`, but what it prepares stays in the folder of an `Ahead`."""

    def keep(
        self, number: int, record: AnyRecord, known: Known, meta: Mapping[str, Json], arrays: Arrays
    ) -> Mapping[str, Part]:
        assert self.folder is not None
        file = Ahead(self.folder.parent).file(record.key, known.identity)
        make_folder(file.parent)
        head = {"key": record.key, "identity": known.identity, "meta": meta, "checksum": _checksum(arrays)}
        head["arrays"] = {name: [array.dtype.str, array.shape] for name, array in arrays.items()}
        with whole_file(file) as temporary, temporary.open("wb", buffering=0) as out:
            for content in (memoryview(json.dumps(head).encode() + b"\n"), *map(as_bytes, arrays.values())):
                while content:  # one write may take less than all
                    content = content[out.write(content) :]
        return {}


class Found(NamedTuple):
    """The arrays of a record, and what `decode` said of it."""

    arrays: Arrays
    meta: Mapping[str, Json]


def prepare_ahead(
    parent: Path,
    pipeline: Pipeline,
    tasks: Sequence[Task],
    processes: int,
    space: tuple[int, int],
    index: Identities,
    say: Say,
) -> None:
    """Prepare records, each into a file of its own.

    `space` holds the bytes of these files and of the cache that is made of them. Raises OutOfSpace, BadInput (folder
    not writable), or DataErrors, after all records that are sound.
    """
    ahead, errors = Ahead(parent), list[str]()
    noted, marks = time.monotonic(), list[FileMark]()
    try:
        with (
            ahead.writing(),
            run_all(PrepareAhead(pipeline, ahead.folder), tasks, processes) as outcomes,
            progress("preparing records", len(tasks), say) as advance,
        ):
            _refuse_full_disk(parent, *space)
            for outcome in outcomes:
                if outcome.full:
                    raise _full_disk(parent, *space)
                errors += [outcome.error] if outcome.error else []
                marks += outcome.known.marks if outcome.known else ()
                if time.monotonic() - noted > _SECONDS_TO_NOTE:
                    index.remember(marks)
                    noted, marks = time.monotonic(), []
                advance()
    except OSError as error:
        raise unwritable(parent, error) from error
    finally:
        index.remember(marks)
    if errors:
        raise DataErrors(errors)


def _refuse_full_disk(parent: Path, ahead: int, cache: int) -> None:
    if shutil.disk_usage(parent).free < ahead + cache:
        raise _full_disk(parent, ahead, cache)


def _full_disk(parent: Path, ahead: int, cache: int) -> OutOfSpace:
    free = shutil.disk_usage(parent).free
    return OutOfSpace(
        f"the disk of {parent} is too small: records that are prepared ahead take {size_text(ahead)} until the cache "
        f"is built, the cache takes {size_text(cache)}, and {size_text(free)} are free; set cache.dir to a larger "
        "disk, or leave it to `train`, which needs space for the cache alone"
    )


def read_ahead(file: Path) -> Found | None:
    """Return what a file holds; None if it is damaged or gone, and then it is prepared anew."""
    try:
        with file.open("rb") as content:
            head = json.loads(content.readline())
            arrays = {name: _array(content, *outline) for name, outline in head["arrays"].items()}
        return Found(arrays, head["meta"]) if _checksum(arrays) == head["checksum"] else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _array(content: Any, dtype: str, shape: list[int]) -> Array:
    kind = np.dtype(dtype)
    if kind.hasobject:
        raise ValueError("arrays have numbers")
    return np.fromfile(content, kind, int(np.prod(shape, dtype=np.int64))).reshape(shape)


def _checksum(arrays: Arrays) -> str:
    sums = Checksums()
    for array in arrays.values():
        sums.update(as_bytes(array))
    return sums.text()


@contextmanager
def _locked(folder: Path, *, shared: bool) -> Iterator[None]:
    """Hold a lock on a folder. Raises BlockingIOError if others hold one that excludes it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            lock(descriptor, shared=shared, wait=False)
        except BlockingIOError:
            raise
        except OSError:  # a network file system may have no locks
            pass
        yield
    finally:
        os.close(descriptor)
