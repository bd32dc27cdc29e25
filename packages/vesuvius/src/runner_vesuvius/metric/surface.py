"""Surface Dice at a tolerance: the share of two surfaces that lies close to the other one.

It equals DeepMind's surface-distance (Nikolov et al. 2018, "Deep learning to achieve clinically applicable segmentation
of head and neck anatomy for radiotherapy", arXiv 1809.04430). A surface element is a cell of 2 × 2 × 2 voxels of which
some, but not all, are in the mask; its area is that of the marching cubes' triangles through the middles of the cell's
edges; distances are those between cells. Everything outside of the volume is background.
"""

from __future__ import annotations

import itertools
from math import sqrt
from typing import Any

import numpy as np

from runner_vesuvius._compiled import compiled
from runner_vesuvius.edt import squared_distance

Array = np.ndarray[Any, Any]

TOLERANCE = 2
"""Voxels; a distance of exactly this size is within the tolerance."""


def surface_dice(predicted: Array, truth: Array) -> float:
    """Return the area within the tolerance of the other surface, as a share of the area of both.

    Both are bool volumes of one shape. The result is 1 if both are empty, 0 if one is. Takes 5 bytes per voxel beyond
    the masks.
    """
    if not predicted.any() or not truth.any():
        return float(not predicted.any() and not truth.any())
    codes = [_cells(np.ascontiguousarray(mask, bool)) for mask in (predicted, truth)]
    near, all_areas = 0.0, 0.0
    for ours, others in (codes, codes[::-1]):
        squares = squared_distance((others != 0) & (others != 255), TOLERANCE**2 + 1)
        far_and_near = np.zeros((2, 256), np.int64)
        _count(ours.reshape(-1), squares.reshape(-1), TOLERANCE**2, far_and_near)
        near += float(far_and_near[1] @ AREAS)
        all_areas += float(far_and_near.sum(0) @ AREAS)
    return near / all_areas


def _cells(mask: Array) -> Array:
    """Return the code of each cell, (D+1, H+1, W+1) uint8.

    Cell i has the voxels i - 1 and i of each axis; the bit 128 is the first one's, then in the order of memory.
    """
    codes = np.empty([n + 1 for n in mask.shape], np.uint8)
    _encode(mask, codes)
    return codes


@compiled
def _encode(mask, codes):  # type: ignore[no-untyped-def]
    depth, height, width = mask.shape
    for z in range(depth + 1):
        for y in range(height + 1):
            for x in range(width + 1):
                codes[z, y, x] = 0
            for k in range(4):  # the rows of voxels that touch this row of cells
                row, line = z - 1 + k // 2, y - 1 + k % 2
                if row < 0 or row == depth or line < 0 or line == height:
                    continue
                first, second = np.uint8(128 >> 2 * k), np.uint8(64 >> 2 * k)
                for x in range(width):
                    if mask[row, line, x]:
                        codes[z, y, x + 1] |= first
                        codes[z, y, x] |= second


@compiled
def _count(codes, squares, limit, counts):  # type: ignore[no-untyped-def]
    for i in range(codes.size):
        counts[int(squares[i] <= limit), codes[i]] += 1


def _areas() -> Array:
    """Return the areas of the 256 codes.

    They are those of the 13 ways to choose at most four corners of a cube, turned and mirrored, and of the complements.
    """
    ways = {
        0: 0.0,
        1: sqrt(3) / 8,  # one corner: a triangle
        3: sqrt(2) / 2,  # an edge
        6: sqrt(3) / 4,  # two corners of a face's diagonal
        24: sqrt(3) / 4,  # two opposite corners
        7: 1 / 2 + 3 * sqrt(3) / 8,  # three corners of a face
        25: sqrt(2) / 2 + sqrt(3) / 8,  # an edge and a corner
        22: 3 * sqrt(3) / 8,  # three corners, none beside another
        15: 1.0,  # a face
        23: 3 * sqrt(3) / 4,  # a corner and its three neighbours: a hexagon
        27: sqrt(2) / 2 + sqrt(3) / 2,  # a path of four corners
        30: 1 / 2 + sqrt(3) / 2,  # three corners of a face, and one that is beside none of them
        60: sqrt(2),  # two opposite edges
        105: sqrt(3) / 2,  # four corners, none beside another
    }
    areas = np.zeros(256)
    for order in itertools.permutations(range(3)):
        for mirrored in range(8):
            for code, area in ways.items():
                turned = sum(1 << _moved(corner, order, mirrored) for corner in range(8) if code >> corner & 1)
                areas[turned] = areas[255 - turned] = area
    return areas


def _moved(corner: int, order: tuple[int, ...], mirrored: int) -> int:
    return sum((corner >> axis & 1) << k for k, axis in enumerate(order)) ^ mirrored


AREAS = _areas()
