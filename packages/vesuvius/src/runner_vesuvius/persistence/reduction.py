"""Persistence in dimension 1: the boundary matrix of the squares, reduced over Z/2.

A column is a square, its entries are edges. Adding earlier columns moves its youngest edge back until no earlier column
has the same one; a loop is born at this edge and dies with the square. Three things make it fast:

- Squares at which cavities are born have nothing left in their columns and are left out ("clearing": Chen and Kerber
  2011; here they are known from the components of dimension 2).
- If an edge is the youngest of a square, and this square the first that has the edge, they are a pair at once
  (an "apparent pair": Bauer, Ripser, 2021): its column is its boundary, and need not be kept.
- The column at work is a tree of bits over the edges, youngest first: adding costs one flip an edge, finding the
  youngest three lookups (the bit-tree column of PHAT: Bauer, Kerber, Reininghaus, Wagner 2017).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from runner_vesuvius._compiled import compiled
from runner_vesuvius.persistence.cells import Filtration, Ids, strides

NONE = -1
DE_BRUIJN = 0x03F79D71B4CB0A89
PLACES = np.array([((DE_BRUIJN << place) & (2**64 - 1)) >> 58 for place in range(64)]).argsort()
Bits = npt.NDArray[np.int64]
Column = tuple[Bits, Bits, Bits]
"""Bits of the entries (youngest edge: 0), of their non-zero words, and of the non-zero words of those."""


def loops(rows: Filtration, columns: Filtration, cavities: Ids) -> tuple[Ids, Ids]:
    """Return the edges at which loops are born and the squares at which they die (dimension 1).

    Loops of zero persistence are included. `cavities` are the squares at which cavities are born in `columns`; `rows`
    and `columns` are as in `merging`.
    """
    squares = columns.order(2)
    alive = np.ones(len(squares.rank), np.bool_)
    alive[cavities] = False
    return reduce(squares.cells, squares.rank, alive, rows.order(1).cells, rows.order(1).rank, *strides(rows.shape))


@compiled
def boundary(square: int, i: int, j: int, k: int, faces: Ids) -> None:
    """Write the four edges of a square; i, j, k are the strides of the volume."""
    anchor, normal = square // 3, square % 3
    along = 1 if normal == 0 else 0
    across = 1 if normal == 2 else 2
    step_along = j if normal == 0 else i
    step_across = j if normal == 2 else k
    faces[0] = 3 * anchor + along
    faces[1] = 3 * anchor + across
    faces[2] = 3 * (anchor + step_across) + along
    faces[3] = 3 * (anchor + step_along) + across


@compiled
def first_square(edge: int, rank: Ids, i: int, j: int, k: int) -> int:
    """Return the first of the squares that have this edge."""
    anchor, along = edge // 3, edge % 3
    best = NONE
    for other in range(3):
        if other != along:
            normal = 3 - other - along
            step = i if other == 0 else j if other == 1 else k
            for near in (anchor, anchor - step):
                square = 3 * near + normal
                # a number before the row's begin is another row's last voxel, from where no cell starts this way
                if near >= 0 and rank[square] >= 0 and (best < 0 or rank[square] < rank[best]):
                    best = square
    return best


@compiled
def reduce(
    squares: Ids, square_rank: Ids, alive: npt.NDArray[np.bool_], edges: Ids, edge_rank: Ids, i: int, j: int, k: int
) -> tuple[Ids, Ids]:
    """Return births (edges) and deaths (squares), ordered by death."""
    births, deaths, found = np.empty(squares.size, np.int32), np.empty(squares.size, np.int32), 0
    owner = np.full(edge_rank.size, NONE, np.int32)  # by youngest edge: the square of an apparent pair, or −2 − column
    kept, start, columns = np.empty(1 << 16, np.int32), np.zeros(squares.size + 1, np.int64), 0
    words = edges.size // 64 + 1
    column = np.zeros(words, np.int64), np.zeros(words // 64 + 1, np.int64), np.zeros(words // 4096 + 1, np.int64)
    faces = np.empty(4, np.int32)
    for place in range(squares.size):
        square = np.int64(squares[place])
        if not alive[square]:
            continue
        boundary(square, i, j, k, faces)
        youngest = np.int64(faces[0])
        for face in faces:
            youngest = np.int64(face) if edge_rank[face] > edge_rank[youngest] else youngest
        if first_square(youngest, square_rank, i, j, k) == square:
            owner[youngest] = square
        else:
            add_faces(faces, edge_rank, edges.size, column)
            entry = first(column)
            while owner[edges[edges.size - 1 - entry]] != NONE:
                who = np.int64(owner[edges[edges.size - 1 - entry]])
                if who >= 0:
                    boundary(who, i, j, k, faces)
                    add_faces(faces, edge_rank, edges.size, column)
                else:
                    for at in range(start[-2 - who], start[-1 - who]):
                        flip(np.int64(kept[at]), column)
                entry = first(column)
            youngest = np.int64(edges[edges.size - 1 - entry])
            owner[youngest] = -2 - columns
            columns += 1
            kept, start[columns] = moved(column, kept, start[columns - 1])
        births[found], deaths[found] = youngest, square
        found += 1
    return births[:found].copy(), deaths[:found].copy()


@compiled
def add_faces(faces: Ids, edge_rank: Ids, edges: int, column: Column) -> None:
    for face in faces:
        flip(edges - 1 - np.int64(edge_rank[face]), column)


@compiled
def moved(column: Column, kept: Ids, end: int) -> tuple[Ids, int]:
    """Empty the column to the end of what is kept; return this, enlarged if it was full, and its new end."""
    entry = first(column)
    while entry >= 0:
        if end == kept.size:
            kept = np.append(kept, np.empty_like(kept))
        kept[end] = entry
        end += 1
        flip(entry, column)
        entry = first(column)
    return kept, end


@compiled
def flip(entry: int, column: Column) -> None:
    """Toggle an entry; a word above has a bit for each non-zero word below."""
    low, middle, high = column
    word = entry >> 6
    before = low[word]
    low[word] = before ^ (1 << (entry & 63))
    if before == 0 or low[word] == 0:
        above = word >> 6
        before = middle[above]
        middle[above] = before ^ (1 << (word & 63))
        if before == 0 or middle[above] == 0:
            high[above >> 6] ^= 1 << (above & 63)


@compiled
def first(column: Column) -> int:
    """Return the smallest entry; −1: there is none."""
    low, middle, high = column
    for top in range(high.size):
        if high[top] != 0:
            above = (top << 6) + lowest(high[top])
            word = (above << 6) + lowest(middle[above])
            return (word << 6) + lowest(low[word])
    return NONE


@compiled
def lowest(word: int) -> int:
    """Return the place of the lowest set bit (de Bruijn multiplication: Leiserson, Prokop, Randall 1998)."""
    return PLACES[(((word & -word) * DE_BRUIJN) >> 58) & 63]
