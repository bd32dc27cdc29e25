"""List, verify and prune caches, for `runner cache`."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from runner_core.base.text import counted
from runner_core.base.writing import is_locked, locked
from runner_core.data.cache.ahead import Ahead
from runner_core.data.cache.folder import (
    Damaged,
    cache_root,
    caches,
    content_bytes,
    read_meta,
    remove,
    remove_leftovers,
    settings_folders,
)
from runner_core.data.cache.folder import verify as verify_folder
from runner_core.data.stream.lru import FOLDER, Lru

STREAM = "stream"
"""Form of the entry for streamed records."""
AHEAD = "ahead"
"""Form of the entry for records that `cache build` has prepared, while others are missing."""


@dataclass(frozen=True)
class Entry:
    """A cache on the disk: its folder, size and use.

    Attributes:
        folder: Its folder.
        project: Its project.
        records: Number of records.
        bytes: Their size.
        last_used: Seconds since the epoch.
        form: flat (memory map), blosc2, an extension's, `AHEAD`, or `STREAM`, which holds records of all projects.
        in_use: True if a process has it open.
        problem: What the sizes of its files show to be wrong, or "".
    """

    folder: Path
    project: str
    records: int
    bytes: int
    last_used: float
    form: str
    in_use: bool
    problem: str = ""


def entries(root: Path | None = None, project: str | None = None) -> list[Entry]:
    """Return every cache below `cache.dir` (None: the default folder), the last used first."""
    found = [_entry(folder) for parent in settings_folders(cache_root(root), project) for folder in caches(parent)]
    found += [e for parent in settings_folders(cache_root(root), project) for e in _ahead(Ahead(parent))]
    found += _streamed(cache_root(root)) if project is None else []
    return sorted(found, key=lambda e: -e.last_used)


def verify(root: Path | None = None, project: str | None = None) -> list[tuple[Entry, str]]:
    """Read every byte of every cache of prepared data; return the damaged ones with problem and remedy.

    Streamed records are not read: each use compares a record with its checksum and fetches it again if needed.
    """
    damaged = []
    for entry in entries(root, project):
        if entry.form in (STREAM, AHEAD):
            continue
        try:
            verify_folder(entry.folder)
        except (Damaged, OSError) as error:
            damaged.append((entry, str(error)))
    return damaged


@dataclass(frozen=True)
class Pruned:
    """The `removed` caches, and those that should be removed but were `kept`, with the reason."""

    removed: list[Entry]
    kept: list[tuple[Entry, str]]

    @property
    def bytes(self) -> int:
        return sum(e.bytes for e in self.removed)


def prune(
    root: Path | None = None,
    *,
    older_than_days: float | None = None,
    max_gb: float | None = None,
    everything: bool = False,
    project: str | None = None,
) -> Pruned:
    """Remove caches.

    The arguments choose caches not used for so many days, the longest unused until all take at most `max_gb`, or all.
    Files of killed builders are removed too. A cache that a process has open is kept (of streamed records only those
    being read), and so is a folder that holds foreign files.
    """
    there = entries(root, project)
    chosen = list(there) if everything else [e for e in there if e.problem]
    if older_than_days is not None:
        limit = time.time() - older_than_days * 86400
        chosen += [e for e in there if e.last_used < limit]
    if max_gb is not None:
        total = 0.0
        for entry in there:  # the last used first
            total += entry.bytes
            if total > max_gb * 1e9:
                chosen.append(entry)
    tried = [(e, _remove(e)) for e in {e.folder: e for e in chosen}.values()]
    if any(e.form == STREAM for e in there):
        Lru(cache_root(root) / FOLDER, sys.maxsize).trim()  # removes files of killed writers
    for parent in settings_folders(cache_root(root), project):
        with suppress(OSError), locked(parent / "build.lock", wait=False):
            remove_leftovers(parent)
    return Pruned([e for e, why_not in tried if not why_not], [(e, why_not) for e, why_not in tried if why_not])


def _entry(folder: Path) -> Entry:
    form = folder.suffix.removeprefix(".")
    size = content_bytes(folder)
    try:
        used = (folder / "meta.json").stat().st_mtime
    except OSError:
        used = folder.stat().st_mtime
    records, problem = 0, ""
    try:
        records = len(read_meta(folder).keys)
    except Damaged as error:
        problem = str(error)
    return Entry(folder, folder.parent.parent.name, records, size, used, form, is_locked(folder / "meta.json"), problem)


def _ahead(ahead: Ahead) -> list[Entry]:
    """Return the records that are prepared ahead as one cache, or [] if there are none."""
    files = ahead.files()
    if not files:
        return []
    stats = [file.stat() for file in files]
    project, used = ahead.folder.parent.parent.name, max(stat.st_mtime for stat in stats)
    size = sum(stat.st_size for stat in stats)
    return [Entry(ahead.folder, project, len(files), size, used, AHEAD, is_locked(ahead.folder))]


def _streamed(root: Path) -> list[Entry]:
    """Return the kept streamed records as one cache, or [] if there are none."""
    lru = Lru(root / FOLDER, 0)
    names = lru.names()
    if not names:
        return []
    in_use = any(is_locked(lru.folder / name) for name in names)
    return [Entry(lru.folder, "", len(names), lru.size(), lru.last_used(), STREAM, in_use)]


def _remove(entry: Entry) -> str:
    """Delete a cache, or return why not."""
    if entry.form == AHEAD:
        return Ahead(entry.folder.parent).remove()
    if entry.form != STREAM:
        return remove(entry.folder)
    lru = Lru(entry.folder, 0)
    lru.trim()
    left = len(lru.names())
    return f"a process has {counted(left, 'record')} of it open, the others are gone" if left else ""
