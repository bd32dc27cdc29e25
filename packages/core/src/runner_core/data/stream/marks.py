"""Detect changes of files at URLs, which may change unnoticed."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from runner_core.base.location import Url
from runner_core.base.text import counted
from runner_core.contract.records import AnyRecord
from runner_core.data.stream.client import remote_client

if TYPE_CHECKING:
    from runner_core.config import RemoteConfig

FILE = "objects.sqlite"


def marked(
    records: Sequence[AnyRecord], remote: RemoteConfig, root: Path, say: Callable[[str], None]
) -> list[AnyRecord]:
    """Return the records with size and etag of their files at URLs, requested if a manifest does not give them.

    The cache and a running training identify a file's content by these values: a file that was replaced is fetched
    anew, or refused. `say` receives messages about files that changed since they were last used, and about those whose
    changes cannot be detected. `root` is the folder of the caches. Raises Unreachable.
    """
    places = dict.fromkeys(place for record in records for place in record.files.values() if isinstance(place, Url))
    if unknown := [url for url in places if url.etag is None]:
        found = dict(zip(unknown, remote_client(remote).describe(unknown), strict=True))
        records = [
            replace(record, files={role: found.get(place, place) for role, place in record.files.items()})
            for record in records
        ]
        places = dict.fromkeys(found.get(url, url) for url in places)
    silent = [url for url in places if url.etag is None]
    if silent:
        say(f"NOTE: changes of {counted(len(silent), 'file')} would not be seen, {silent[0]} for one: no server says "
            "when they were changed")  # fmt: skip
    if changed := _changed(root / FILE, [url for url in places if url.etag is not None]):
        say(f"NOTE: {counted(len(changed), 'file')} changed since the last use, {changed[0]} for one: fetched anew")
    return list(records)


def _changed(file: Path, urls: Sequence[Url]) -> list[Url]:
    """Return the files known with another etag; remember all with their current one if the disk allows it."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(file, timeout=30)) as database, database:
            database.execute("CREATE TABLE IF NOT EXISTS objects (url TEXT PRIMARY KEY, etag TEXT)")
            known = (database.execute("SELECT etag FROM objects WHERE url = ?", (u.text,)).fetchone() for u in urls)
            before = list(known)
            fresh = ((u.text, u.etag) for u, row in zip(urls, before, strict=True) if row != (u.etag,))
            database.executemany("INSERT OR REPLACE INTO objects VALUES (?, ?)", fresh)
    except (OSError, sqlite3.Error):
        return []
    return [url for url, row in zip(urls, before, strict=True) if row is not None and row[0] != url.etag]
