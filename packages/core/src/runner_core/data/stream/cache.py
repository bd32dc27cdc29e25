"""The capability: the plan of streaming, and a store of the records after one was read."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING

import xxhash

from runner_core.base.errors import OutOfSpace
from runner_core.base.files import size_text
from runner_core.base.location import Location, Url
from runner_core.base.text import counted
from runner_core.contract import CachePlan, Json, Pipeline, Store
from runner_core.contract.records import AnyRecord
from runner_core.data.cache.folder import cache_root
from runner_core.data.cache.identity import digest_json
from runner_core.data.columns import Digests, kept
from runner_core.data.stream.lru import FOLDER, Lru, PackedRecord
from runner_core.data.stream.store import Source, StreamStore
from runner_core.data.table import RecordTable, folder_of

if TYPE_CHECKING:
    from runner_core.config import CacheConfig, RemoteConfig

_SHARE_OF_DISK, _LEAVE_FREE = 0.5, 0.05
_LEAST = 16
"""Least number of records that must fit: a block, and the one after it."""


class StreamCache:
    """`cache.mode: stream`: fetches and prepares records when they are needed; `cache.max_gb` limits what is kept.

    All projects and runs share what is kept in one `cache.dir`.
    """

    def __init__(self, config: CacheConfig, remote: RemoteConfig) -> None:
        self._config, self._remote = config, remote
        self._folder = cache_root(config.dir) / FOLDER

    def plan(self, pipeline: Pipeline, records: Sequence[AnyRecord]) -> CachePlan:
        """Return the plan; this reads only file names and writes nothing."""
        stored = Lru(self._folder, 0).names()
        names = _names(pipeline, records)
        ready = names.count_among(stored)
        note = "records are fetched when they are needed; the newest are kept, up to that size"
        return CachePlan("stream", len(records), ready, self._bound(), 0, 0, self._folder, (note,))

    def open(self, pipeline: Pipeline, records: Sequence[AnyRecord], say: Callable[[str], None]) -> Store:
        """Prepare one record and return the store; raise OutOfSpace if too few fit, and errors of `Source.learn`."""
        names = _names(pipeline, records)
        lru = Lru(self._folder, self._bound())
        lru.trim()
        source = Source(pipeline, records, names, lru)
        one = source.learn()
        size = PackedRecord(dict(one.arrays), one.meta).size
        fit = lru.fit(size)
        if fit < (least := min(_LEAST, len(records))):
            raise OutOfSpace(
                f"cache.mode stream: {size_text(lru.max_bytes)} hold {counted(fit, 'record')} of {size_text(size)}, "
                f"{least} are needed: set cache.max_gb to {_gb(lru.needed(least, size))} or more, and cache.dir to a "
                "disk that has so much free"
            )
        say(f"{counted(len(records), 'record')} of {size_text(size)}: there is room for {min(fit, len(records)):,}")
        digest = xxhash.xxh3_128()
        for text in names.joined():
            digest.update(text.encode())
        identity = digest.hexdigest()
        return StreamStore(source, self._remote, identity, max(1, fit // 2), ahead=self._config.ahead)

    def _bound(self) -> int:
        """Return the bytes that may be taken: `cache.max_gb` if the disk has that, else half of what it has."""
        existing = next(p for p in (self._folder, *self._folder.parents) if p.exists())
        there = shutil.disk_usage(existing).free + Lru(self._folder, 0).size()
        if self._config.max_gb is None:
            return int(there * _SHARE_OF_DISK)
        return min(int(self._config.max_gb * 1e9), int(there * (1 - _LEAVE_FREE)))


def _gb(size: int) -> float:
    """Return GB, rounded up to three decimals."""
    return math.ceil(size / 1e6) / 1e3


def _names(pipeline: Pipeline, records: Sequence[AnyRecord]) -> Digests:
    """Return the name each record is kept under: a digest of its files and of all that changes its preparation.

    Processes that map the same records share the names too.
    """
    settings = digest_json(pipeline.settings)
    return kept(
        folder_of(records),
        f"names-{settings}",
        Digests,
        lambda: Digests(_each_name(settings, records)),
    )


def _each_name(settings: str, records: Sequence[AnyRecord]) -> Iterator[str]:
    if not isinstance(records, RecordTable):
        yield from map(partial(_name, settings), records)
        return
    quoted = _quoted(settings)
    for part, numbers in records.in_parts():  # the same names, without making the records
        if part.urls is None or not part.plain:
            yield from map(partial(_name, settings), records[numbers.start : numbers.stop])
            continue
        places = [map(_place, repeat(role), *urls) for role, urls in sorted(part.urls.items())]
        for key, group, *own in zip(part.keys, part.groups, *places, strict=True):
            yield _hashed(quoted, key, group, own)


def _name(settings: str, record: AnyRecord) -> str:
    if record.values or not all(isinstance(place, Url) for place in record.files.values()):
        return digest_json([settings, record.key, record.group, _marks(record)])
    urls = [(role, at) for role, at in sorted(record.files.items()) if isinstance(at, Url)]
    return _hashed(
        _quoted(settings), record.key, record.group, [_place(role, at.text, at.size, at.etag) for role, at in urls]
    )


def _hashed(settings: str, key: str, group: str, places: Sequence[str]) -> str:
    """Return `digest_json` of a record without values, in a third of the time: there may be millions.

    `settings` and `places` are JSON already.
    """
    text = f"[{settings},{_quoted(key)},{_quoted(group)},[{','.join(places)}]]"
    return xxhash.xxh3_128_hexdigest(text.encode())


def _place(role: str, text: str, size: int | None, etag: str | None) -> str:
    return f"[{_quoted(role)},{_quoted(text)},{_or_null(size)},{_text(etag)}]"


_quoted = json.encoder.encode_basestring_ascii


def _or_null(value: int | None) -> str | int:
    return "null" if value is None else value


def _text(value: str | None) -> str:
    return "null" if value is None else _quoted(value)


def _marks(record: AnyRecord) -> list[Json]:
    marks: list[Json] = [[role, *_mark(place)] for role, place in sorted(record.files.items())]
    return [*marks, dict(record.values)] if record.values else marks


def _mark(place: Location) -> list[str | int | None]:
    """Return values that change when the file does."""
    if isinstance(place, Url):
        return [place.text, place.size, place.etag]
    path = os.path.abspath(place)
    try:
        there = os.stat(path)
    except OSError:
        return [path]  # preparing it reports the fault
    return [path, there.st_size, there.st_mtime_ns]
