"""Digests of the content of records' files, remembered by path, size and time of change.

A record's identity is the xxh3 (128 bit) of its roles, their files' contents and its values, not of their location: a
data set moved to another disk is the same data set.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import xxhash

from runner_core.base.errors import BadInput
from runner_core.base.files import hash_file
from runner_core.base.location import Url
from runner_core.contract import Json
from runner_core.contract.records import AnyRecord, Record


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
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return xxhash.xxh3_128_hexdigest(text.encode())


def digest_lists(*values: Sequence[str] | Mapping[str, Json]) -> str:
    """Return `digest_json` of a list of long lists of text and of mappings, without making its JSON at once."""
    digest = xxhash.xxh3_128()
    for number, value in enumerate(values):
        digest.update(b"," if number else b"[")
        if isinstance(value, Mapping):
            digest.update(json.dumps(value, sort_keys=True, separators=(",", ":"), default=str).encode())
            continue
        for place, text in enumerate(value):
            digest.update(f"{',' if place else '['}{json.encoder.encode_basestring_ascii(text)}".encode())
        digest.update(b"]" if len(value) else b"[]")
    digest.update(b"]")
    return digest.hexdigest()


def identify(record: Record) -> Known:
    """Read and hash every file of a record; raise BadInput with the name of a file that cannot be read."""
    marks = []
    for path in _files(record):
        try:
            before = os.stat(path)
            marks.append(FileMark(str(path), before.st_size, before.st_mtime_ns, hash_file(path)))
        except OSError as error:
            raise BadInput(f"{record.key}: {path} cannot be read: {error.strerror}") from error
    return _known(record, marks)


def unchanged(marks: Iterable[FileMark]) -> bool:
    """Return True if the files have the size and time of change that they had when they were hashed."""
    return all(_stat(Path(m.path)) == (m.size, m.mtime_ns) for m in marks)


def _known(record: Record, marks: Sequence[FileMark]) -> Known:
    digests = {m.path: m.digest for m in marks}
    content = {
        role: [(_text(file.relative_to(path)), digests[str(file)]) for file in files_below(path)]
        for role, path in sorted(_absolute(record).items())
    }
    return Known(digest_json([content, dict(record.values)] if record.values else content), marks)


def source_bytes(record: Record) -> int:
    """Return the total size of a record's files; missing files count as 0."""
    return sum(stat[0] for path in _files(record) if (stat := _stat(path)))


class Identities:
    """Index of remembered digests: one SQLite file, safe for several processes.

    It only saves time: if it cannot be read or written, files are hashed again.
    """

    def __init__(self, root: Path) -> None:
        self._path = root / "identities.sqlite"

    def lookup(self, records: Sequence[Record]) -> list[Known | None]:
        """Return what is known of each record, or None if its files changed since they were last hashed."""
        if not self._path.is_file():
            return [None] * len(records)
        try:
            with closing(self._connect("ro")) as database:
                return [self._lookup(database, record) for record in records]
        except sqlite3.Error:
            return [None] * len(records)

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

    def _lookup(self, database: sqlite3.Connection, record: Record) -> Known | None:
        marks = []
        for path in _files(record):
            row = database.execute("SELECT * FROM files WHERE path = ?", (_name(str(path)),)).fetchone()
            if row is None or _stat(path) != (row[1], row[2]):
                return None
            marks.append(FileMark(str(path), *row[1:]))
        return _known(record, marks)


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
    name = os.fsencode(path)
    try:
        return name.decode()
    except UnicodeDecodeError:
        return name


def _text(path: Path) -> str:
    """Return a path as Python shows it with UTF-8 file names, whatever encoding this process uses."""
    return os.fsencode(path).decode("utf-8", "surrogateescape")


def _absolute(record: Record) -> Mapping[str, Path]:
    return {role: Path(os.path.abspath(path)) for role, path in record.files.items()}


def _files(record: Record) -> list[Path]:
    return [file for _, path in sorted(_absolute(record).items()) for file in files_below(path)]


def files_below(path: Path) -> list[Path]:
    """Return the files of a folder, sorted, or the file itself.

    Pipes, sockets and devices are included, so that the caller refuses them.
    """
    return sorted(p for p in path.rglob("*") if p.exists() and not p.is_dir()) if os.path.isdir(path) else [path]


def _stat(path: Path) -> tuple[int, int] | None:
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return stat.st_size, stat.st_mtime_ns
