"""Files at URLs: seen to have changed, and fetched into temporary files that any project's `decode` can read."""

from __future__ import annotations

import atexit
import dataclasses
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from runner_core.base.errors import BadInput, OutOfSpace
from runner_core.base.files import size_text
from runner_core.base.location import Url
from runner_core.base.text import counted
from runner_core.base.writing import full_disk, lock
from runner_core.contract.records import AnyRecord, Record
from runner_core.data.stream.client import remote_client
from runner_core.data.stream.marks import changed
from runner_core.data.table import RecordTable, tabled, unmarked

if TYPE_CHECKING:
    from runner_core.config import RemoteConfig


_IN_MEMORY = Path("/dev/shm")
_ROOM = 16
"""Memory is used if it has room for this many times the files, because other records are fetched at the same time."""


@contextmanager
def localised(record: AnyRecord, remote: RemoteConfig) -> Iterator[Record]:
    """Give the record with its files at URLs fetched, all at once, into temporary files with the same suffixes.

    The files are removed after the with-block. Raises Unreachable for a file that cannot be read. BadInput raised in
    the block about a temporary file names its URL instead.
    """
    urls = {role: place for role, place in record.files.items() if isinstance(place, Url)}
    if not urls:
        yield record
        return

    contents = remote_client(remote).buffers(list(urls.values()))
    with _folder(sum(map(len, contents))) as folder:
        paths = {role: folder / f"{n}-{url.name[-60:]}" for n, (role, url) in enumerate(urls.items())}
        _write(paths.values(), contents)
        try:
            yield dataclasses.replace(record, files={**record.files, **paths})
        except (BadInput, OSError) as error:
            message = str(error)
            for role, path in paths.items():
                message = message.replace(str(path), str(urls[role]))
            if message == str(error):
                raise
            raise BadInput(message) from error


def _write(paths: Iterable[Path], contents: Iterable[memoryview]) -> None:
    for path, data in zip(paths, contents, strict=True):
        try:
            path.write_bytes(data)
        except OSError as error:
            if full_disk(error) is None:
                raise
            raise OutOfSpace(
                f"{path.parent}: no room for {size_text(len(data))} of a file that was fetched: free some, or set the "
                "environment variable TMPDIR to a folder that has it"
            ) from error


@contextmanager
def _folder(size: int) -> Iterator[Path]:
    """Give an empty folder for files of `size` bytes in total: in memory if it has much room, else on disk."""
    roomy = os.access(_IN_MEMORY, os.W_OK) and shutil.disk_usage(_IN_MEMORY).free > _ROOM * size
    own = _of_this_process(_IN_MEMORY if roomy else Path(tempfile.gettempdir()), os.getpid())
    folder = Path(tempfile.mkdtemp(dir=own))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@cache
def _of_this_process(place: Path, pid: int) -> Path:
    """Return a folder of this process, after removing those of killed processes.

    Beside each folder lies a file that its process keeps locked as long as it lives.
    """
    parent = place / f"runner-files-{os.getuid()}"
    parent.mkdir(mode=0o700, exist_ok=True)
    there = parent.lstat()
    if not stat.S_ISDIR(there.st_mode) or there.st_uid != os.getuid():
        raise BadInput(
            f"{parent} is not a folder, or belongs to another user: remove it, or set the environment variable TMPDIR"
        )
    with open(parent / "lock", "w") as guard:
        lock(guard.fileno())  # so that no process sees a folder before its file is locked
        for leftover in parent.glob("*.lock"):
            with suppress(OSError), open(leftover) as held:
                lock(held.fileno(), wait=False)
                shutil.rmtree(leftover.with_suffix(""), ignore_errors=True)
                leftover.unlink()
        own = Path(tempfile.mkdtemp(prefix=f"{pid}-", dir=parent))
        descriptor = os.open(own.with_suffix(".lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        lock(descriptor)  # until the process ends
    atexit.register(_remove, own)
    return own


def _remove(own: Path) -> None:
    shutil.rmtree(own, ignore_errors=True)
    own.with_suffix(".lock").unlink(missing_ok=True)


def marked(
    records: Sequence[AnyRecord], remote: RemoteConfig, root: Path, say: Callable[[str], None]
) -> Sequence[AnyRecord]:
    """Return the records with size and etag of their files at URLs, requested if a manifest does not give them.

    The cache and a running training identify a file's content by these values: a file that was replaced is fetched
    anew, or refused. `say` receives messages about files that changed since they were last used, and about those whose
    changes cannot be detected. `root` is the folder of the caches. Raises Unreachable.
    """
    if unknown := unmarked(records):
        found = dict(zip(unknown, remote_client(remote).describe(unknown), strict=True))
        described = (
            replace(record, files={role: found.get(place, place) for role, place in record.files.items()})
            for record in records
        )
        records = tabled(described) if isinstance(records, RecordTable) else list(described)
    if silent := unmarked(records):
        say(f"NOTE: changes of {counted(len(silent), 'file')} would not be seen, {silent[0]} for one: no server says "
            "when they were changed")  # fmt: skip
    marks = records.marks if isinstance(records, RecordTable) else None
    count, one = changed(root, lambda: _etags(records), None if marks is None else marks.files)
    if count:
        say(f"NOTE: {counted(count, 'file')} changed since the last use, {Url(one)} for one: fetched anew")
    return records


def _etags(records: Sequence[AnyRecord]) -> Iterator[tuple[str, str]]:
    """Yield address and etag of the files at URLs that have one; a file of several records comes again."""
    if isinstance(records, RecordTable):
        for part, numbers in records.in_parts():
            if part.urls is None:
                yield from _etags(records[numbers.start : numbers.stop])
                continue
            for urls in part.urls.values():
                yield from ((text, etag) for text, etag in zip(urls.texts, urls.etags, strict=True) if etag is not None)
        return
    for record in records:
        for at in record.files.values():
            if isinstance(at, Url) and at.etag is not None:
                yield at.text, at.etag
