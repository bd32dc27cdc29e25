"""The same scan twice in a data set: found by the contents of the records' main files.

A record's main file is the first of its `files` (the image, before its mask). Copies in two groups are the leak that no
split by group can prevent. A training finds equal files: a scan that was compressed anew is another one. Files at URLs
are compared by their ETags, where a listing said them. Where nothing has read the files (streaming), only those of
equal size and equal middle are. `check`, which decodes every record, compares what was decoded; a scan that was
resampled is found by neither.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import xxhash

from runner_core._text import counted
from runner_core.cache.identity import Identities, files_below, identify
from runner_core.location import Location, Url
from runner_core.project import AnyRecord, Record
from runner_core.protocols import Finding

_SHOWN = 5
_MIDDLE = 16384
"""Bytes in the middle of a file by which it is told from most others: headers are alike."""
_READERS = 16


def known_digests(index: Identities, records: Sequence[AnyRecord]) -> list[str | None]:
    """Digests of main files that were read when the cache was built; None for the others."""
    places = [_path(record) if record.files else None for record in records]
    here = iter(index.lookup([_main(r) for r, at in zip(records, places, strict=True) if not isinstance(at, Url)]))
    return [_etag(at) if isinstance(at, Url) else (known := next(here)) and known.identity for at in places]


def suspected_digests(index: Identities, records: Sequence[AnyRecord]) -> list[str | None]:
    """Digests as `known_digests` has them, of main files that none has read yet too: those that are like another's at a
    glance are read whole (and remembered), the others have none. A file that cannot be read has none either."""
    places = [_path(record) if record.files else None for record in records]
    files = sorted({Path(_absolute(at)) for at in places if isinstance(at, Path)})
    alike: defaultdict[str | None, list[str]] = defaultdict(list)
    with ThreadPoolExecutor(_READERS) as threads:  # a network's disk answers late, but many at once
        for path, glance in zip(files, threads.map(_glance, files), strict=True):
            alike[glance].append(str(path))
    wanted = {path for glance, same in alike.items() if glance is not None and len(same) > 1 for path in same}
    digests = known_digests(index, records)
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


def _glance(place: Path) -> str | None:
    """Size and middle of a file, or of those of a folder."""
    seen = xxhash.xxh3_128()
    try:
        for file in files_below(place):
            with file.open("rb") as stream:
                size = os.fstat(stream.fileno()).st_size
                stream.seek(max(0, (size - _MIDDLE) // 2))
                seen.update(os.fsencode(f"{file.relative_to(place)} {size} "))
                seen.update(stream.read(_MIDDLE))
    except OSError:
        return None  # said when the record is prepared
    return seen.hexdigest()


def _etag(url: Url) -> str | None:
    return None if url.etag is None else f"{url.etag} {url.size}"


def find_copies(
    records: Sequence[AnyRecord], digests: Sequence[str | None], splits: Mapping[str, Sequence[int]]
) -> list[Finding]:
    """An error for copies on two sides of the split (`splits`: side → record numbers), a warning for those in two
    groups, a note for those in one. Records made from one and the same file are no copies."""
    same: defaultdict[str, list[int]] = defaultdict(list)
    for number, digest in enumerate(digests):
        if digest is not None:
            same[digest].append(number)
    sides = {number: side for side, numbers in splits.items() for number in numbers}
    found = []
    for numbers in same.values():
        if len({_absolute(_path(records[n])) for n in numbers}) > 1:
            found.append(_judge([records[n] for n in numbers], {sides[n] for n in numbers if n in sides}))
    return found


def _judge(copies: Sequence[AnyRecord], sides: set[str]) -> Finding:
    shown = ", ".join(f"{r.key} ({_path(r)})" for r in copies[:_SHOWN]) + (", …" if len(copies) > _SHOWN else "")
    what = f"{counted(len(copies), 'record')} hold the same scan: {shown}"
    if len(sides) > 1:
        why = f"on both sides of the split ({', '.join(sorted(sides))}): the scores would be those of data seen in "
        return Finding("copies", "error", f"{what}; {why}training. Keep one of them")
    if len({r.group for r in copies}) > 1:
        why = f"in several groups ({', '.join(sorted({r.group for r in copies}))}), which another split may part"
        return Finding("copies", "warning", f"{what}; {why}. Keep one of them")
    return Finding("copies", "note", f"{what}; it counts that often")


def _main(record: AnyRecord) -> Record:
    return replace(record, files=dict(list(record.files.items())[:1]))


def _path(record: AnyRecord) -> Location:
    return next(iter(record.files.values()))


def _absolute(place: Location) -> str:
    return place.text if isinstance(place, Url) else os.path.abspath(place)
