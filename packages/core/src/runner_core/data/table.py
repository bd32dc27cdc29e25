"""Many records in little memory: compressed columns instead of objects, from which a record is made when it is needed.

Five million records of one image each take gigabytes as objects, in each process once more. As columns they take about
a tenth. `save` writes them once, and all processes of a machine map the files.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import xxhash

from runner_core.base.location import Url
from runner_core.base.secrets import may_hold_secret
from runner_core.contract import Array
from runner_core.contract.records import AnyRecord, Record, at_url
from runner_core.contract.values import Scalar
from runner_core.data.blocks import ROWS, Blocks, Coded, Packing, Texts
from runner_core.data.columns import Numbers
from runner_core.data.record_blocks import Part, RecordBlocks

LEAST = 10_000
"""Fewer records stay objects: they take little memory, and are made once."""
Kept = TypeVar("Kept", bound=AnyRecord)
_EACH = 16
"""One of so many blocks is compared with the records that it was made from."""


class Counts(NamedTuple):
    """Numbers of things in many records."""

    files: int = 0
    remote: int = 0
    """Files at URLs."""
    unmarked: int = 0
    """Files at URLs without an etag."""
    doubtful: int = 0
    """More than 0 if any record has values, or a URL that may hold a secret."""
    divided: int = 0
    """More than 0 if any record has a split."""
    single: int = 0
    """Records of one file."""


class Marks(NamedTuple):
    """Hashes of what files at URLs are; uint64."""

    files: Array
    """(files, 2): of each file's address, and of its ETag."""
    mains: Array
    """(records,): of the ETag and the size of each record's main file."""


Local = tuple[Sequence[tuple[str, str]], Mapping[str, Scalar]]
"""Role and path of each file of a record on this machine, and the record's values."""


class RecordTable(Blocks[AnyRecord]):
    """Records of one class, made when they are asked for."""

    keys: Texts
    groups: Coded
    folder: Path | None = None
    """Where the records are mapped from; None: they are in this process's memory."""
    objects: Sequence[AnyRecord] | None = None
    """The records that it was made from, for as long as they are around: reading them is faster."""
    _blocks: RecordBlocks
    counts: Counts
    hashes: Array | None = None
    """`hashes_of` the keys; None if the records are mapped."""
    marks: Marks | None = None
    """None if the records are mapped, or if not all files are at URLs, each with an ETag."""

    def __init__(self, records: Iterable[AnyRecord]) -> None:
        """Take at least one record, and hold no more than a few of them at a time.

        Raises TypeError for records that JSON cannot hold.
        """
        making = _Making()
        records = iter(records)
        while some := list(islice(records, ROWS)):
            making.add(some)
        self.__dict__.update(making.table().__dict__)

    @property
    def kind(self) -> str:
        """Module and name of the records' class, for `open_table`."""
        return f"{self._blocks.kind.__module__}:{self._blocks.kind.__qualname__}"

    def save(self, folder: Path, name: str = "records") -> None:
        super().save(folder, name)
        self.keys.save(folder, f"{name}-keys")
        self.groups.save(folder, f"{name}-groups")
        Numbers(self.counts).save(folder, f"{name}-counts")

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: value for name, value in super().__getstate__().items() if name not in ("objects", "hashes", "marks")
        }

    def __getitem__(self, number: Any) -> Any:
        return super().__getitem__(number) if self.objects is None else self.objects[number]

    def __iter__(self) -> Iterator[Any]:
        return super().__iter__() if self.objects is None else iter(self.objects)

    def some(self, numbers: Array) -> Iterator[Any]:
        return super().some(numbers) if self.objects is None else map(self.objects.__getitem__, numbers.tolist())

    def opened(self, block: int, rows: Sequence[int]) -> list[AnyRecord]:
        return self._blocks.records(self._block(block), self.keys.opened(block, rows), rows)

    def local_files(self) -> Iterator[Local]:
        """Yield the files and values of all records, none of them at a URL: no record is made."""
        for block in range(len(self.ends) - 1):
            yield from self._blocks.local(self._block(block), min(ROWS, len(self) - block * ROWS))

    def in_parts(self) -> Iterator[tuple[Part, range]]:
        """Yield all records by column, some at a time, with their numbers: no record is made."""
        for block in range(len(self.ends) - 1):
            numbers = range(block * ROWS, min(len(self), (block + 1) * ROWS))
            yield self._blocks.part(self._block(block), self.keys.opened(block, range(len(numbers)))), numbers


class _Making:
    """A table to which records are added, ROWS at a time."""

    def __init__(self) -> None:
        self.keys, self.rows = Packing(), Packing()
        self._codes: dict[str, int] = {}
        self._groups: list[Array] = []
        self._hashes: list[Array] = []
        self._marks: list[Marks] | None = []
        self._counts = Counts()
        self._blocks: RecordBlocks | None = None

    def add(self, records: Sequence[AnyRecord]) -> None:
        """Add ROWS records, or the last ones; raise TypeError, and add nothing, if JSON would not give them back."""
        blocks = self._blocks or RecordBlocks(type(records[0]))
        block, keys = blocks.packed(records), [record.key for record in records]
        packed = Packing()
        packed.add(block, len(records))
        if self.rows.count % (_EACH * ROWS) == 0 and list(records) != blocks.records(
            Blocks[Any].of(packed)._block(0), keys, range(len(records))
        ):
            raise TypeError(f"{blocks.kind.__name__} holds what JSON does not give back")
        self._blocks = blocks
        self.keys.add(keys, len(keys))
        self.rows.extend(packed)
        self._hashes.append(hashes_of(keys))
        part = blocks.part(block, keys)
        codes = {group: self._codes.setdefault(group, len(self._codes)) for group in dict.fromkeys(part.groups)}
        self._groups.append(np.array([codes[group] for group in part.groups], np.int32))
        own, marks = _described(part, records)
        self._counts = Counts(*map(sum, zip(self._counts, own, strict=True)))
        if marks is None:
            self._marks = None
        elif self._marks is not None:
            self._marks.append(marks)

    def table(self) -> RecordTable:
        assert self._blocks is not None
        table = RecordTable.of(self.rows)
        table._blocks, table.counts = self._blocks, self._counts
        table.keys, table.hashes = Texts.of(self.keys), np.concatenate(self._hashes)
        table.groups = Coded.of(np.concatenate(self._groups), list(self._codes))
        if self._marks:
            table.marks = Marks(*map(np.concatenate, zip(*self._marks, strict=True)))
        return table


def _described(part: Part, records: Sequence[AnyRecord]) -> tuple[Counts, Marks | None]:
    """Return what is counted in some records, and their marks if each has files, which are all at URLs with ETags."""
    if not part.urls:
        places = [place for record in records for place in record.files.values()]
        urls = [place for place in places if type(place) is Url]
        doubtful = sum(bool(record.values) for record in records) + sum(may_hold_secret(url.text) for url in urls)
        unmarked, single = sum(url.etag is None for url in urls), sum(len(record.files) == 1 for record in records)
        return Counts(len(places), len(urls), unmarked, doubtful, part.divided, single), None
    roles = list(part.urls.values())
    texts = [text for urls in roles for text in urls.texts]
    etags = [etag for urls in roles for etag in urls.etags]
    doubtful = len(records) * (not part.plain or may_hold_secret("\n".join(texts)))
    single = len(records) if len(roles) == 1 else 0
    counts = Counts(len(texts), len(texts), etags.count(None), doubtful, part.divided, single)
    if counts.unmarked:
        return counts, None
    files = np.stack([hashes_of(texts), hashes_of(etags)], axis=1)
    sizes = np.array([0 if size is None else size for size in roles[0].sizes], np.uint64)
    return counts, Marks(files, files[: len(records), 1] ^ sizes * _ODD)


_ODD = np.uint64(0x9E3779B97F4A7C15)
"""A factor that spreads sizes over all bits."""


def tabled(records: Iterable[Kept]) -> Sequence[Kept]:
    """Return records, which may be made one by one, as a sequence that holds many in little memory.

    If they are few, of several classes, or hold what JSON does not, they stay the objects that they are. From
    `Project.records` of a project whose data may have millions of records, which then are never around all at once:

        return tabled(Record(url.name, "plate", {"image": url}) for url in urls)
    """
    left = iter(records)
    first = list(islice(left, LEAST))
    if len(first) < LEAST:
        return first
    making, left = _Making(), chain(first, left)
    del first
    while some := list(islice(left, ROWS)):
        try:
            making.add(some)
        except (TypeError, ValueError):
            return [*(cast("Sequence[Kept]", making.table()) if making.rows.count else ()), *some, *left]
    return cast("Sequence[Kept]", making.table())


def compact(records: Sequence[AnyRecord]) -> Sequence[AnyRecord]:
    """Return the records as a table if they are many, of one class, and hold what JSON has."""
    if len(records) < LEAST or isinstance(records, RecordTable):
        return records
    found = tabled(records)
    return found if isinstance(found, RecordTable) else records


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
    table._blocks = RecordBlocks(found)
    table.keys = Texts.map(folder, f"{name}-keys")
    table.groups = Coded.map(folder, f"{name}-groups")
    table.counts = Counts(*Numbers.map(folder, f"{name}-counts"))
    table.folder = folder
    return table


# ------------------------------------------------------------ what is asked of records, however they are held


def keys_of(records: Sequence[AnyRecord]) -> Sequence[str]:
    """Return the records' keys."""
    return records.keys if isinstance(records, RecordTable) else [record.key for record in records]


def groups_of(records: Sequence[AnyRecord]) -> Coded:
    """Return the records' groups."""
    return records.groups if isinstance(records, RecordTable) else Coded(record.group for record in records)


def files_of(records: Sequence[AnyRecord]) -> int:
    """Return the number of the records' files."""
    return records.counts.files if isinstance(records, RecordTable) else sum(len(record.files) for record in records)


def local_files(records: Sequence[AnyRecord]) -> Iterator[Local]:
    """Yield the files and values of all records, none of them at a URL."""
    if isinstance(records, RecordTable) and records.objects is None:
        return records.local_files()
    return (([(role, str(path)) for role, path in record.files.items()], record.values) for record in records)


def any_at_url(records: Sequence[AnyRecord]) -> bool:
    """Return whether any record has a file at a URL."""
    return records.counts.remote > 0 if isinstance(records, RecordTable) else any(map(at_url, records))


def same_keys(records: Sequence[AnyRecord]) -> list[list[int]]:
    """Return the numbers of records that share a key, for each key that several have."""
    return alike(keys_of(records), records.hashes if isinstance(records, RecordTable) else None)


def unmarked(records: Sequence[AnyRecord]) -> list[Url]:
    """Return the URLs of files without an etag, each once."""
    if isinstance(records, RecordTable) and not records.counts.unmarked:
        return []
    places = (place for record in records for place in record.files.values())
    return list(dict.fromkeys(at for at in places if isinstance(at, Url) and at.etag is None))


def any_has_split(records: Sequence[AnyRecord]) -> bool:
    """Return whether any record has a split from the data's own folders or table."""
    return records.counts.divided > 0 if isinstance(records, RecordTable) else any(record.split for record in records)


def folder_of(records: Sequence[AnyRecord]) -> Path | None:
    """Return the folder from which the records are mapped, None if they are in this process's memory."""
    return records.folder if isinstance(records, RecordTable) else None


def alike(texts: Sequence[str | None], hashes: Array | None = None) -> list[list[int]]:
    """Return the places of equal texts, each list ascending, the first places ascending; None equals nothing.

    Of many texts only `hashes_of` them are held, if they are not given, and where each lies among them: 16 bytes.

    >>> alike(["a", "b", None, "c", "b", "a", None])
    [[0, 5], [1, 4]]
    """
    hashes = hashes_of(texts) if hashes is None else hashes
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    same = np.zeros(len(order) + 1, np.bool_)
    same[1:-1] = (ordered[1:] == ordered[:-1]) & (ordered[1:] != _NO_TEXT)
    found: dict[str | None, list[int]] = {}
    for place in np.sort(order[same[:-1] | same[1:]]).tolist():
        found.setdefault(texts[place], []).append(place)
    return [places for places in found.values() if len(places) > 1]


_NO_TEXT = 0


def hashes_of(texts: Collection[str | None]) -> Array:
    """Return 64 bits for each text, by which different ones differ: (texts,) uint64; 0 for None."""
    try:
        return np.fromiter(map(_hash, map(str.encode, cast("Iterable[str]", texts))), np.uint64, len(texts))
    except (TypeError, UnicodeEncodeError):
        return np.fromiter((_NO_TEXT if t is None else hash_text(t) for t in texts), np.uint64, len(texts))


def hash_text(text: str) -> int:
    """Return 64 bits by which different texts differ."""
    return _hash(text.encode(errors="surrogatepass"))  # a path may have bytes that are no text


_hash: Callable[[bytes], int] = xxhash.xxh3_64_intdigest
