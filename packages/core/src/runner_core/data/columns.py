"""Columns of values for many records: NumPy arrays, written as .npy files and read through memory maps.

All processes of a machine that map one file share its memory, and workers are sent its path (`base.workers.Packed`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np

from runner_core.base.writing import whole_file
from runner_core.contract import Array

Item = TypeVar("Item")
Kind = TypeVar("Kind", bound="Column[Any]")


def save_array(file: Path, array: Array) -> None:
    """Write an .npy file; OSError says why writing failed, which that of `np.save` does not."""
    with file.open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, np.lib.format.header_data_from_array_1_0(array))
        stream.write(np.ascontiguousarray(array).data.cast("B") if array.size else b"")


def map_array(file: Path) -> Array:
    """Return the array of an .npy file as a read-only memory map; raise OSError or ValueError."""
    return np.asarray(np.load(file, mmap_mode="r", allow_pickle=False))  # a plain array: np.memmap is slow to slice


class Column(Sequence[Item]):
    """Values that are held in arrays: `parts` names those attributes."""

    parts: ClassVar[tuple[str, ...]] = ()

    def __getitem__(self, number: Any) -> Any:
        if type(number) is int and 0 <= number < len(self):
            return self.at(number)
        found = range(len(self))[number]
        return [self.at(n) for n in found] if isinstance(found, range) else self.at(found)

    def at(self, number: int) -> Item:
        """Return the value at 0…len - 1."""
        raise NotImplementedError

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(getattr(self, part).nbytes for part in self.parts)

    def save(self, folder: Path, name: str) -> None:
        """Write the arrays into `folder`; each file is there whole or not at all."""
        for part in self.parts:
            with whole_file(folder / f"{name}.{part}.npy") as temporary:
                save_array(temporary, getattr(self, part))

    @classmethod
    def map(cls: type[Kind], folder: Path, name: str) -> Kind:
        """Return the column that `save` wrote, mapped; raise OSError or ValueError."""
        return cls.over({part: map_array(folder / f"{name}.{part}.npy") for part in cls.parts})

    @classmethod
    def over(cls: type[Kind], arrays: Mapping[str, Array]) -> Kind:
        """Return a column of these arrays."""
        made = cls.__new__(cls)
        made.__dict__.update(arrays)
        return made


class Same(Sequence[Item]):
    """A column that has one value `count` times.

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


class Numbers(Column[int]):
    """Integers as int64; `np.asarray` returns them without a copy.

    >>> Numbers([3, 5, 8])[1:], 5 in Numbers([3, 5])
    ([5, 8], True)
    """

    parts = ("numbers",)
    numbers: Array

    def __init__(self, numbers: Sequence[int] | Array) -> None:
        self.numbers = np.asarray(numbers, np.int64)

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[int]:
        for first in range(0, len(self), 1 << 16):
            yield from self.numbers[first : first + (1 << 16)].tolist()

    def at(self, number: int) -> int:
        return int(self.numbers[number])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self.numbers, dtype) if copy else np.asarray(self.numbers, dtype)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


class Digests(Column[str]):
    """Texts of 32 hexadecimal digits, each in 16 bytes.

    >>> Digests(["00" * 16, "ab" * 16])[1][:4]
    'abab'
    """

    parts = ("digests",)
    digests: Array

    def __init__(self, texts: Iterable[str]) -> None:
        texts, packed = iter(texts), bytearray()
        while some := "".join(islice(texts, 1 << 12)):
            packed += bytes.fromhex(some)
        self.digests = np.frombuffer(packed, np.uint8).reshape(-1, 16)

    def __len__(self) -> int:
        return len(self.digests)

    def __iter__(self) -> Iterator[str]:
        for text in self.joined():
            yield from (text[n : n + 32] for n in range(0, len(text), 32))

    def joined(self) -> Iterator[str]:
        """Yield the texts of some thousands, one after the other, until there are no more."""
        for first in range(0, len(self), 1 << 12):
            yield self.digests[first : first + (1 << 12)].tobytes().hex()

    def count_among(self, texts: Collection[str]) -> int:
        """Return how many of them are among the texts, which have the same form."""
        wanted = Digests(texts).digests
        own, others = (np.ascontiguousarray(digests[:, :8]).view(np.uint64) for digests in (self.digests, wanted))
        known = set(texts)
        return sum(self.at(place) in known for place in np.flatnonzero(np.isin(own.ravel(), others.ravel())).tolist())

    def at(self, number: int) -> str:
        return self.digests[number].tobytes().hex()


class SomeDigests(Column[str | None]):
    """Texts of 32 hexadecimal digits or None, each in 16 bytes; 32 zeros are None.

    >>> found = SomeDigests(["ab" * 16, None])
    >>> found[1], None in found, found.hashes.tolist()
    (None, True, [12370169555311111083, 0])
    """

    parts = ("digests",)
    digests: Array

    def __init__(self, texts: Iterable[str | None]) -> None:
        self.digests = Digests(_NO_DIGEST if text is None else text for text in texts).digests

    def __len__(self) -> int:
        return len(self.digests)

    def __iter__(self) -> Iterator[str | None]:
        yield from (None if text == _NO_DIGEST else text for text in self._all)

    def __contains__(self, text: object) -> bool:
        return bool(len(self.missing)) if text is None else super().__contains__(text)

    @property
    def missing(self) -> Array:
        """Numbers of those that are None, (missing,) int64."""
        return np.flatnonzero(~self.digests.any(axis=1))

    def filled(self, numbers: Array, others: SomeDigests) -> SomeDigests:
        """Return a copy with these other ones at `numbers`."""
        digests = np.array(self.digests)
        digests[numbers] = others.digests
        return self.over({"digests": digests})

    @property
    def complete(self) -> Digests | None:
        """Return these digests without copies, if none is None."""
        return None if None in self else self._all

    @property
    def hashes(self) -> Array:
        """64 bits of each, by which different ones differ, 0 for None: (digests,) uint64."""
        return np.ascontiguousarray(self.digests[:, :8]).view(np.uint64).ravel()

    @property
    def _all(self) -> Digests:
        return Digests.over({"digests": self.digests})

    def at(self, number: int) -> str | None:
        text = self.digests[number].tobytes().hex()
        return None if text == _NO_DIGEST else text


_NO_DIGEST = "0" * 32


class Shapes(Column[tuple[int, ...]]):
    """Shapes of arrays, of up to 255 axes each.

    >>> Shapes([(3, 4), (), (5,)])[:]
    [(3, 4), (), (5,)]
    """

    parts = ("sides", "axes", "starts")
    sides: Array
    """(shapes, most axes) int64; those beyond a shape's own axes are 0."""
    axes: Array
    """(shapes,) uint8."""
    starts: Array
    """(shapes + 1,) int64: where each array begins if all lie one after the other, in items."""

    def __init__(self, shapes: Sequence[Sequence[int]]) -> None:
        self.axes = np.fromiter(map(len, shapes), np.uint8, len(shapes))
        self.sides = np.zeros((len(shapes), int(self.axes.max(initial=0))), np.int64)
        for axes in np.unique(self.axes).tolist():
            places = np.flatnonzero(self.axes == axes)
            own = [shapes[n] for n in places.tolist()]
            self.sides[places, :axes] = np.array(own, np.int64).reshape(len(own), axes)
        items = np.where(np.arange(self.sides.shape[1]) < self.axes[:, None], self.sides, 1).prod(axis=1)
        self.starts = np.concatenate([[0], np.cumsum(items)]).astype(np.int64)

    def __len__(self) -> int:
        return len(self.axes)

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        for first in range(0, len(self), 1 << 12):
            some = slice(first, first + (1 << 12))
            for sides, axes in zip(self.sides[some].tolist(), self.axes[some].tolist(), strict=True):
                yield tuple(sides[:axes])

    @property
    def trailing(self) -> tuple[int, ...] | None:
        """All sides but the first, if all arrays have one and share the others; else None."""
        alike = len(self) > 0 and self.axes.min() == self.axes.max() > 0
        return self.at(0)[1:] if alike and (self.sides[:, 1:] == self.sides[0, 1:]).all() else None

    def at(self, number: int) -> tuple[int, ...]:
        return tuple(self.sides[number, : self.axes[number]].tolist())


def kept(folder: Path | None, name: str, kind: type[Kind], make: Callable[[], Kind]) -> Kind:
    """Return the column `name` of `folder`, mapped; it is made and written first if it is missing.

    Without a folder, or if the folder cannot be written, it is only made.
    """
    if folder is None:
        return make()
    try:
        return kind.map(folder, name)
    except (OSError, ValueError):
        made = make()
    try:
        made.save(folder, name)
        return kind.map(folder, name)
    except (OSError, ValueError):
        return made
