"""Persistence in dimensions 0 and 2: components of the cells that have come, and of those still to come.

Dimension 2 is dimension 0 of the rest (Alexander duality): seen from the end of the filtration, cubes appear, squares
join them, and the outside of the volume was there first. A cavity dies with the cube that is the first of its component
from that end, and is born by the square that joins it to an older one.

Image persistence (of a volume in another that is nowhere larger) takes deaths from the other's order, `columns`, and
births from the volume's own, `rows`. If both are the same, it is the volume's persistence.
"""

from __future__ import annotations

import numpy as np

from runner_vesuvius._compiled import compiled
from runner_vesuvius.persistence.cells import Filtration, Ids, strides


def components(rows: Filtration, columns: Filtration) -> tuple[Ids, Ids]:
    """Return the vertices at which components are born and the edges at which they die (dimension 0).

    The component that stays is left out.
    """
    edges = columns.order(1).cells
    near = edges // 3
    far = near + np.array(strides(rows.shape), np.int32)[edges % 3]
    lost, joint = joins(near, far, rows.order(0).rank)
    return lost, edges[joint]


def cavities(rows: Filtration, columns: Filtration) -> tuple[Ids, Ids]:
    """Return the squares at which cavities are born and the cubes at which they die (dimension 2).

    Cavities of zero persistence are included.
    """
    squares = rows.order(2).cells[::-1]
    rank = columns.order(3).rank
    outside = np.int32(len(rank))
    step = np.array(strides(rows.shape), np.int32)[squares % 3]
    width = np.array(rows.shape, np.int32)[squares % 3]
    after = squares // 3
    before = np.where(after // step % width == 0, outside, after - step)
    after = np.where(rank[after] < 0, outside, after)
    lost, joint = joins(after, before, np.append(np.int32(len(rank)) - rank, np.int32(-1)))
    return squares[joint], lost


@compiled
def joins(one: Ids, other: Ids, age: Ids) -> tuple[Ids, Ids]:
    """Join components pair by pair; the one whose oldest (smallest `age`) member is younger is lost.

    Returns the members that stood for the lost components, and the numbers of the pairs that joined them.
    """
    parent = np.arange(age.size).astype(np.int32)
    lost, joint = np.empty(age.size, np.int32), np.empty(age.size, np.int32)
    count = 0
    for pair in range(one.size):
        a, b = one[pair], other[pair]
        while parent[a] != a:
            parent[a] = parent[parent[a]]
            a = parent[a]
        while parent[b] != b:
            parent[b] = parent[parent[b]]
            b = parent[b]
        if a != b:
            if age[a] > age[b]:
                a, b = b, a
            parent[b] = a
            lost[count], joint[count] = b, pair
            count += 1
    return lost[:count].copy(), joint[:count].copy()
