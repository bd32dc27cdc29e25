"""Post-processing of probabilities in blocks, in bounded memory: the same as `postprocess.surface` of the whole volume.

Averages along sheets, and their crests, need a halo around each block. Components may run through all blocks: each
labels its own, and those that reach its ends are joined by union-find over the faces that blocks share. A block is
labelled together with the first voxels of the next blocks, so that any two voxels that touch lie in one block.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from runner_core import Array

from runner_vesuvius import crests, sheets
from runner_vesuvius.chunked import Region
from runner_vesuvius.components import label6, label26, sizes


@dataclass(frozen=True)
class Blocks:
    """A volume cut into cubes of `side` voxels, or boxes of three sides; the last ones of an axis are shorter."""

    shape: tuple[int, int, int]
    side: int | tuple[int, int, int]

    def __len__(self) -> int:
        return int(np.prod(self.grid))

    @property
    def grid(self) -> tuple[int, ...]:
        return tuple(-(-n // side) for n, side in zip(self.shape, self._sides, strict=True))

    @property
    def _sides(self) -> tuple[int, int, int]:
        return (self.side,) * 3 if isinstance(self.side, int) else self.side

    def region(self, number: int) -> Region:
        place = np.unravel_index(number, self.grid)
        parts = [
            slice(int(i) * side, min((int(i) + 1) * side, n))
            for n, side, i in zip(self.shape, self._sides, place, strict=True)
        ]
        return parts[0], parts[1], parts[2]

    def wider(self, number: int, before: int, after: int) -> Region:
        """Return a block's region with as many voxels around it as the volume has."""
        parts = [
            slice(max(0, part.start - before), min(n, part.stop + after))
            for part, n in zip(self.region(number), self.shape, strict=True)
        ]
        return parts[0], parts[1], parts[2]

    def next(self, number: int, axis: int) -> int | None:
        """Return the number of the block that follows along an axis."""
        place = [int(i) for i in np.unravel_index(number, self.grid)]
        place[axis] += 1
        return None if place[axis] == self.grid[axis] else int(np.ravel_multi_index(place, self.grid))


def redrawn(read: Callable[[Region], Array], blocks: Blocks, number: int, sigma: float, thickness: float) -> Array:
    """Return a block of the probabilities that `read` gives, averaged along the sheets and drawn anew."""
    halo = -(-(sheets.halo(sigma) + crests.halo(thickness)) // 2) * 2
    wide, own = blocks.wider(number, halo, halo), blocks.region(number)
    values = read(wide)
    directions = sheets.across(values)
    averaged = sheets.along_sheets(values, directions, sigma)
    return crests.drawn(averaged, directions, thickness)[_inside(wide, own)]


@dataclass(frozen=True)
class Pieces:
    """The components of one block, labelled together with the first voxels of the next blocks."""

    labels: Array
    size: Array
    """Voxels of each component in the block itself; entry 0 is no component."""
    marked: Array
    """For each component, whether it holds a marked voxel."""
    border: Array
    """Labels of the components that other blocks may share."""

    @classmethod
    def of(cls, mask: Array, marks: Array, blocks: Blocks, number: int, full: bool) -> Pieces:
        """Label a block's mask, of `blocks.wider(number, 0, 1)`: 26-connected if `full`, else 6-connected."""
        if mask.all():  # a block of air alone is common, and quick
            labels, count = np.ones(mask.shape, np.int32), 1
        else:
            labels, count = (label26 if full else label6)(mask)
        wide, own = blocks.wider(number, 0, 1), blocks.region(number)
        marked = np.zeros(count + 1, bool)
        marked[labels[marks]] = True
        found = [np.unique(_plane(labels, axis, side)) for axis, side in _shared(wide, own)]
        border = np.unique(np.concatenate([*found, np.zeros(1, np.int32)]))
        return cls(labels, sizes(labels[_inside(wide, own)], count), marked, border[border > 0])

    def table(self, blocks: Blocks, number: int) -> Array:
        """Return what other blocks must know, as bytes: components at the ends, and the planes they share."""
        names = np.zeros(len(self.size), np.int32)
        names[self.border] = np.arange(1, len(self.border) + 1)
        planes = {
            f"{axis}{side}": names[_plane(self.labels, axis, side)]
            for axis, side in _shared(blocks.wider(number, 0, 1), blocks.region(number))
        }
        file = io.BytesIO()
        np.savez_compressed(file, size=self.size[self.border], marked=self.marked[self.border], **planes)
        return np.frombuffer(file.getvalue(), np.uint8)

    def keep(self, size: Array, marked: Array, choose: Callable[[Array, Array], Array]) -> Array:
        """Return the mask of the components that `choose(size, marked)` keeps.

        `size` and `marked` are those of whole components, for each component of `border`.
        """
        sums, marks = self.size.copy(), self.marked.copy()
        sums[self.border], marks[self.border] = size, marked
        chosen = choose(sums, marks)
        chosen[0] = False
        return chosen[self.labels]


def joined(tables: Callable[[int], Array], blocks: Blocks) -> Callable[[int], tuple[Array, Array]]:
    """Return a function of a block's number: size and mark of the whole component, for each at the block's ends.

    `tables(number)` returns a block's `Pieces.table`. Takes about 40 bytes for each component that reaches the end of
    a block, counted in each block, and 4 bytes a voxel of the planes of one layer of blocks (0.2 GB for a scroll of
    7,000 × 7,000 voxels a plane).
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    first = np.zeros(len(blocks) + 1, np.int64)
    size, marked, edges = [], [], []
    waiting: dict[tuple[int, int], tuple[Array, np.int64]] = {}
    for number in range(len(blocks)):
        with np.load(io.BytesIO(tables(number).tobytes())) as found:
            size.append(found["size"])
            marked.append(found["marked"])
            first[number + 1] = first[number] + len(size[-1])
            for axis in range(3):
                if (before := waiting.pop((number, axis), None)) is not None:
                    pairs = np.stack([before[0].reshape(-1), found[f"{axis}0"].reshape(-1)])
                    both = np.unique(pairs[:, (pairs > 0).all(0)], axis=1)
                    edges.append(both + np.array([[before[1]], [first[number]]]) - 1)
                if (following := blocks.next(number, axis)) is not None:
                    waiting[following, axis] = found[f"{axis}-1"], first[number]
    count = int(first[-1])
    a, b = np.concatenate([np.empty((2, 0), np.int64), *edges], axis=1)
    _, whole = connected_components(coo_array((np.ones(len(a), bool), (a, b)), shape=(count, count)), directed=False)
    total = np.zeros(count + 1, np.int64)
    np.add.at(total, whole, np.concatenate([np.empty(0, np.int64), *size]))
    any_marked = np.zeros(count + 1, bool)
    any_marked[whole[np.concatenate([np.empty(0, bool), *marked])]] = True

    def look_up(number: int) -> tuple[Array, Array]:
        own = whole[first[number] : first[number + 1]]
        return total[own], any_marked[own]

    return look_up


def at_the_ends(shape: Sequence[int], region: Region) -> Array:
    """Return which voxels of a region lie at the ends of the volume."""
    found = np.zeros([part.stop - part.start for part in region], bool)
    for axis, (n, part) in enumerate(zip(shape, region, strict=True)):
        if part.start == 0:
            _plane(found, axis, 0)[...] = True
        if part.stop == n:
            _plane(found, axis, -1)[...] = True
    return found


def halved(read: Callable[[Region], Array], shape: Sequence[int], region: Region, largest: bool) -> Array:
    """Return a region of a volume at half its resolution: the mean of 2 × 2 × 2 voxels, or the largest of them.

    `shape` and what `read` returns are of the full resolution. The last voxel of an odd side counts twice.
    """
    wide = [slice(2 * part.start, min(2 * part.stop, n)) for part, n in zip(region, shape, strict=True)]
    found = read((wide[0], wide[1], wide[2]))
    found = np.pad(found, [(0, n % 2) for n in found.shape], mode="edge")
    corners = [found[z::2, y::2, x::2] for z, y, x in product((0, 1), repeat=3)]
    if largest:
        return np.maximum.reduce(corners)
    total = np.full(corners[0].shape, 4, np.uint16)
    for corner in corners:
        total += corner
    return (total // 8).astype(np.uint8)


def _shared(wide: Region, own: Region) -> list[tuple[int, int]]:
    """Return the first and last planes (axis, 0 or −1) of a block's wider region that another block has too."""
    first = [(axis, 0) for axis in range(3) if own[axis].start > 0]
    return [*first, *((axis, -1) for axis in range(3) if wide[axis].stop > own[axis].stop)]


def _plane(array: Array, axis: int, side: int) -> Any:
    return np.moveaxis(array, axis, 0)[side]


def _inside(wide: Region, own: Region) -> Region:
    parts = [slice(b.start - a.start, b.stop - a.start) for a, b in zip(wide, own, strict=True)]
    return parts[0], parts[1], parts[2]
