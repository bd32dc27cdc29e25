"""Which loops of two volumes are one loop of their union: with which squares they die in it.

Let C be a binary volume within its box, filled cell by cell in the order of Betti-Matching-3D: of the cells of one
dimension, by the first voxel (z, y, x), then by axis (of a square: the one normal to it). Loops of C die with squares.
By Alexander duality that is seen from outside: dual vertices are the cubes outside of C and one vertex beyond the box,
dual edges are the squares outside of C. Taken in reverse order, a square whose cubes were connected before closes a
dual cycle γ. A loop of P ⊂ C dies in C with the square if γ is independent, in the first homology of the complement of
P, of the cycles closed before.

Independence is tested by linking numbers with a basis of P's loops: the homology of the complement and that of P are
dual by them (Seifert & Threlfall 1934, §77). Modulo 2, the linking number of γ and a loop is the number of squares of γ
in the wall that the loop leaves when it is swept down to z = 0, and along that face to y = 0.

The squares are scanned once, with a union-find whose links carry the sum of random 64-bit words of the loops that
are linked: only dual cycles with a word not seen before are looked at in full (two classes have the same word with a
probability of 2⁻⁶³).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from runner_vesuvius._compiled import compiled
from runner_vesuvius.metric.loops import Loops

Array = np.ndarray[Any, Any]


class _Walls(NamedTuple):
    """Edges of loops that are swept, column by column, from the top down.

    Squares normal to y are swept over by edges along x, those normal to x by edges along y: columns (y, x) each.
    Squares normal to z are, in the lowest plane only, by edges along x: columns x, in which y is the height.
    """

    starts: Array
    heights: Array
    loops: Array
    words: Array
    """Sum of the loops' words from the top of the column to here."""


def deaths(union: Array, parts: Sequence[Loops]) -> list[Array]:
    """For each part of `union` (a bool volume), the sorted squares with which its loops die in it.

    `parts`: loops of each part, whose foreground is within the union's. Squares as 3 × index of the voxel + normal.
    """
    first_bits = np.cumsum([0] + [-(-loops.number // 64) * 64 for loops in parts])
    walls = _sweep(union.shape, parts, first_bits)
    tree, candidates = _scan(union.reshape(-1), *walls, *union.shape)
    directions, jumps = _paths(tree, *walls, *union.shape)
    rows = np.zeros((len(candidates), first_bits[-1] // 64), np.uint64)
    _link(candidates, directions, jumps, tuple(walls), *union.shape, rows)
    words = first_bits // 64
    return [
        np.sort(candidates[_independent(rows[:, begin:end].copy(), part.number)])
        for part, begin, end in zip(parts, words[:-1], words[1:], strict=True)
    ]


def _sweep(shape: tuple[int, ...], groups: Sequence[Loops], first_bits: Array) -> _Walls:
    _, height, width = shape
    columns, heights, loops = [], [], []
    for group, first in zip(groups, first_bits, strict=False):
        loop = np.repeat(np.arange(group.number) + first, np.diff(group.starts))
        axis, voxel = group.edges % 3, group.edges // 3
        z, column = voxel // (height * width), voxel % (height * width)
        along_x, along_y = axis == 2, axis == 1
        columns += [column[along_x], column[along_y] + height * width, 2 * height * width + column[along_x] % width]
        heights += [z[along_x], z[along_y], column[along_x] // width]
        loops += [loop[along_x], loop[along_y], loop[along_x]]
    at, level, which = np.concatenate(columns), np.concatenate(heights), np.concatenate(loops)
    order = np.lexsort((-level, at))
    at, level, which = at[order], level[order], which[order]
    starts = np.searchsorted(at, np.arange(2 * height * width + width + 1))
    words = np.random.Generator(np.random.Philox(0)).integers(1, 2**63, int(first_bits[-1]), np.int64)[which]
    sums = np.bitwise_xor.accumulate(np.append(0, words))
    own = sums[1:] ^ np.repeat(sums[starts[:-1]], np.diff(starts))
    return _Walls(starts, level.astype(np.int32), which.astype(np.int32), own)


@compiled
def _column(square, normal, height, width):  # type: ignore[no-untyped-def]
    """The column that a square lies in (-1: none) and its height there."""
    z, column = square // (height * width), square % (height * width)
    if normal == 1:
        return column, z
    if normal == 2:
        return height * width + column, z
    if z == 0:
        return 2 * height * width + column % width, column // width
    return np.int64(-1), z


@compiled
def _word(square, normal, height, width, starts, heights, words):  # type: ignore[no-untyped-def]
    column, level = _column(square, normal, height, width)
    if column < 0:
        return np.int64(0)
    word = np.int64(0)
    for k in range(starts[column], starts[column + 1]):
        if heights[k] <= level:
            break
        word = words[k]
    return word


@compiled
def _root(parents, words, i):  # type: ignore[no-untyped-def]
    """The root of i, and the sum of words on the way."""
    word = np.int64(0)
    while parents[i] != i:
        parent = parents[i]
        words[i] ^= words[parent]
        word ^= words[i]
        parents[i] = parents[parent]
        i = parents[i]
    return np.int64(i), word


@compiled
def _cubes(inside, square, normal, at, shape, step):  # type: ignore[no-untyped-def]
    """The two cubes that a square outside the volume is between (beyond the box: inside.size); -1: there is none."""
    a, b = (normal + 1) % 3, (normal + 2) % 3
    if at[a] + 1 == shape[a] or at[b] + 1 == shape[b]:
        return np.int64(-1), np.int64(-1)
    if inside[square] and inside[square + step[a]] and inside[square + step[b]] and inside[square + step[a] + step[b]]:
        return np.int64(-1), np.int64(-1)
    above = square if at[normal] + 1 < shape[normal] else inside.size
    return np.int64(above), np.int64(square - step[normal] if at[normal] else inside.size)


@compiled
def _scan(inside, starts, heights, loops, words, depth, height, width):  # type: ignore[no-untyped-def]
    """Squares outside the volume in reverse order: those that join (bits of their first voxel), and those that close a
    cycle with a word that is new."""
    shape, step = (depth, height, width), (height * width, width, 1)
    outer = inside.size
    parents = np.arange(outer + 1).astype(np.int32)
    sums = np.zeros(outer + 1, np.int64)
    tree = np.zeros(outer, np.uint8)
    seen = {np.int64(0)}
    candidates = np.empty(1024, np.int64)
    count = 0
    for i in range(outer - 1, -1, -1):
        at = (i // step[0], i // width % height, i % width)
        for normal in range(2, -1, -1):
            a, b = _cubes(inside, i, normal, at, shape, step)
            if a < 0:
                continue
            a, word = _root(parents, sums, a)
            b, other = _root(parents, sums, b)
            word ^= other ^ _word(np.int64(i), normal, height, width, starts, heights, words)
            if a != b:
                if b == outer:
                    a, b = b, a
                parents[b], sums[b] = a, word
                tree[i] |= 1 << normal
            elif word not in seen:
                seen.add(word)
                if count == candidates.size:
                    candidates = np.concatenate((candidates, np.empty(count, np.int64)))
                candidates[count] = 3 * i + normal
                count += 1
    return tree, candidates[:count].copy()


@compiled
def _leave(tree, walls, directions, jumps, queue, depth, height, width):  # type: ignore[no-untyped-def]
    """Steps of the tree out of the box: directions, jumps and queue of the cubes they begin at, and how many."""
    step, ends = (height * width, width, 1), (depth - 1, height - 1, width - 1)
    starts, heights, _, words = walls
    count = 0
    for i in range(tree.size):
        if not tree[i]:
            continue
        at = (i // step[0], i // width % height, i % width)
        for normal in range(3):
            low, high = at[normal] == 0, at[normal] == ends[normal]
            if tree[i] >> normal & 1 and (low or high):
                child = i if low else i - step[normal]
                directions[child] = normal if low else normal + 3
                if _word(np.int64(i), normal, height, width, starts, heights, words) != 0:
                    jumps[child] = child
                queue[count] = child
                count += 1
    return count


@compiled
def _paths(tree, starts, heights, loops, words, depth, height, width):  # type: ignore[no-untyped-def]
    """The trees from their roots: each cube's direction to its parent (normal, +3: upwards; 6: a root; 7: in no tree),
    and the nearest cube on the way (itself too) whose step to its parent passes a wall (-1: none)."""
    step, ends = (height * width, width, 1), (depth - 1, height - 1, width - 1)
    directions = np.full(tree.size, 7, np.uint8)
    jumps = np.full(tree.size, -1, np.int32)
    queue = np.empty(tree.size, np.int32)
    walls = (starts, heights, loops, words)
    head, tail = 0, _leave(tree, walls, directions, jumps, queue, depth, height, width)
    for start in range(-1, tree.size):
        if start >= 0:  # what is left are cavities: trees without a way out
            cube = start // step[0] < ends[0] and start // width % height < ends[1] and start % width < ends[2]
            if not (cube and tree[start] and directions[start] == 7):
                continue
            directions[start] = 6
            queue[tail] = start
            tail += 1
        while head < tail:
            i = np.int64(queue[head])
            head += 1
            at = (i // step[0], i // width % height, i % width)
            for turn in range(6):
                normal, side = turn % 3, turn // 3
                square = i + side * step[normal]
                if not tree[square] >> normal & 1 or at[normal] + side == 0 or at[normal] + side == ends[normal]:
                    continue
                child = square if side else i - step[normal]
                if directions[child] == 7:
                    directions[child] = normal if side else normal + 3
                    passes = _word(square, normal, height, width, starts, heights, words) != 0
                    jumps[child] = child if passes else jumps[i]
                    queue[tail] = child
                    tail += 1
    return directions, jumps


@compiled
def _toggle(square, normal, height, width, starts, heights, loops, row):  # type: ignore[no-untyped-def]
    column, level = _column(square, normal, height, width)
    if column < 0:
        return
    for k in range(starts[column], starts[column + 1]):
        if heights[k] <= level:
            break
        row[loops[k] >> 6] ^= np.uint64(1) << np.uint64(loops[k] & 63)


@compiled
def _link(candidates, directions, jumps, walls, depth, height, width, rows):  # type: ignore[no-untyped-def]
    """Linking numbers of each candidate's cycle with all loops, as bits."""
    starts, heights, loops, _ = walls
    step, ends = (height * width, width, 1), (depth - 1, height - 1, width - 1)
    for k in range(candidates.size):
        i, normal = candidates[k] // 3, candidates[k] % 3
        at = (i // step[0], i // width % height, i % width)
        _toggle(i, normal, height, width, starts, heights, loops, rows[k])
        for side in range(2):
            if at[normal] == (0 if side else ends[normal]):
                continue
            cube = jumps[i - side * step[normal]]
            while cube >= 0:
                way = directions[cube]
                axis = way % 3
                square = cube + (step[axis] if way >= 3 else 0)
                _toggle(np.int64(square), np.int64(axis), height, width, starts, heights, loops, rows[k])
                at_end = cube // step[axis] % (ends[axis] + 1)
                if at_end == (ends[axis] - 1 if way >= 3 else 0):
                    break
                cube = jumps[cube + (step[axis] if way >= 3 else -step[axis])]


@compiled
def _independent(rows, rank):  # type: ignore[no-untyped-def]
    """Which rows (bits modulo 2; they are used up) do not depend on those before them; `rank`: no more than so many."""
    number, words = rows.shape
    pivots = np.full(64 * words, -1, np.int64)
    found = np.zeros(number, np.bool_)
    count = 0
    for k in range(number):
        if count == rank:
            break
        for w in range(words):
            while rows[k, w]:
                low = rows[k, w] & (~rows[k, w] + np.uint64(1))
                bit = 64 * w
                while low > np.uint64(1):
                    low >>= np.uint64(1)
                    bit += 1
                pivot = pivots[bit]
                if pivot < 0:
                    pivots[bit] = k
                    found[k] = True
                    count += 1
                    break
                for v in range(w, words):
                    rows[k, v] ^= rows[pivot, v]
            if found[k]:
                break
    return found
