"""Columns whose values are compressed in blocks, or are texts of which many are the same; and a choice among values."""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from runner_core.contract import Array, Json
from runner_core.data.columns import Column, Item, Kind

ROWS = 64
"""Values that are compressed together."""


_JSON = json.JSONEncoder(separators=(",", ":"), check_circular=False)


class Packing:
    """Blocks of JSON values that are compressed one after the other, for a `Blocks` to take."""

    def __init__(self) -> None:
        self.packed, self.ends, self.count = bytearray(), [0], 0

    def add(self, block: Json, rows: int) -> None:
        """Add a block that holds `rows` values: ROWS of them, except in the last block."""
        self.packed += zlib.compress(_JSON.encode(block).encode(), 1)
        self.ends.append(len(self.packed))
        self.count += rows

    def extend(self, other: Packing) -> None:
        """Add the blocks of another one."""
        self.ends += [len(self.packed) + end for end in other.ends[1:]]
        self.packed += other.packed
        self.count += other.count


class Blocks(Column[Item]):
    """JSON values, ROWS of them compressed together; the block that was read last is kept."""

    parts = ("packed", "ends", "total")
    packed: Array
    ends: Array
    """(blocks + 1,) int64: where each block begins in `packed`."""
    total: Array
    """(1,) int64: number of values."""

    def __init__(self, values: Iterable[Json]) -> None:
        packing, values = Packing(), iter(values)
        while rows := list(islice(values, ROWS)):
            packing.add(rows, len(rows))
        self._take(packing)

    def _take(self, packing: Packing) -> None:
        self.packed = np.frombuffer(packing.packed, np.uint8)
        self.ends, self.total = np.array(packing.ends, np.int64), np.array([packing.count], np.int64)

    @classmethod
    def of(cls: type[Kind], packing: Packing) -> Kind:
        """Return the values that were packed."""
        made = cls.__new__(cls)
        made._take(packing)  # type: ignore[attr-defined]
        return made

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_last"}

    def __len__(self) -> int:
        return int(self.total[0])

    def at(self, number: int) -> Any:
        block, row = divmod(number, ROWS)
        return self.opened(block, [row])[0]

    def __iter__(self) -> Iterator[Any]:
        for block in range(len(self.ends) - 1):
            yield from self.opened(block, range(min(ROWS, len(self) - block * ROWS)))

    def some(self, numbers: Array) -> Iterator[Any]:
        """Yield the values of these numbers (0…len - 1); a block is unpacked once for all that follow each other."""
        for first in range(0, len(numbers), 1 << 16):
            blocks, rows = np.divmod(numbers[first : first + (1 << 16)], ROWS)
            begins = np.flatnonzero(np.diff(blocks, prepend=-1)).tolist()
            own = rows.tolist()
            for begin, end in pairwise([*begins, len(own)]):
                yield from self.opened(int(blocks[begin]), own[begin:end])

    def opened(self, block: int, rows: Sequence[int]) -> list[Any]:
        """Return the values in these rows of a block."""
        return list(map(self._block(block).__getitem__, rows))

    def _block(self, number: int) -> Any:
        last, found = self.__dict__.get("_last", (-1, None))  # read at once: other threads replace it
        if last != number:
            packed = self.packed[self.ends[number] : self.ends[number + 1]].tobytes()
            found = json.loads(zlib.decompress(packed))
            self.__dict__["_last"] = number, found
        return found


class Texts(Blocks[str]):
    """Texts, such as keys of records."""


class Coded(Column[str]):
    """Texts of which many are the same, such as groups: the number of each in the list of all that differ.

    >>> found = Coded(["b", "a", "b"])
    >>> found.names[:], found.codes.tolist(), found[2]
    (['b', 'a'], [0, 1, 0], 'b')
    """

    parts = ("codes",)
    codes: Array
    """(texts,) int32."""
    names: Sequence[str]

    def __init__(self, texts: Iterable[str]) -> None:
        known: dict[str, int] = {}
        self.codes = np.fromiter((known.setdefault(text, len(known)) for text in texts), np.int32)
        self.names = list(known)

    @classmethod
    def of(cls, codes: Array, names: Sequence[str]) -> Coded:
        """Return the texts `names[code]`."""
        made = cls.over({"codes": codes})
        made.names = names
        return made

    def __len__(self) -> int:
        return len(self.codes)

    def at(self, number: int) -> str:
        return self.names[self.codes[number]]

    def distinct(self, numbers: Sequence[int] | Array) -> list[str]:
        """Return the texts at these numbers, sorted, each once."""
        counts = np.bincount(self.codes[np.asarray(numbers, np.int64)])
        return sorted(self.names[code] for code in np.flatnonzero(counts).tolist())

    def among(self, texts: Collection[str]) -> Array:
        """Return for each text whether it is among these: bool."""
        return np.fromiter((name in texts for name in self.names), np.bool_, len(self.names))[self.codes]

    def save(self, folder: Path, name: str) -> None:
        super().save(folder, name)
        Texts(self.names).save(folder, f"{name}-names")

    @classmethod
    def map(cls, folder: Path, name: str) -> Coded:
        found = super().map(folder, name)
        found.names = Texts.map(folder, f"{name}-names")
        return found


class Chosen(Sequence[Item]):
    """Items chosen by their `numbers`, each taken when it is asked for.

    >>> Chosen("abcd", [3, 1])[:]
    ['d', 'b']
    """

    def __init__(self, items: Sequence[Item], numbers: Sequence[int]) -> None:
        self._items, self._numbers = items, numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return [self._items[n] for n in self._numbers[number]]
        return self._items[self._numbers[number]]

    def __iter__(self) -> Iterator[Item]:
        if isinstance(self._items, Blocks):
            return self._items.some(np.asarray(self._numbers, np.int64))
        return map(self._items.__getitem__, self._numbers)
