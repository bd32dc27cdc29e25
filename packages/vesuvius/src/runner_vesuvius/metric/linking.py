"""Matching loops of two volumes: the squares with which they die in the union.

Let C be a binary volume within its box, filled cell by cell in the order of Betti-Matching-3D: cells of one dimension
are ordered by the first voxel (z, y, x), then by axis (for a square: the axis normal to it). Loops of C die with
squares. By Alexander duality this can be seen from outside: dual vertices are the cubes outside of C and one vertex
beyond the box, dual edges are the squares outside of C. Taken in reverse order, a square whose cubes were connected
before closes a dual cycle γ. A loop of P ⊂ C dies in C with the square if γ is independent, in the first homology of
the complement of P, of the cycles closed before.

Independence is tested by linking numbers with a basis of P's loops: they make the homology of the complement and that
of P dual (Seifert & Threlfall 1934, §77). Modulo 2, the linking number of γ and a loop is the number of squares of γ in
the wall that the loop leaves when it is swept down to z = 0, and along that face to y = 0.

The squares are scanned once, with a union-find whose links carry the sum of random 64-bit words of the linked loops.
Only dual cycles with a new word are looked at in full (two classes have the same word with a probability of 2⁻⁶³).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from runner_vesuvius._compiled import compiled
from runner_vesuvius.metric.elimination import independent
from runner_vesuvius.metric.loops import Loops

Array = np.ndarray[Any, Any]


class _Walls(NamedTuple):
    """Edges of loops that are swept, column by column, from the top down.

    Squares normal to y are swept over by edges along x, squares normal to x by edges along y: columns (y, x) each.
    Squares normal to z are swept in the lowest plane only, by edges along x: columns x, in which y is the height.
    """

    starts: Array
    heights: Array
    loops: Array
    words: Array
    """Sum of the loops' words from the top of the column to here."""


def deaths(union: Array, parts: Sequence[Loops]) -> list[Array]:
    """Return, for each part of `union` (a bool volume), the sorted squares with which its loops die in it.

    `parts` holds the loops of each part, whose foreground lies within the union's. A square is 3 × index of the voxel +
    normal.
    """
    first = np.cumsum([0] + [loops.number for loops in parts])
    walls = _sweep(union.shape, parts, first)
    tree, candidates = _scan(union.reshape(-1), *walls, *union.shape)
    directions, jumps = _paths(tree, *walls, *union.shape)
    linked, starts = _link(candidates, directions, jumps, tuple(walls), *union.shape, int(first[-1]))
    return [np.sort(candidates[independent(linked, starts, begin, end)]) for begin, end in pairwise(first.tolist())]


def _sweep(shape: tuple[int, ...], groups: Sequence[Loops], first_loops: Array) -> _Walls:
    depth, height, width = shape
    plane, top = height * width, max(depth, height)
    columns, heights, loops = [], [], []
    for group, first in zip(groups, first_loops, strict=False):
        loop = (np.repeat(np.arange(group.number), np.diff(group.starts)) + first).astype(np.int32)
        axis, voxel = group.edges % 3, group.edges // 3
        along_x, along_y = axis == 2, axis == 1
        z, column = np.divmod(voxel[along_x], plane)
        columns += [column, voxel[along_y] % plane + plane, column % width + 2 * plane]
        heights += [z, voxel[along_y] // plane, column // width]
        loops += [loop[along_x], loop[along_y], loop[along_x]]
    place = np.concatenate(columns) * top + (top - 1 - np.concatenate(heights))
    order = np.argsort(place)
    place, which = place[order], np.concatenate(loops)[order]
    starts = np.searchsorted(place, np.arange(2 * plane + width + 1) * top)
    words = np.random.Generator(np.random.Philox(0)).integers(1, 2**63, int(first_loops[-1]), np.int64)[which]
    sums = np.bitwise_xor.accumulate(np.append(0, words))
    own = sums[1:] ^ np.repeat(sums[starts[:-1]], np.diff(starts))
    return _Walls(starts, (top - 1 - place % top).astype(np.int32), which, own)


@compiled
def _column(square, normal, height, width):  # type: ignore[no-untyped-def]
    """Return the column of a square (-1: none) and its height there."""
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
    """Return the root of i, and the sum of words on the way."""
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
    """Return the two cubes beside a square outside the volume (beyond the box: inside.size; -1: none)."""
    a, b = (normal + 1) % 3, (normal + 2) % 3
    if at[a] + 1 == shape[a] or at[b] + 1 == shape[b]:
        return np.int64(-1), np.int64(-1)
    if inside[square] and inside[square + step[a]] and inside[square + step[b]] and inside[square + step[a] + step[b]]:
        return np.int64(-1), np.int64(-1)
    above = square if at[normal] + 1 < shape[normal] else inside.size
    return np.int64(above), np.int64(square - step[normal] if at[normal] else inside.size)


@compiled
def _scan(inside, starts, heights, loops, words, depth, height, width):  # type: ignore[no-untyped-def]
    """Scan squares outside the volume in reverse order.

    Returns the squares that join (bits of their first voxel), and those that close a cycle with a new word.
    """
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
    """Find the tree's steps out of the box.

    Returns directions, jumps and queue of the cubes that they begin at, and their number.
    """
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
    """Follow the trees from their roots.

    Returns each cube's direction to its parent (normal, +3: upwards; 6: a root; 7: in no tree), and the nearest cube on
    the way, itself included, whose step to its parent passes a wall (-1: none).
    """
    step, ends = (height * width, width, 1), (depth - 1, height - 1, width - 1)
    directions = np.full(tree.size, 7, np.uint8)
    jumps = np.full(tree.size, -1, np.int32)
    queue = np.empty(tree.size, np.int32)
    walls = (starts, heights, loops, words)
    head, tail = 0, _leave(tree, walls, directions, jumps, queue, depth, height, width)
    for start in range(-1, tree.size):
        if start >= 0:  # the rest are cavities: trees without a way out
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
def _toggle(square, normal, height, width, starts, heights, loops, odd, touched, count):  # type: ignore[no-untyped-def]
    """Change the parity of the loops whose walls contain the square.

    Returns `touched` and its length, including these loops.
    """
    column, level = _column(square, normal, height, width)
    if column < 0:
        return touched, count
    for k in range(starts[column], starts[column + 1]):
        if heights[k] <= level:
            break
        odd[loops[k]] ^= 1
        if count == touched.size:
            touched = np.concatenate((touched, np.empty(count, np.int32)))
        touched[count] = loops[k]
        count += 1
    return touched, count


@compiled
def _link(candidates, directions, jumps, walls, depth, height, width, number):  # type: ignore[no-untyped-def]
    """Return the loops linked with each candidate's cycle, in order: cycle k with linked[starts[k] : starts[k + 1]]."""
    starts, heights, loops, _ = walls
    step, ends = (height * width, width, 1), (depth - 1, height - 1, width - 1)
    odd = np.zeros(number, np.uint8)
    touched, linked = np.empty(1024, np.int32), np.empty(1024, np.int32)
    rows = np.zeros(candidates.size + 1, np.int64)
    size = 0
    for k in range(candidates.size):
        i, normal = candidates[k] // 3, candidates[k] % 3
        at = (i // step[0], i // width % height, i % width)
        touched, count = _toggle(i, normal, height, width, starts, heights, loops, odd, touched, 0)
        for side in range(2):
            if at[normal] == (0 if side else ends[normal]):
                continue
            cube = np.int64(jumps[i - side * step[normal]])
            while cube >= 0:
                way = directions[cube]
                axis, up = np.int64(way % 3), way >= 3
                square = cube + (step[axis] if up else 0)
                touched, count = _toggle(square, axis, height, width, starts, heights, loops, odd, touched, count)
                if cube // step[axis] % (ends[axis] + 1) == (ends[axis] - 1 if up else 0):
                    break
                cube = np.int64(jumps[cube + (step[axis] if up else -step[axis])])
        while size + count > linked.size:
            linked = np.concatenate((linked, np.empty(linked.size, np.int32)))
        begin = size
        for t in range(count):
            if odd[touched[t]]:
                odd[touched[t]] = 0
                linked[size] = touched[t]
                size += 1
        linked[begin:size].sort()
        rows[k + 1] = size
    return linked[:size].copy(), rows
