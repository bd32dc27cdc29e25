"""Find scans that are twice in a data set, by the content of the records' main files.

A record's main file is the first of its `files` (the image, before its mask). Duplicates in two groups are the leak
that a split by group cannot prevent. A training finds equal files; a scan that was compressed again is a different
file. Files at URLs are compared by their ETags, if a listing returned them. If nothing has read the files (streaming),
only files with equal size and equal middle are read. `check`, which decodes every record, compares decoded data.
Neither finds a resampled scan; `near_duplicates` does, in `check` only.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import xxhash

from runner_core.base.errors import BadInput
from runner_core.base.files import refuse_special_file
from runner_core.base.location import Location, Url
from runner_core.base.text import counted
from runner_core.contract import Finding
from runner_core.contract.records import AnyRecord, Record
from runner_core.data.cache.identity import Identities, files_below, identify
from runner_core.data.columns import Digests, SomeDigests
from runner_core.data.table import RecordTable, alike

_SHOWN = 5
_MIDDLE = 16384
"""Bytes in the middle of a file that distinguish it from most others; headers are alike."""
_READERS = 16


def known_digests(
    index: Identities, records: Sequence[AnyRecord], identities: Digests | None = None
) -> Sequence[str | None]:
    """Return digests of main files that were read when the cache was built, and None for the others.

    `identities` are those of the records, if they are known: they save looking for files that are all of a record.
    """
    if isinstance(records, RecordTable):
        counts = records.counts
        if counts.remote == counts.files:
            return Etags(records)
        if identities is not None and counts.single == counts.files == len(records) and not counts.doubtful:
            return SomeDigests.over({"digests": identities.digests})
        if not counts.remote:
            return index.identities(records, main=True)
    places = [_path(record) if record.files else None for record in records]
    if all(isinstance(at, Url) for at in places):
        return [_etag(at) for at in places if isinstance(at, Url)]
    here = iter(index.lookup([_main(r) for r, at in zip(records, places, strict=True) if not isinstance(at, Url)]))
    return [_etag(at) if isinstance(at, Url) else (known := next(here)) and known.identity for at in places]


def read_digests(index: Identities, records: Sequence[AnyRecord]) -> list[str | None]:
    """Return digests like `known_digests`, after reading and remembering local files not read before.

    A file that cannot be read has none.
    """
    digests = list(known_digests(index, records))
    for number, record in enumerate(records):
        if digests[number] is None and record.files and not isinstance(_path(record), Url):
            with suppress(BadInput):  # reported when the record is scored
                known = identify(_main(record))
                index.remember(known.marks)
                digests[number] = known.identity
    return digests


def suspected_digests(index: Identities, records: Sequence[AnyRecord]) -> Sequence[str | None]:
    """Return digests like `known_digests`, after reading main files that look like duplicates.

    Files with the size and middle of another file are read whole and remembered. The others have no digest, and neither
    have files that cannot be read.
    """
    found = known_digests(index, records)
    if isinstance(found, Etags):  # no file is on this machine
        return found
    digests, places = list(found), [_path(record) if record.files else None for record in records]
    files = sorted({Path(_absolute(at)) for at in places if isinstance(at, Path)})
    alike: defaultdict[str | None, list[str]] = defaultdict(list)
    with ThreadPoolExecutor(_READERS) as threads:  # a network disk answers slowly, but many requests at once
        for path, seen in zip(files, threads.map(glance, files), strict=True):
            alike[seen].append(str(path))
    wanted = {path for seen, same in alike.items() if seen is not None and len(same) > 1 for path in same}
    read: dict[str, str] = {}
    for number, place in enumerate(places):
        if place is None or isinstance(place, Url):
            continue
        if (file := _absolute(place)) not in wanted:
            digests[number] = None
        elif digests[number] is None:
            if file not in read:
                known = identify(_main(records[number]))
                index.remember(known.marks)
                read[file] = known.identity
            digests[number] = read[file]
    return digests


def glance(place: Path) -> str | None:
    """Return a digest of the size and middle of a file, or of all files in a folder; None if it cannot be read.

    It depends neither on the name of the file or folder nor on where it lies.
    """
    seen = xxhash.xxh3_128()
    try:
        for file in files_below(place):
            with refuse_special_file(file).open("rb") as stream:
                size = os.fstat(stream.fileno()).st_size
                stream.seek(max(0, (size - _MIDDLE) // 2))
                seen.update(os.fsencode(f"{file.relative_to(place)} {size} "))
                seen.update(stream.read(_MIDDLE))
    except (OSError, BadInput):
        return None  # reported when the record is prepared
    return seen.hexdigest()


def _etag(url: Url) -> str | None:
    return None if url.etag is None else f"{url.etag} {url.size}"


class Etags(Sequence[str | None]):
    """Digests of main files that are all at URLs, each made when it is asked for."""

    def __init__(self, records: RecordTable) -> None:
        self._records = records
        self.hashes = None if records.marks is None else records.marks.mains
        """64 bits for each, by which different ones differ; None if they are not known."""

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return [self[n] for n in range(len(self))[number]]
        record = self._records[number]
        return _etag(next(iter(record.files.values()))) if record.files else None

    def __iter__(self) -> Iterator[str | None]:
        for _, digests, _ in self.in_parts():
            yield from digests

    def in_parts(self) -> Iterator[tuple[Sequence[str], Sequence[str | None], range]]:
        """Yield keys and digests of some records at a time, with the records' numbers."""
        for part, numbers in self._records.in_parts():
            if part.urls:
                _, sizes, etags = next(iter(part.urls.values()))
                digests = [None if e is None else f"{e} {size}" for size, e in zip(sizes, etags, strict=True)]
            else:
                digests = [self[number] for number in numbers]
            yield part.keys, digests, numbers


def find_duplicates(
    records: Sequence[AnyRecord], digests: Sequence[str | None], splits: Mapping[str, Sequence[int]]
) -> list[Finding]:
    """Return an error for duplicates in two splits, a warning for two groups, a note for one group.

    `splits` maps split names to record numbers. Records made from the same file are not duplicates.
    """
    same = alike(digests, digests.hashes if isinstance(digests, (Etags, SomeDigests)) else None)
    wanted = {number for numbers in same for number in numbers}
    names = {n: side for side, numbers in splits.items() for n in numbers if n in wanted} if wanted else {}
    found = []
    for numbers in same:
        if len({_absolute(_path(records[n])) for n in numbers}) > 1:
            found.append(_judge([records[n] for n in numbers], {names[n] for n in numbers if n in names}))
    return found


def _judge(records: Sequence[AnyRecord], names: set[str]) -> Finding:
    shown = ", ".join(f"{r.key} ({_path(r)})" for r in records[:_SHOWN]) + (", …" if len(records) > _SHOWN else "")
    what = f"{counted(len(records), 'record')} hold the same scan: {shown}"
    if len(names) > 1:
        why = f"on both sides of the split ({', '.join(sorted(names))}): the scores would be those of data seen in "
        return Finding("copies", "error", f"{what}; {why}training. Keep one of them")
    if len({r.group for r in records}) > 1:
        why = f"in several groups ({', '.join(sorted({r.group for r in records}))}), which another split may part"
        return Finding("copies", "warning", f"{what}; {why}. Keep one of them")
    return Finding("copies", "note", f"{what}; it counts that often")


def _main(record: AnyRecord) -> Record:
    return replace(record, files=dict(list(record.files.items())[:1]), values={})


def _path(record: AnyRecord) -> Location:
    return next(iter(record.files.values()))


def _absolute(place: Location) -> str:
    return place.text if isinstance(place, Url) else os.path.abspath(place)
