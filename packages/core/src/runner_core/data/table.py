"""Many records in little memory: compressed rows instead of objects, from which a record is made when it is needed.

Five million records of one image each take gigabytes as objects, in each process once more. As columns they take about
a tenth. `save` writes them once, and all processes of a machine map the files.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, get_origin, get_type_hints

from runner_core.base.location import Location, Url
from runner_core.contract import Json
from runner_core.contract.records import AnyRecord, Record, at_url
from runner_core.data.columns import Blocks, Numbers, Texts

LEAST = 10_000
"""Fewer records stay objects: they take little memory, and are made once."""
_TOGETHER, _EACH = 64, 16
"""One of `_EACH` runs of `_TOGETHER` records is compared with what it was made from."""


class RecordTable(Blocks[AnyRecord]):
    """Records of one class, made when they are asked for."""

    folder: Path | None = None
    """Where the records are mapped from; None: they are in this process's memory."""
    objects: Sequence[AnyRecord] | None = None
    """The records that it was made from, for as long as they are around: reading them is faster."""

    def __init__(self, records: Sequence[AnyRecord]) -> None:
        """Raise TypeError for records that JSON cannot hold."""
        self._describe(type(records[0]))
        counts = [0, 0]
        super().__init__(self._row(record, counts) for record in records)
        self.keys = Texts(record.key for record in records)
        self._counts = Numbers(counts)
        for first in range(0, len(self), _EACH * _TOGETHER):
            some = slice(first, first + _TOGETHER)
            if self[some] != list(records[some]):
                raise TypeError(f"{self._kind.__name__} holds what JSON does not give back")

    def _describe(self, kind: type[Any]) -> None:
        self._kind = kind
        own = dataclasses.fields(kind)
        hints = get_type_hints(kind)
        self._names = [f.name for f in own if f.name != "files"]
        self._values = attrgetter(*self._names)  # several: every record has a key and a group
        self._tuples = {name for name in self._names if get_origin(hints[name]) is tuple}
        if not all(f.init for f in own):
            raise TypeError(f"{kind.__name__} has fields that its constructor does not take")

    @property
    def kind(self) -> str:
        """Module and name of the records' class, for `open_table`."""
        return f"{self._kind.__module__}:{self._kind.__qualname__}"

    @property
    def files(self) -> int:
        """Number of all records' files."""
        return self._counts[0]

    @property
    def remote(self) -> int:
        """Number of their files that are at URLs."""
        return self._counts[1]

    def save(self, folder: Path, name: str = "records") -> None:
        super().save(folder, name)
        self.keys.save(folder, f"{name}-keys")
        self._counts.save(folder, f"{name}-counts")

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "objects"}

    def __getitem__(self, number: Any) -> Any:
        return super().__getitem__(number) if self.objects is None else self.objects[number]

    def __iter__(self) -> Iterator[Any]:
        return super().__iter__() if self.objects is None else iter(self.objects)

    def _row(self, record: AnyRecord, counts: list[int]) -> Json:
        """Return the record as JSON; count its files, and those of them at URLs."""
        if type(record) is not self._kind:
            raise TypeError("the records are of several classes")
        values = self._values(record)
        for name, value in zip(self._names, values, strict=True):
            if type(value) in _PLAIN or value == {}:
                right = name not in self._tuples
            elif name in self._tuples:
                right = isinstance(value, tuple) and all(map(_comes_back, value))
            else:
                right = _comes_back(value)
            if not right:
                raise TypeError(f"{self._kind.__name__}.{name} holds what JSON does not give back")
        places: list[Json] = []
        for role, place in record.files.items():
            if type(place) is Url:
                places.append((role, place.text, place.size, place.etag))
                counts[1] += 1
            else:
                places.append((role, str(place)))
        counts[0] += len(places)
        return [places, *values]

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


def _location(text: str, *mark: Any) -> Location:
    return Url(text, *mark) if mark else Path(text)


def open_table(folder: Path, kind: str, name: str = "records") -> RecordTable:
    """Return the records of class `kind` that `RecordTable.save` wrote into `folder`, mapped.

    Raises OSError or ValueError.
    """
    module, _, path = kind.partition(":")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    if not (isinstance(found, type) and issubclass(found, Record)):
        raise ValueError(f"{kind} is no class of records")
    table = RecordTable.map(folder, name)
    table._describe(found)
    table.keys = Texts.map(folder, f"{name}-keys")
    table._counts = Numbers.map(folder, f"{name}-counts")
    table.folder = folder
    return table


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


def files_of(records: Sequence[AnyRecord]) -> int:
    """Return the number of the records' files."""
    return records.files if isinstance(records, RecordTable) else sum(len(record.files) for record in records)


def any_at_url(records: Sequence[AnyRecord]) -> bool:
    """Return whether any record has a file at a URL."""
    return records.remote > 0 if isinstance(records, RecordTable) else any(map(at_url, records))


def folder_of(records: Sequence[AnyRecord]) -> Path | None:
    """Return the folder from which the records are mapped, None if they are in this process's memory."""
    return records.folder if isinstance(records, RecordTable) else None
