"""Some records as one JSON value, column by column, and back: what a `RecordTable` compresses.

Columns of many records hold the same value again and again (the group, the split): one that does is that value alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, get_origin, get_type_hints

from runner_core.base.location import Location, Url
from runner_core.contract import Json
from runner_core.contract.records import AnyRecord
from runner_core.contract.values import Scalar

_PLAIN = frozenset((str, int, float, bool, type(None)))
_ALIKE = frozenset((str, bool, type(None)))
"""Types of which equal values are the same; 1 and 1.0 are not."""


class Urls(NamedTuple):
    """Files of one role, one for each record: addresses, sizes and etags."""

    texts: Sequence[str]
    sizes: Sequence[int | None]
    etags: Sequence[str | None]


class Part(NamedTuple):
    """Some records that follow each other, by column."""

    keys: Sequence[str]
    groups: Sequence[str]
    urls: Mapping[str, Urls] | None
    """Their files by role; None if some are on this machine, or if records have other roles than others."""
    plain: bool
    """True if no record has values."""
    divided: bool
    """True if any record has a split."""


class RecordBlocks:
    """Writes records of one class as JSON, without their keys, and reads them again."""

    def __init__(self, kind: type[AnyRecord]) -> None:
        """Raise TypeError for a class with fields that its constructor does not take."""
        own = dataclasses.fields(kind)
        hints = get_type_hints(kind)
        self.kind = kind
        self._names = [f.name for f in own if f.name not in ("key", "files")]
        self._values = [attrgetter(name) for name in self._names]
        self._tuples = [get_origin(hints[name]) is tuple for name in self._names]
        if not all(f.init for f in own):
            raise TypeError(f"{kind.__name__} has fields that its constructor does not take")

    def packed(self, records: Sequence[AnyRecord]) -> Json:
        """Return the records as a block of JSON; raise TypeError if that would not give them back."""
        if any(type(record) is not self.kind for record in records):
            raise TypeError("the records are of several classes")
        columns: list[Json] = []
        for name, value, as_tuple in zip(self._names, self._values, self._tuples, strict=True):
            column = [value(record) for record in records]
            if _same(column):
                column = column[:1]
            if not all(_comes_back(v, as_tuple) for v in column):
                raise TypeError(f"{self.kind.__name__}.{name} holds what JSON does not give back")
            columns.append(column)
        urls = _urls(records)
        return [_by_record(records) if urls is None else {role: list(own) for role, own in urls.items()}, *columns]

    def part(self, block: Any, keys: Sequence[str]) -> Part:
        """Return all records of a block, whose keys these are, by column."""
        places, *columns = block
        groups = columns[self._names.index("group")]
        urls = {role: Urls(*own) for role, own in places.items()} if isinstance(places, dict) else None
        plain, split = not any(columns[self._names.index("values")]), any(columns[self._names.index("split")])
        return Part(keys, groups if len(groups) == len(keys) else groups * len(keys), urls, plain, split)

    def local(self, block: Any, count: int) -> Iterator[tuple[Sequence[tuple[str, str]], Mapping[str, Scalar]]]:
        """Yield role and path of each file, and the values, of the `count` records of a block; none is at a URL."""
        places, *columns = block
        values = columns[self._names.index("values")]
        if places == {}:  # no record has files
            places = [()] * count
        if isinstance(places, dict):
            raise ValueError("the files of these records are at URLs")
        yield from zip(places, values if len(values) == count else values * count, strict=True)

    def records(self, block: Any, keys: Sequence[str], rows: Sequence[int]) -> list[AnyRecord]:
        """Return the records in these rows of a block; `keys` are their keys."""
        places, *columns = block
        named = dict(zip(self._names, columns, strict=True))
        made = []
        for key, row in zip(keys, rows, strict=True):
            fields: dict[str, Any] = {
                name: tuple(own[row % len(own)]) if as_tuple else own[row % len(own)]
                for (name, own), as_tuple in zip(named.items(), self._tuples, strict=True)
            }
            fields |= {name: dict(value) for name, value in fields.items() if type(value) is dict}
            files: dict[str, Location]
            if isinstance(places, dict):
                files = {role: Url(own[0][row], own[1][row], own[2][row]) for role, own in places.items()}
            else:
                files = {role: Url(text, *mark) if mark else Path(text) for role, text, *mark in places[row]}
            made.append(self.kind(key=key, files=files, **fields))
        return made


def _same(column: Sequence[Any]) -> bool:
    """Return whether all values are one that is written once, however many records have it."""
    first, kind = column[0], type(column[0])
    if kind in _ALIKE:
        return all(type(value) is kind and value == first for value in column)
    if kind is tuple and all(type(part) in _ALIKE for part in first):
        return all(type(value) is tuple and value == first for value in column) and all(
            type(part) in _ALIKE for value in column for part in value
        )
    return kind is dict and not any(type(value) is not dict or value for value in column)


def _urls(records: Sequence[AnyRecord]) -> dict[str, Urls] | None:
    """Return the files by role, if all records have the same roles in the same order and all files are at URLs."""
    roles = list(records[0].files)
    if any(list(record.files) != roles for record in records):
        return None
    found = {}
    for role in roles:
        places = [record.files[role] for record in records]
        if any(type(place) is not Url for place in places):
            return None
        found[role] = Urls([p.text for p in places], [p.size for p in places], [p.etag for p in places])
    return found


def _by_record(records: Sequence[AnyRecord]) -> Json:
    """Return for each record its files: role and path, or role, address, size and etag."""
    return [
        [[role, at.text, at.size, at.etag] if type(at) is Url else [role, str(at)] for role, at in record.files.items()]
        for record in records
    ]


def _comes_back(value: Any, as_tuple: bool = False) -> bool:
    """Return whether JSON gives a value back: a tuple only where one is expected, and no key that is not text."""
    if as_tuple:
        return isinstance(value, tuple) and all(map(_comes_back, value))
    if type(value) in _PLAIN:
        return True
    if isinstance(value, dict):
        return all(isinstance(key, str) and _comes_back(inner) for key, inner in value.items())
    if isinstance(value, list):
        return all(map(_comes_back, value))
    return isinstance(value, (str, int, float))
