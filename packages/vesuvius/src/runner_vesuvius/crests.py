"""Sheets drawn anew around their crests: everywhere equally thick, and apart where a threshold joins them.

A crest is where the probability is highest along the line across the sheets, as for the edges of an image (Canny, "A
computational approach to edge detection", PAMI 8, 1986), but found between the voxels. Where two sheets come close,
both keep their crests long after the valley between them has risen above the threshold. Where a confident network
answers 254 or 255 through the whole sheet, its crest is the middle of that plateau.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from runner_vesuvius._compiled import compiled
from runner_vesuvius.sheets import grid

STEP = 0.5
"""Voxels by which a crest is climbed to; a parabola through the last three values places it more finely."""

CERTAIN, PLATEAU = 253.5, 12.0
"""The lowest value of a plateau, and the voxels within which its ends are looked for: one that is thicker stays thicker
than `thickness`, by as much."""


def drawn(probability: NDArray[np.uint8], directions: NDArray[np.int16], thickness: float) -> NDArray[np.uint8]:
    """Return the probability of the crest for voxels at most `thickness` / 2 from one, else 0: (D, H, W) uint8.

    `directions` are those across the sheets (`sheets.across`). With a `thickness` of 0, the probability is returned
    itself.
    """
    if thickness <= 0:
        return probability
    out = np.empty(probability.shape, np.uint8)
    _draw(np.ascontiguousarray(probability), directions, grid(), thickness / 2, out)
    return out


def halo(thickness: float) -> int:
    """Return how far `drawn` looks, in voxels."""
    return math.ceil(thickness / 2 + 2 * STEP + PLATEAU) + 1 if thickness > 0 else 0


@compiled
def _draw(values, directions, grid, reach, out):  # type: ignore[no-untyped-def]
    depth, height, width = values.shape
    for z in range(depth):
        for y in range(height):
            for x in range(width):
                normal = grid[directions[z // 2, y // 2, x // 2]]
                offset, peak = _climb(values, (z, y, x), normal, reach + STEP)
                out[z, y, x] = np.uint8(peak + 0.5) if abs(offset) <= reach else np.uint8(0)


@compiled
def _climb(values, at, normal, limit):  # type: ignore[no-untyped-def]
    """Return the offset of the next crest along the normal, uphill from a voxel, and the value there.

    The offset is infinite if the crest is farther than `limit`.
    """
    here = float(values[at[0], at[1], at[2]])
    if here >= CERTAIN:
        return (_end(values, at, normal, STEP) + _end(values, at, normal, -STEP)) / 2, here
    ahead, behind = _value(values, at, normal, STEP), _value(values, at, normal, -STEP)
    way = STEP
    if behind > ahead:
        way, ahead, behind = -STEP, behind, ahead
    offset = 0.0
    while ahead > here and here < CERTAIN:
        if abs(offset) >= limit:
            return np.inf, here
        offset += way
        behind, here, ahead = here, ahead, _value(values, at, normal, offset + way)
    if here >= CERTAIN:  # the near end of a plateau
        return (offset + _end(values, at, normal, way, offset)) / 2, here
    bend = behind - 2 * here + ahead
    return offset + (way * (behind - ahead) / (2 * bend) if bend < 0 else 0.0), here


@compiled
def _end(values, at, normal, way, offset=0.0):  # type: ignore[no-untyped-def]
    """Return the offset where the plateau that holds this offset ends; it is followed for at most `PLATEAU` voxels."""
    last = offset + PLATEAU if way > 0 else offset - PLATEAU
    while offset != last and _value(values, at, normal, offset + way) >= CERTAIN:
        offset += way
    return offset


@compiled
def _value(values, at, normal, offset):  # type: ignore[no-untyped-def]
    """Return the value at this offset along the normal, trilinear; beyond the volume, that of its border."""
    shape = values.shape
    z, y, x = (
        min(max(at[0] + offset * normal[0], 0.0), shape[0] - 1.0),
        min(max(at[1] + offset * normal[1], 0.0), shape[1] - 1.0),
        min(max(at[2] + offset * normal[2], 0.0), shape[2] - 1.0),
    )
    i, j, k = int(z), int(y), int(x)
    total = 0.0
    for a in range(2):
        for b in range(2):
            for c in range(2):
                weight = abs(1 - a - (z - i)) * abs(1 - b - (y - j)) * abs(1 - c - (x - k))
                if weight > 0:  # else the neighbour may lie outside
                    total += weight * values[i + a, j + b, k + c]
    return total
