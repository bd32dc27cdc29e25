"""Digests of the content of records' files, remembered by path, size and time of change.

A record's identity is the xxh3 (128 bit) of its roles, their files' contents and its values, not of their location: a
data set moved to another disk is the same data set.
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import xxhash

from runner_core.base.errors import BadInput
from runner_core.base.files import hash_file
from runner_core.base.location import Url
from runner_core.contract import Json
from runner_core.contract.records import AnyRecord, Record
from runner_core.contract.values import Scalar
from runner_core.data.columns import SomeDigests
from runner_core.data.table import Local, local_files


class FileMark(NamedTuple):
    """A file at the time when its content was hashed."""

    path: str
    size: int
    mtime_ns: int
    digest: str


class Known(NamedTuple):
    """A record's identity and the files it was made from."""

    identity: str
    marks: Sequence[FileMark]


def digest_json(value: Json) -> str:
    """Return 32 hex digits for a JSON value, independent of the order of keys."""
    return xxhash.xxh3_128_hexdigest(_json(value).encode())


def digest_lists(*values: Sequence[str] | Mapping[str, Json]) -> str:
    """Return `digest_json` of a list of long lists of text and of mappings, without making its JSON at once."""
    digest = xxhash.xxh3_128()
    for number, value in enumerate(values):
        digest.update(b"," if number else b"[")
        if isinstance(value, Mapping):
            digest.update(_json(value).encode())
            continue
        for place, text in enumerate(value):
            digest.update(f"{',' if place else '['}{_quoted(text)}".encode())
        digest.update(b"]" if len(value) else b"[]")
    digest.update(b"]")
    return digest.hexdigest()


def identify(record: Record) -> Known:
    """Read and hash every file of a record; raise BadInput with the name of a file that cannot be read."""
    marks, content = [], list[_Role]()
    for role, place in _roles(*_local(record)):
        content.append((role, []))
        for name, path, _ in _files(place, _stat(place)):
            try:
                before = os.stat(path)
                marks.append(FileMark(path, before.st_size, before.st_mtime_ns, hash_file(Path(path))))
            except OSError as error:
                raise BadInput(f"{record.key}: {path} cannot be read: {error.strerror}") from error
            content[-1][1].append((name, path, marks[-1]))
    return Known(_identity(content, record.values), marks)


def unchanged(marks: Iterable[FileMark]) -> bool:
    """Return True if the files have the size and time of change that they had when they were hashed."""
    return all(_as_marked(_stat(mark.path), mark) for mark in marks)


def source_bytes(record: Record) -> int:
    """Return the total size of a record's files; missing files count as 0."""
    files = chain.from_iterable(_files(path, _stat(path)) for _, path in _roles(*_local(record)))
    return sum(now.st_size for _, _, now in files if now is not None)


class Identities:
    """Index of remembered digests: one SQLite file, safe for several processes.

    It only saves time: if it cannot be read or written, files are hashed again.
    """

    def __init__(self, root: Path) -> None:
        self._path = root / "identities.sqlite"

    def lookup(self, records: Sequence[Record]) -> list[Known | None]:
        """Return what is known of each record, or None if its files changed since they were last hashed."""
        return [
            found
            and Known(_identity(*found), [FileMark(path, *row[1:]) for _, own in found[0] for _, path, row in own])
            for found in self._found(records, main=False)
        ]

    def identities(self, records: Sequence[Record], *, main: bool = False) -> SomeDigests:
        """Return each record's identity, None where `lookup` does; of many records this takes 16 bytes each.

        `main` gives that of each record's first file alone, without the record's values; None for a record without one.
        """
        return SomeDigests(found and _identity(*found) for found in self._found(records, main))

    def _found(self, records: Sequence[Record], main: bool) -> Iterator[_Found | None]:
        """Yield what each record is made of; if the index cannot be read to its end, the rest is unknown."""
        done = 0
        if self._path.is_file():
            with suppress(sqlite3.Error), closing(self._connect("ro")) as database:
                each, stats = local_files(records), _Stats()
                while some := list(islice(each, _TOGETHER)):
                    if main:
                        some = [(files[:1], {}) for files, _ in some]
                    found = list(_look_up(database, some, stats))
                    yield from ((own if own and own[0] else None) for own in found) if main else found
                    done += len(found)
        yield from repeat(None, len(records) - done)

    def remember(self, marks: Iterable[FileMark]) -> None:
        try:
            with closing(self._connect("rwc")) as database, database:
                database.execute(
                    "CREATE TABLE IF NOT EXISTS files (path TEXT PRIMARY KEY, size INT, mtime_ns INT, digest TEXT)"
                )
                rows = ((_name(mark.path), *mark[1:]) for mark in marks)
                database.executemany("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?)", rows)
        except sqlite3.Error:
            return  # a full or read-only disk: the next start hashes again

    def _connect(self, mode: str) -> sqlite3.Connection:
        return sqlite3.connect(f"file:{quote(os.fsencode(self._path))}?mode={mode}", uri=True, timeout=30)


def whole_digests(index: Identities, records: Sequence[AnyRecord]) -> dict[str, str]:
    """Return by record key a digest of all that a record is: the contents of its files, labels too, and its fields.

    Files not hashed before are read and remembered. A file that cannot be read has no content.
    """
    found = {}
    for record in records:
        urls = [(role, at.text, at.size, at.etag) for role, at in record.files.items() if isinstance(at, Url)]
        here = replace(record, files={role: at for role, at in record.files.items() if not isinstance(at, Url)})
        (known,) = index.lookup([here])
        if known is None:
            with suppress(BadInput):  # reported when the record is read
                known = identify(here)
                index.remember(known.marks)
        fields = repr(replace(record, files={}))  # those of a project's own kind of record too
        found[record.key] = digest_json([None if known is None else known.identity, urls, fields])
    return found


def _name(path: str) -> str | bytes:
    """Return a path as the index stores it: as bytes if it is not valid text."""
    if path.isascii():
        return path
    name = os.fsencode(path)
    try:
        return name.decode()
    except UnicodeDecodeError:
        return name


def _identity(content: Iterable[_Role], values: Mapping[str, Scalar]) -> str:
    """Return the `digest_json` of {role: [[name, digest], …]}, roles in order; with values, of a list of both."""
    roles = []
    for role, files in content:
        own = ",".join([f"[{_quoted(name)},{_quoted(row[3])}]" for name, _, row in files])
        roles.append(f"{_quoted(role)}:[{own}]")
    text = f"{{{','.join(roles)}}}"
    if values:
        text = f"[{text},{_json(dict(values))}]"
    return xxhash.xxh3_128_hexdigest(text.encode())


_quoted = json.encoder.encode_basestring_ascii


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)


def _text(path: Path) -> str:
    """Return a path as Python shows it with UTF-8 file names, whatever encoding this process uses."""
    return os.fsencode(path).decode("utf-8", "surrogateescape")


def _local(record: Record) -> Local:
    return [(role, str(path)) for role, path in record.files.items()], record.values


def _roles(files: Sequence[Sequence[str]], _: Any = None) -> list[tuple[str, str]]:
    """Return roles and absolute paths, in the order of the roles."""
    found = [(role, os.path.normpath(path) if path[:1] == "/" else os.path.abspath(path)) for role, path in files]
    return found if len(found) < 2 else sorted(found)


def _files(path: str, found: os.stat_result | None) -> Sequence[tuple[str, str, os.stat_result | None]]:
    """Return name, path and stat of the files of a folder, or of the file itself, of which this stat was found."""
    if found is None or not stat.S_ISDIR(found.st_mode):
        return ((".", path, found),)
    below = files_below(Path(path))
    return [(_text(file.relative_to(path)), str(file), _stat(str(file))) for file in below]


def files_below(path: Path) -> list[Path]:
    """Return the files of a folder, sorted, or the file itself.

    Pipes, sockets and devices are included, so that the caller refuses them.
    """
    return sorted(p for p in path.rglob("*") if p.exists() and not p.is_dir()) if os.path.isdir(path) else [path]


_Row = Sequence[Any]
"""A file as the index has it: path (as `_name` gives it), size, time of change, digest."""
_Role = tuple[str, list[tuple[str, str, _Row]]]
"""A role, and its files: name below the role's path (".": that itself), path, row."""
_Found = tuple[Sequence[_Role], Mapping[str, Scalar]]
"""What a record is made of: its roles in their order, and its values."""


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:
        return None


def _as_marked(now: os.stat_result | None, row: _Row) -> bool:
    return now is not None and now.st_size == row[1] and now.st_mtime_ns == row[2]


class _Stats:
    """Asks for the stat of many files, by many threads if the disk answers slowly."""

    _SLOW = 50e-6
    """Seconds for a file from which on threads ask; those of a local disk take a few microseconds."""
    _THREADS = 32

    def __init__(self) -> None:
        self._slow = False

    def __call__(self, paths: Sequence[str]) -> list[os.stat_result | None]:
        if self._slow:
            each = math.ceil(len(paths) / self._THREADS)
            parts = [paths[first : first + each] for first in range(0, len(paths), each)]
            with ThreadPoolExecutor(self._THREADS) as threads:
                return list(chain.from_iterable(threads.map(lambda part: list(map(_stat, part)), parts)))
        begun = time.perf_counter()
        found = list(map(_stat, paths))
        self._slow = time.perf_counter() - begun > self._SLOW * max(_LEAST, len(paths))
        return found


_TOGETHER, _LEAST, _VARIABLES = 512, 256, 900
"""Records that are looked up together, fewest files that tell whether a disk is slow, and values of one SQL query."""


def _look_up(database: sqlite3.Connection, some: Sequence[Local], stats: _Stats) -> Iterator[_Found | None]:
    """Yield what records are made of; None if a file is not in the index or was changed."""
    roles = [place for files, _ in some for place in _roles(files)]
    below = list(map(_files, [path for _, path in roles], stats([path for _, path in roles])))
    rows = iter(_rows(database, [_name(path) for own in below for _, path, _ in own]))
    places = iter(zip(roles, below, strict=True))
    for files, values in some:
        content, known = list[_Role](), True
        for (role, _), own in islice(places, len(files)):
            marked = []
            for (name, path, now), row in zip(own, rows, strict=False):
                if row is not None and _as_marked(now, row):
                    marked.append((name, path, row))
                else:
                    known = False
            content.append((role, marked))
        yield (content, values) if known else None


def _rows(database: sqlite3.Connection, names: Sequence[str | bytes]) -> list[_Row | None]:
    found: dict[str | bytes, _Row] = {}
    for first in range(0, len(names), _VARIABLES):
        wanted = names[first : first + _VARIABLES]
        query = f"SELECT path, size, mtime_ns, digest FROM files WHERE path IN ({','.join('?' * len(wanted))})"
        for row in database.execute(query, wanted):
            found[row[0]] = row
    return [found.get(name) for name in names]
