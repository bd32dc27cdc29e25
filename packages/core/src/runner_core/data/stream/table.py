"""Many records in little memory: compressed rows instead of objects, from which a record is made when it is needed.

Five million records of one image each take gigabytes as objects, in each worker once more. As arrays of bytes they take
about a tenth, and all workers of a process share them (`base.workers.Packed`).
"""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar, get_origin, get_type_hints

import numpy as np

from runner_core.base.location import Location, Url
from runner_core.contract import Array, Json
from runner_core.contract.records import AnyRecord

LEAST = 10_000
"""Fewer records stay objects: they take little memory, and are made once."""
_ROWS, _CHECKED = 64, 16
"""Records that are compressed together; one in so many of these is compared with what it was made from."""

Item = TypeVar("Item")


class Same(Sequence[Item]):
    """One value, `count` times.

    >>> list(Same("a", 3)), Same("a", 3)[1:]
    (['a', 'a', 'a'], ['a', 'a'])
    """

    def __init__(self, value: Item, count: int) -> None:
        self._value, self._count = value, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: Any) -> Any:
        found = range(self._count)[number]
        return [self._value] * len(found) if isinstance(found, range) else self._value


class Digests(Sequence[str]):
    """Texts of 32 hexadecimal digits, each in 16 bytes.

    >>> Digests(["00" * 16, "ab" * 16])[1][:4]
    'abab'
    """

    def __init__(self, texts: Iterable[str]) -> None:
        self._bytes: Array = np.frombuffer(b"".join(map(bytes.fromhex, texts)), np.uint8).reshape(-1, 16)

    def __len__(self) -> int:
        return len(self._bytes)

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return [self[n] for n in range(*number.indices(len(self)))]
        return self._bytes[number].tobytes().hex()


class _Blocks(Sequence[Item]):
    """JSON values, `_ROWS` of them compressed together; the block that was read last is kept."""

    def __init__(self, values: Iterable[Json]) -> None:
        packed, ends, count = bytearray(), [0], 0
        values = iter(values)
        while rows := list(islice(values, _ROWS)):
            packed += zlib.compress(json.dumps(rows, separators=(",", ":")).encode(), 1)
            ends.append(len(packed))
            count += len(rows)
        self._bytes: Array = np.frombuffer(bytes(packed), np.uint8)
        self._ends: Array = np.array(ends, np.int64)
        self._count = count
        self._last: tuple[int, list[Any]] = -1, []

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_last": (-1, [])}

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: Any) -> Any:
        found = range(self._count)[number]
        if isinstance(found, range):
            return [self[n] for n in found]
        block, row = divmod(found, _ROWS)
        return self.made(self._block(block)[row])

    def __iter__(self) -> Iterator[Any]:
        for block in range(len(self._ends) - 1):
            yield from map(self.made, self._block(block))

    def _block(self, number: int) -> list[Any]:
        last, rows = self._last  # read at once: other threads replace it
        if last != number:
            packed = self._bytes[self._ends[number] : self._ends[number + 1]].tobytes()
            rows = json.loads(zlib.decompress(packed))
            self._last = number, rows
        return rows

    def made(self, value: Any) -> Any:
        """Return the item that a JSON value stands for."""
        return value


class Keys(_Blocks[str]):
    """Keys of records."""


class RecordTable(_Blocks[AnyRecord]):
    """Records of one class, made when they are asked for; `keys` are their keys."""

    def __init__(self, records: Sequence[AnyRecord]) -> None:
        """Raise TypeError for records that JSON cannot hold."""
        self._kind: type[Any] = type(records[0])
        own = dataclasses.fields(self._kind)
        hints = get_type_hints(self._kind)
        self._names = [f.name for f in own if f.name != "files"]
        self._tuples = {name for name in self._names if get_origin(hints[name]) is tuple}
        if not all(f.init for f in own):
            raise TypeError(f"{self._kind.__name__} has fields that its constructor does not take")
        super().__init__(map(self._row, records))
        self.keys = Keys(record.key for record in records)
        for block in range(0, len(self._ends) - 1, _CHECKED):
            some = slice(block * _ROWS, (block + 1) * _ROWS)
            if self[some] != list(records[some]):
                raise TypeError(f"{self._kind.__name__} holds what JSON does not give back")

    def _row(self, record: AnyRecord) -> Json:
        if type(record) is not self._kind:
            raise TypeError("the records are of several classes")
        values = [getattr(record, name) for name in self._names]
        for name, value in zip(self._names, values, strict=True):
            if name in self._tuples:
                right = isinstance(value, tuple) and all(map(_comes_back, value))
            else:
                right = type(value) in _PLAIN or _comes_back(value)
            if not right:
                raise TypeError(f"{self._kind.__name__}.{name} holds what JSON does not give back")
        return [[[role, *_place(place)] for role, place in record.files.items()], *values]

    def made(self, value: Any) -> AnyRecord:
        files, *fields = value
        given = {n: tuple(v) if n in self._tuples else v for n, v in zip(self._names, fields, strict=True)}
        places: dict[str, Location] = {role: _location(*place) for role, *place in files}
        made: AnyRecord = self._kind(**given, files=places)
        return made


_PLAIN = frozenset((str, int, float, bool, type(None)))


def _comes_back(value: Any) -> bool:
    """Return whether JSON gives a value back: no tuple, and no key that is not text."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and _comes_back(inner) for key, inner in value.items())
    if isinstance(value, list):
        return all(map(_comes_back, value))
    return value is None or isinstance(value, (str, int, float))


def _place(place: Location) -> tuple[Json, ...]:
    return (place.text, place.size, place.etag) if isinstance(place, Url) else (str(place),)


def _location(text: str, *mark: Any) -> Location:
    return Url(text, *mark) if mark else Path(text)


def compact(records: Sequence[AnyRecord]) -> Sequence[AnyRecord]:
    """Return the records as a table if they are many, of one class, and hold what JSON has."""
    if len(records) < LEAST or isinstance(records, RecordTable):
        return records
    try:
        return RecordTable(records)
    except (TypeError, ValueError):
        return records


def keys_of(records: Sequence[AnyRecord]) -> Sequence[str]:
    """Return the records' keys."""
    return records.keys if isinstance(records, RecordTable) else [record.key for record in records]
