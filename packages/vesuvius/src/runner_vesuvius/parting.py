"""Merged sheets parted where they are most weakly connected: the mutex watershed.

Neighbouring voxels of the surface (26-connected) attract each other by the lower of their probabilities. Two that face
each other across the sheets repel each other by the depth of the valley between them. From the strongest on, an
attraction joins the pieces of its voxels, unless they have been kept apart, and a repulsion keeps them apart, unless
they have been joined (Wolf et al., "The mutex watershed", ECCV 2018). So two sheets stay two, if what bridges them is
weaker than the air that parts them elsewhere.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from runner_vesuvius._compiled import compiled
from runner_vesuvius.components import Mask
from runner_vesuvius.sheets import grid

Array = NDArray[Any]
ACROSS = 12
"""Voxels across the sheets in which the next one is looked for."""


def parted(mask: Mask, probability: NDArray[np.uint8], directions: NDArray[np.int16], weight: float) -> Mask:
    """Return the mask (D, H, W) bool with cuts where it joins sheets.

    `weight` is that of a valley against a bridge: a valley of depth d keeps two sheets apart if only voxels of a
    probability below `weight` · d join them. `directions` are those across the sheets (`sheets.across`). A cut takes
    from the less probable side, until no voxel touches another piece (26-connected).

    Takes 4 bytes per voxel, and by its arrays some 90 per voxel of the mask (not measured).
    """
    numbers = np.full(mask.shape, -1, np.int32)
    count = int(np.count_nonzero(mask))
    numbers[mask] = np.arange(count, dtype=np.int32)
    pieces = _pieces(count, _edges(numbers, probability, directions, weight))
    return np.asarray(_cut(numbers, pieces, np.ascontiguousarray(probability)))


class _Edges(NamedTuple):
    """Two voxels each, as numbers within the mask."""

    one: Array
    other: Array
    strength: Array
    """1 to 255 (uint8)."""
    repels: Array


def _edges(numbers: Array, probability: Array, directions: Array, weight: float) -> _Edges:
    values, count = np.ascontiguousarray(probability), 0
    for _ in range(2):  # to count them, then to keep them
        edges = _Edges(*(np.empty(count, kind) for kind in (np.int32, np.int32, np.uint8, np.bool_)))
        count = _connect(numbers, values, directions, grid(), weight, *edges)
    return edges


def _pieces(count: int, edges: _Edges) -> Array:
    """Return the number of each voxel's piece; of equally strong edges, repulsions come first."""
    rank = 2 * (255 - edges.strength.astype(np.uint16)) + ~edges.repels
    order = np.argsort(rank.astype(np.uint16), kind="stable")
    return np.asarray(_watershed(count, order, edges.one, edges.other, edges.repels))


@compiled
def _connect(numbers, values, directions, grid, weight, one, other, strength, repels):  # type: ignore[no-untyped-def]
    """Write the edges as far as there is room, and return their number."""
    depth, height, width = numbers.shape
    count = 0
    for z in range(depth):
        for y in range(height):
            for x in range(width):
                if numbers[z, y, x] < 0:
                    continue
                for k in range(14, 28):  # the neighbours that follow in memory, then the one across
                    if k < 27:
                        at = z + k // 9 - 1, y + k // 3 % 3 - 1, x + k % 3 - 1
                        if not _adjacent(numbers, (z, y, x), at):
                            continue
                        partner, power = numbers[at], np.uint8(min(values[z, y, x], values[at]))
                    else:
                        normal = grid[directions[z // 2, y // 2, x // 2]]
                        partner, valley = _opposite(numbers, values, (z, y, x), normal)
                        power = np.uint8(weight * valley)
                    if power == 0:
                        continue
                    if count < one.size:
                        one[count], other[count] = numbers[z, y, x], partner
                        strength[count], repels[count] = power, k == 27
                    count += 1
    return count


@compiled
def _adjacent(numbers, here, there):  # type: ignore[no-untyped-def]
    """Return whether `there` is a voxel of the mask, and no other one lies in the box that the two span."""
    for axis in range(3):
        if not 0 <= there[axis] < numbers.shape[axis]:
            return False
    if numbers[there] < 0:
        return False
    for z in (here[0], there[0]):
        for y in (here[1], there[1]):
            for x in (here[2], there[2]):
                if numbers[z, y, x] >= 0 and (z, y, x) != here and (z, y, x) != there:
                    return False
    return True


@compiled
def _opposite(numbers, values, at, normal):  # type: ignore[no-untyped-def]
    """Return the voxel of the mask behind the first valley along the normal, and the valley's depth."""
    here = lowest = float(values[at[0], at[1], at[2]])
    depth, found = 0.0, np.int32(0)
    for step in range(1, ACROSS + 1):
        z, y, x = (
            int(np.floor(at[0] + step * normal[0] + 0.5)),
            int(np.floor(at[1] + step * normal[1] + 0.5)),
            int(np.floor(at[2] + step * normal[2] + 0.5)),
        )
        if not (0 <= z < values.shape[0] and 0 <= y < values.shape[1] and 0 <= x < values.shape[2]):
            break
        value = float(values[z, y, x])
        lowest = min(lowest, value)
        if numbers[z, y, x] < 0:
            continue
        if min(here, value) - lowest > depth:
            depth, found = min(here, value) - lowest, numbers[z, y, x]
        elif depth > 0:
            break
    return found, depth


@compiled
def _root(parents, i):  # type: ignore[no-untyped-def]
    while parents[i] != i:
        parents[i] = parents[parents[i]]
        i = parents[i]
    return i


@compiled
def _watershed(count, order, one, other, repels):  # type: ignore[no-untyped-def]
    """Follow the edges in this order and return each voxel's root.

    Every root has a linked list of voxels, from `first` to `last`, of the pieces that its own is kept apart from.
    """
    parents = np.arange(count).astype(np.int32)
    first, last = np.full(count, -1, np.int32), np.full(count, -1, np.int32)
    length, size = np.zeros(count, np.int32), np.ones(count, np.int32)
    foes, following = np.empty(2 * count + 1, np.int32), np.empty(2 * count + 1, np.int32)
    used = 0
    for edge in order:
        a, b = _root(parents, one[edge]), _root(parents, other[edge])
        if a == b:
            continue
        few, many = (a, b) if length[a] < length[b] else (b, a)
        entry = first[few]
        while entry >= 0 and _root(parents, foes[entry]) != many:
            entry = following[entry]
        if entry >= 0:  # they are kept apart
            continue
        if repels[edge]:
            for own, foe in ((a, b), (b, a)):
                foes[used], following[used] = foe, first[own]
                if first[own] < 0:
                    last[own] = used
                first[own] = used
                length[own] += 1
                used += 1
            continue
        if size[a] < size[b]:
            a, b = b, a
        parents[b] = a
        size[a] += size[b]
        length[a] += length[b]
        if first[b] >= 0:
            if first[a] < 0:
                first[a] = first[b]
            else:
                following[last[a]] = first[b]
            last[a] = last[b]
    for i in range(count):
        parents[i] = _root(parents, np.int32(i))
    return parents


@compiled
def _cut(numbers, pieces, values):  # type: ignore[no-untyped-def]
    """Return the mask without voxels that touch a more probable one of another piece (of equals: a later piece's)."""
    depth, height, width = numbers.shape
    out = numbers >= 0
    for z in range(depth):
        for y in range(height):
            for x in range(width):
                if numbers[z, y, x] < 0:
                    continue
                own, value = pieces[numbers[z, y, x]], values[z, y, x]
                for a in range(max(0, z - 1), min(depth, z + 2)):
                    for b in range(max(0, y - 1), min(height, y + 2)):
                        for c in range(max(0, x - 1), min(width, x + 2)):
                            if numbers[a, b, c] < 0:
                                continue
                            other = pieces[numbers[a, b, c]]
                            if other != own and (values[a, b, c], other) > (value, own):
                                out[z, y, x] = False
    return out
