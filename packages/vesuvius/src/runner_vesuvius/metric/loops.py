"""Loops of a binary volume: cycles of edges that are a basis of its first homology (with coefficients in Z/2).

The foreground is a complex of voxels (vertices), edges, squares and cubes between them (6-connected). Removing a cell
together with a face that no other cell has (a collapse), or one square of the wall around a cavity, keeps the first
homology. If nothing more can be collapsed, the rest is nearly always a graph, whose cycles are easily listed.

Cells are bits of one byte per voxel, the cell's first corner: bits 0–2 are edges along the axes, bits 3–5 squares by
the axis normal to them. A cell that would reach past the end of the volume is never set, so that an index that wraps
around from the volume's beginning to its end (or from a row to the one before) finds nothing.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from runner_vesuvius._compiled import compiled

Ints = np.ndarray[Any, np.dtype[np.int64]]


class Loops(NamedTuple):
    """A basis: loop k is `edges[starts[k] : starts[k + 1]]`. An edge is 3 × index of its first voxel + its axis."""

    edges: Ints
    starts: Ints

    @property
    def number(self) -> int:
        return len(self.starts) - 1


def find_loops(mask: np.ndarray[Any, np.dtype[np.bool_]], cavities: Ints) -> Loops:
    """Return a basis of the first homology of `mask` (z, y, x).

    `cavities` are the indices of the cavities' first voxels. The cube below a cavity's first voxel has a lower square
    within the foreground: what is still lower is another cavity or the outside. Without that square the cavity is
    joined to it, and in the end to the outside.
    """
    cells = np.empty(mask.size, np.uint8)
    _, height, width = mask.shape
    _build(mask.reshape(-1), cells, *mask.shape)
    cells[cavities - height * width] &= np.uint8(255 - 8)
    left = _collapse(cells, height, width)
    _prune(cells, height, width)
    vertices = _joints(cells, height, width)
    parents, depths, others = _grow(cells, vertices, height, width)
    if left:
        others = others[~_bounding(cells, others, height, width)]
    edges, starts = _trace(vertices, parents, depths, others, height, width)
    return Loops(edges, starts)


def _bounding(cells: np.ndarray[Any, Any], others: Ints, height: int, width: int) -> np.ndarray[Any, Any]:
    """Return the edges outside the tree that leftover squares express by others: seldom any."""
    step = (height * width, width, 1)
    place = {int(edge): k for k, edge in enumerate(others)}
    pivots: dict[int, set[int]] = {}
    for normal in range(3):
        a, b = (axis for axis in range(3) if axis != normal)
        for i in np.flatnonzero(cells & (8 << normal)).tolist():
            sides = (3 * i + a, 3 * (i + step[b]) + a, 3 * i + b, 3 * (i + step[a]) + b)
            row = {place[edge] for edge in sides if edge in place}
            while row and max(row) in pivots:
                row = row ^ pivots[max(row)]
            if row:
                pivots[max(row)] = row
    found = np.zeros(len(others), bool)
    found[list(pivots)] = True
    return found


@compiled
def _build(mask, cells, depth, height, width):  # type: ignore[no-untyped-def]
    """Set the cells of the foreground.

    Cubes are already removed, each with its lower square (from the lowest up, that square is free).
    """
    plane = height * width
    for z in range(depth):
        for y in range(height):
            for x in range(width):
                i = (z * height + y) * width + x
                if not mask[i]:
                    cells[i] = 0
                    continue
                e0 = z + 1 < depth and mask[i + plane]
                e1 = y + 1 < height and mask[i + width]
                e2 = x + 1 < width and mask[i + 1]
                s0 = e1 and e2 and mask[i + width + 1]
                s1 = e0 and e2 and mask[i + plane + 1]
                s2 = e0 and e1 and mask[i + plane + width]
                if s0 and s1 and s2 and mask[i + plane + width + 1]:
                    s0 = False
                cells[i] = e0 | e1 << 1 | e2 << 2 | s0 << 3 | s1 << 4 | s2 << 5


@compiled
def _collapse(cells, height, width):  # type: ignore[no-untyped-def]
    """Remove squares with an edge that no other square has, until there is none; return how many are left."""
    step = (height * width, width, 1)
    stack = np.empty(1 << 12, np.int64)
    left = 0
    for start in range(cells.size):
        if not cells[start] & 7:
            continue
        for first in range(3):
            stack[0] = 3 * np.int64(start) + first
            size = 1
            while size:
                size -= 1
                i, axis = stack[size] // 3, stack[size] % 3
                if not cells[i] >> axis & 1:
                    continue
                count, at, normal = 0, i, 0
                for turn in range(1, 3):
                    across = (axis + turn) % 3
                    bit = 8 << (3 - axis - across)
                    for j in (i, i - step[across]):
                        if cells[j] & bit:
                            count += 1
                            at, normal = j, 3 - axis - across
                if count != 1:
                    continue
                cells[i] &= ~(1 << axis) & 255
                cells[at] &= ~(8 << normal) & 255
                a, b = (normal + 1) % 3, (normal + 2) % 3
                if size + 4 > stack.size:
                    stack = np.concatenate((stack, np.empty(stack.size, np.int64)))
                stack[size] = 3 * at + a
                stack[size + 1] = 3 * (at + step[b]) + a
                stack[size + 2] = 3 * at + b
                stack[size + 3] = 3 * (at + step[a]) + b
                size += 4
    for i in range(cells.size):
        left += cells[i] > 7
    return left


@compiled
def _edges_at(cells, i, step, found):  # type: ignore[no-untyped-def]
    """Write the edges at a voxel into `found` and return their number."""
    count = 0
    for axis in range(3):
        if cells[i] >> axis & 1:
            found[count] = 3 * i + axis
            count += 1
        j = i - step[axis]
        if cells[j] >> axis & 1:
            found[count] = 3 * j + axis
            count += 1
    return count


@compiled
def _prune(cells, height, width):  # type: ignore[no-untyped-def]
    """Remove branches: edges at a voxel that has no other."""
    step = (height * width, width, 1)
    found = np.empty(6, np.int64)
    for start in range(cells.size):
        i = np.int64(start)
        while _edges_at(cells, i, step, found) == 1:
            j, axis = found[0] // 3, found[0] % 3
            cells[j] &= ~(1 << axis) & 255
            i = j + step[axis] if j == i else j


@compiled
def _joints(cells, height, width):  # type: ignore[no-untyped-def]
    """Return the voxels with an edge, in order."""
    step = (height * width, width, 1)
    found = np.empty(6, np.int64)
    count = 0
    for i in range(cells.size):
        count += _edges_at(cells, i, step, found) > 0
    vertices = np.empty(count, np.int64)
    count = 0
    for i in range(cells.size):
        if _edges_at(cells, i, step, found) > 0:
            vertices[count] = i
            count += 1
    return vertices


@compiled
def _grow(cells, vertices, height, width):  # type: ignore[no-untyped-def]
    """Grow trees over the graph, breadth first.

    Returns each vertex's edge to its parent (-1: a root), its depth, and the edges that are in no tree.
    """
    step = (height * width, width, 1)
    number = vertices.size
    parents, depths = np.full(number, -2, np.int64), np.zeros(number, np.int64)
    queue, found = np.empty(number, np.int64), np.empty(6, np.int64)
    edges = 0
    for start in range(number):
        if parents[start] != -2:
            continue
        parents[start], queue[0] = -1, start
        head, tail = 0, 1
        while head < tail:
            v = queue[head]
            head += 1
            for k in range(_edges_at(cells, vertices[v], step, found)):
                edges += 1
                j, axis = found[k] // 3, found[k] % 3
                w = np.searchsorted(vertices, j + step[axis] if j == vertices[v] else j)
                if parents[w] == -2:
                    parents[w], depths[w] = found[k], depths[v] + 1
                    queue[tail] = w
                    tail += 1
    roots = np.sum(parents == -1)
    others = np.empty(edges // 2 - (number - roots), np.int64)
    count = 0
    for v in range(number):
        i = vertices[v]
        for axis in range(3):
            edge = 3 * i + axis
            if cells[i] >> axis & 1:
                w = np.searchsorted(vertices, i + step[axis])
                if parents[v] != edge and parents[w] != edge:
                    others[count] = edge
                    count += 1
    return parents, depths, others


@compiled
def _trace(vertices, parents, depths, others, height, width):  # type: ignore[no-untyped-def]
    """Return the cycle that each edge closes with the trees."""
    step = (height * width, width, 1)
    starts = np.zeros(others.size + 1, np.int64)
    edges = np.empty(16 * others.size, np.int64)
    size = 0
    for k in range(others.size):
        i, axis = others[k] // 3, others[k] % 3
        edge = others[k]
        v, w = np.searchsorted(vertices, i), np.searchsorted(vertices, i + step[axis])
        while True:
            if size == edges.size:
                edges = np.concatenate((edges, np.empty(size, np.int64)))
            edges[size] = edge
            size += 1
            if v == w:
                break
            if depths[v] < depths[w]:
                v, w = w, v
            edge = parents[v]
            j, axis = edge // 3, edge % 3
            v = np.searchsorted(vertices, j + step[axis] if j == vertices[v] else j)
        starts[k + 1] = size
    return edges[:size].copy(), starts
