"""What a record's files hold, as a digest; remembered by path, size and time of change.

A record's identity is the xxh3 (128 bit) of its roles and their files' contents, not of where they lie: a data set
moved to another disk is the same data set.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import xxhash

from runner_core._errors import BadInput
from runner_core._files import hash_file
from runner_core.project import Record
from runner_core.protocols import Json


class FileMark(NamedTuple):
    """A file as it was when its contents were hashed."""

    path: str
    size: int
    mtime_ns: int
    digest: str


class Known(NamedTuple):
    """A record's identity and what it was made from."""

    identity: str
    marks: Sequence[FileMark]


def digest_json(value: Json) -> str:
    """32 hex digits of a JSON value, the same for any order of keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return xxhash.xxh3_128_hexdigest(text.encode())


def identify(record: Record) -> Known:
    """Reads every file of a record. Raises BadInput naming a file that cannot be read."""
    marks = []
    for path in _files(record):
        try:
            before = os.stat(path)
            marks.append(FileMark(str(path), before.st_size, before.st_mtime_ns, hash_file(path)))
        except OSError as error:
            raise BadInput(f"{record.key}: {path} cannot be read: {error.strerror}") from error
    return _known(record, marks)


def unchanged(marks: Iterable[FileMark]) -> bool:
    """Whether the files still are as they were when hashed (by size and time of change)."""
    return all(_stat(Path(m.path)) == (m.size, m.mtime_ns) for m in marks)


def _known(record: Record, marks: Sequence[FileMark]) -> Known:
    digests = {m.path: m.digest for m in marks}
    content = {
        role: [(_text(file.relative_to(path)), digests[str(file)]) for file in files_below(path)]
        for role, path in sorted(_absolute(record).items())
    }
    return Known(digest_json(content), marks)


def source_bytes(record: Record) -> int:
    """Size of a record's files; those that are missing count as nothing."""
    return sum(stat[0] for path in _files(record) if (stat := _stat(path)))


class Identities:
    """The index of remembered digests: one SQLite file, safe for several processes.

    It only saves time: where it cannot be read or written, files are hashed again.
    """

    def __init__(self, root: Path) -> None:
        self._path = root / "identities.sqlite"

    def lookup(self, records: Sequence[Record]) -> list[Known | None]:
        """What is known of records whose files are as they were when last hashed; None for the others."""
        if not self._path.exists():
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


def _name(path: str) -> str | bytes:
    """A path as the index has it: as bytes, where it is no text."""
    name = os.fsencode(path)
    try:
        return name.decode()
    except UnicodeDecodeError:
        return name


def _text(path: Path) -> str:
    """As Python has it where file names are UTF-8, whatever they are for this process."""
    return os.fsencode(path).decode("utf-8", "surrogateescape")


def _absolute(record: Record) -> Mapping[str, Path]:
    return {role: Path(os.path.abspath(path)) for role, path in record.files.items()}


def _files(record: Record) -> list[Path]:
    return [file for _, path in sorted(_absolute(record).items()) for file in files_below(path)]


def files_below(path: Path) -> list[Path]:
    """The files of a folder, sorted; a file itself."""
    return sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]


def _stat(path: Path) -> tuple[int, int] | None:
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return stat.st_size, stat.st_mtime_ns
