"""The cells of a volume's cubical complex, and their order in a filtration.

Voxels are vertices (V-construction): edges, squares and cubes join neighbours along the axes, so that sublevel sets are
6-connected. A cell is its anchor (the corner with the lowest coordinates) and its type: an edge's type is its axis, a
square's the axis normal to it. Its number is 3 · anchor + type (edges, squares) or the anchor (vertices, cubes), with
anchors counted in C order. Its value is the largest of its voxels'.

Cells of one dimension are ordered by value, equal ones by number. The matching of classes depends on this order even if
no two voxels are equal (two edges of one voxel are); it is that of Betti-Matching-3D, found by experiment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from runner_vesuvius._compiled import compiled

Ids = npt.NDArray[np.int32]
"""Numbers of cells or voxels, their ranks or levels; −1: none."""
Shape = tuple[int, int, int]


@dataclass(frozen=True)
class Order:
    """Cells of one dimension in order: `rank[cells[i]] == i`; rank −1: no such cell at the volume's end."""

    cells: Ids
    rank: Ids


class Filtration:
    """The sublevel filtration of a volume (D, H, W) of finite floats, D, H, W ≥ 1."""

    def __init__(self, volume: npt.NDArray[np.floating[Any]]) -> None:
        self.shape: Shape = (volume.shape[0], volume.shape[1], volume.shape[2])
        values, level = np.unique(volume, return_inverse=True)
        self.values = values
        """The volume's distinct values; a level is an index into them."""
        self.levels = [grid.ravel() for grid in cell_levels(level.reshape(volume.shape).astype(np.int32))]
        """The level of each cell, by dimension and number."""
        self._orders: dict[int, Order] = {}

    def order(self, dimension: int) -> Order:
        if dimension not in self._orders:
            self._orders[dimension] = Order(*counting_sort(self.levels[dimension], len(self.values)))
        return self._orders[dimension]

    def voxels(self, dimension: int, cells: Ids) -> npt.NDArray[np.int64]:
        """Return the number of the voxel that gives each cell its value; if several do, the first in C order."""
        corners = _corners(self.shape, dimension, cells)
        best = np.argmax(self.levels[0][corners], axis=0)
        return corners[best, np.arange(len(cells))]


def cell_levels(level: Ids) -> tuple[Ids, Ids, Ids, Ids]:
    """Return the levels of the cells from the voxels' levels.

    The cells are vertices (D, H, W), edges (D, H, W, 3), squares (D, H, W, 3) and cubes (D, H, W).
    """
    edges, squares = (np.full((*level.shape, 3), -1, np.int32) for _ in range(2))
    for axis in range(3):
        near, far = _neighbours(axis)
        edges[..., axis][near] = np.maximum(level[near], level[far])
    for normal in range(3):
        along, across = (axis for axis in range(3) if axis != normal)
        near, far = _neighbours(across)
        sides = edges[..., along]
        squares[..., normal][near] = np.maximum(sides[near], sides[far])
    cubes = np.full_like(level, -1)
    cubes[:-1] = np.maximum(squares[:-1, ..., 0], squares[1:, ..., 0])
    return level, edges, squares, cubes


def _neighbours(axis: int) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """Return slices of all voxels but the last along an axis, and of those that follow them."""
    return (
        tuple(slice(-1) if each == axis else slice(None) for each in range(3)),
        tuple(slice(1, None) if each == axis else slice(None) for each in range(3)),
    )


def strides(shape: Shape) -> tuple[int, int, int]:
    """Return the steps of a voxel's number along each axis."""
    return shape[1] * shape[2], shape[2], 1


def _corners(shape: Shape, dimension: int, cells: Ids) -> npt.NDArray[np.int64]:
    """Return the voxels of the cells, (2^dimension, n), in ascending order."""
    step = np.array(strides(shape))
    if dimension in (0, 3):
        anchor, spans = cells.astype(np.int64), [*step[:dimension]]
    else:
        anchor, kind = cells.astype(np.int64) // 3, cells % 3
        spans = [step[kind]] if dimension == 1 else [step[np.array([1, 0, 0])][kind], step[np.array([2, 2, 1])][kind]]
    corners = [anchor]
    for span in spans[::-1]:
        corners += [corner + span for corner in corners]
    return np.stack(corners)


@compiled
def counting_sort(level: Ids, levels: int) -> tuple[Ids, Ids]:
    """Return cells by level, equal ones by number, and their ranks; level −1 is left out."""
    start = np.zeros(levels + 1, np.int64)
    for each in level:
        start[each + 1] += 1
    start[0] = 0  # the cells that do not exist were counted here
    for i in range(levels):
        start[i + 1] += start[i]
    cells = np.empty(start[levels], np.int32)
    rank = np.full(level.size, -1, np.int32)
    for cell in range(level.size):
        if level[cell] >= 0:
            place = start[level[cell]]
            start[level[cell]] += 1
            cells[place], rank[cell] = cell, place
    return cells, rank
