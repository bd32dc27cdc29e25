"""Averages along sheets: they close pinholes, cut thin bridges between sheets, and weaken specks.

The direction across the sheets is that in which the probability changes most: the first eigenvector of its structure
tensor (Bigün & Granlund, "Optimal orientation detection of linear symmetry", ICCV 1987). Around each voxel the
probability is averaged over a Gaussian disc in the plane across this direction, as coherence-enhancing filters do
(Weickert, "Coherence-enhancing diffusion filtering", IJCV 31, 1999), but in one step. A hole that is small against the
disc is surrounded by sheet, and a bridge by air.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from runner_vesuvius._compiled import compiled

Array = NDArray[Any]
GRADIENT, TENSOR = 1.5, 6.0
"""Standard deviations (voxels) of the gradients, and of their mean products. The second spans about one sheet and half
of the gap to the next, so that a bridge does not turn the direction."""
STEPS = 8
"""Directions are rounded to a grid of 2·STEPS + 1 points along the sides of a cube: at most 5° away."""
REACH = 2.0
"""Radius of the disc in standard deviations."""


def along_sheets(probability: NDArray[np.uint8], directions: NDArray[np.int16], sigma: float) -> NDArray[np.uint8]:
    """Return the probability (D, H, W) uint8, averaged along the sheets over `sigma` voxels (standard deviation).

    `directions` are those across the sheets (`across`). With a `sigma` of 0, the probability is returned itself.
    """
    if sigma <= 0:
        return probability
    reach = math.ceil(REACH * sigma)
    padded = np.pad(probability, reach, mode="edge")
    starts, offsets, weights = _discs(sigma, padded.shape, np.bincount(directions.reshape(-1)) > 0)
    out = np.empty(probability.shape, np.uint8)
    _average(padded, directions, starts, offsets, weights, reach, out)
    return out


def halo(sigma: float) -> int:
    """Return how far directions and averages look, in voxels: no value depends on a voxel that is further away."""
    slopes, tensor = round(4 * GRADIENT / 2), round(3 * TENSOR / 2)  # SciPy's truncated Gaussians
    return max(2 * (slopes + tensor + 1), math.ceil(REACH * sigma)) + 2


def across(probability: Array) -> NDArray[np.int16]:
    """Return the direction across the sheets in each cube of 2 × 2 × 2 voxels, as an index of `grid()`.

    A block of a volume must begin at even voxels, where the cubes begin. Takes 8 bytes per voxel.
    """
    half = _halved(probability)
    slopes = [ndimage.gaussian_filter(half, GRADIENT / 2, order=np.eye(3, dtype=int)[axis]) for axis in range(3)]
    tensor = np.empty((6, *half.shape), np.float32)
    for k, (a, b) in enumerate(((0, 0), (1, 1), (2, 2), (0, 1), (0, 2), (1, 2))):
        ndimage.gaussian_filter(slopes[a] * slopes[b], TENSOR / 2, output=tensor[k], truncate=3)
    found = np.empty(half.size, np.int16)
    _strongest(tensor.reshape(6, -1), found)
    return found.reshape(half.shape)


def _halved(volume: Array) -> NDArray[np.float32]:
    """Return the means of cubes of 2 × 2 × 2 voxels; the last voxel of an odd side counts twice."""
    even = np.pad(volume, [(0, n % 2) for n in volume.shape], mode="edge")
    total = np.zeros([n // 2 for n in even.shape], np.float32)
    for z, y, x in np.ndindex(2, 2, 2):
        total += even[z::2, y::2, x::2]
    return total / np.float32(8 * 255)


def _discs(sigma: float, shape: tuple[int, ...], used: Array) -> tuple[Array, Array, Array]:
    """Return the disc of each direction k that is used: memory steps offsets[starts[k] : starts[k + 1]], and weights.

    Weights fall with the distance from the voxel as a Gaussian, linearly to 0 a voxel off the plane, and sum to 1.
    """
    reach = math.ceil(REACH * sigma)
    cube = np.stack(np.meshgrid(*[np.arange(-reach, reach + 1)] * 3, indexing="ij"), -1).reshape(-1, 3)
    steps = cube @ np.array([shape[1] * shape[2], shape[2], 1])
    vectors = grid()
    offsets, weights = [steps[:0]] * len(used), [np.empty(0)] * len(used)
    for k in np.flatnonzero(used):
        direction = vectors[k]
        off = np.abs(cube @ direction)
        square = np.maximum((cube * cube).sum(1) - off * off, 0)
        near = (off < 1) & (square <= reach * reach)
        weight = (1 - off[near]) * np.exp(-square[near] / (2 * sigma * sigma))
        offsets[k] = steps[near]
        weights[k] = weight / weight.sum()
    starts = np.cumsum([0, *map(len, offsets)])
    return starts, np.concatenate(offsets), np.concatenate(weights).astype(np.float32)


def grid() -> NDArray[np.float64]:
    """Return unit vectors in the order of `_number`: by largest component, then by the two that follow it."""
    ratios = np.arange(-STEPS, STEPS + 1) / STEPS
    found = [np.roll([1.0, a, b], axis) for axis in range(3) for a in ratios for b in ratios]
    return np.stack([vector / np.linalg.norm(vector) for vector in found])


@compiled
def _strongest(tensor, found):  # type: ignore[no-untyped-def]
    """Write the number of each tensor's first eigenvector, by squaring: its share grows with every product."""
    m, square = np.empty((3, 3)), np.empty((3, 3))
    for i in range(found.size):
        for a in range(3):
            m[a, a] = tensor[a, i]
        m[0, 1] = m[1, 0] = tensor[3, i]
        m[0, 2] = m[2, 0] = tensor[4, i]
        m[1, 2] = m[2, 1] = tensor[5, i]
        trace = m[0, 0] + m[1, 1] + m[2, 2]
        for _ in range(6):
            if trace <= 1e-12:
                break
            for a in range(3):
                for b in range(3):
                    m[a, b] /= trace
            for a in range(3):
                for b in range(3):
                    square[a, b] = m[a, 0] * m[0, b] + m[a, 1] * m[1, b] + m[a, 2] * m[2, b]
            m, square = square, m
            trace = m[0, 0] + m[1, 1] + m[2, 2]
        row = 0
        for a in range(1, 3):
            if m[a, a] > m[row, row]:
                row = a
        found[i] = _number(m[row])


@compiled
def _number(vector):  # type: ignore[no-untyped-def]
    axis = 0
    for a in range(1, 3):
        if abs(vector[a]) > abs(vector[axis]):
            axis = a
    if vector[axis] == 0:
        return 0
    first = round(STEPS * vector[(axis + 1) % 3] / vector[axis])
    second = round(STEPS * vector[(axis + 2) % 3] / vector[axis])
    return (axis * (2 * STEPS + 1) + first + STEPS) * (2 * STEPS + 1) + second + STEPS


@compiled
def _average(padded, directions, starts, offsets, weights, reach, out):  # type: ignore[no-untyped-def]
    depth, height, width = out.shape
    flat = padded.reshape(-1)
    for z in range(depth):
        for y in range(height):
            row = ((z + reach) * padded.shape[1] + y + reach) * padded.shape[2] + reach
            for x in range(width):
                way = np.int64(directions[z // 2, y // 2, x // 2])
                total = np.float32(0.5)
                for k in range(starts[way], starts[way + 1]):
                    total += weights[k] * flat[row + x + offsets[k]]
                out[z, y, x] = np.uint8(min(total, np.float32(255)))
