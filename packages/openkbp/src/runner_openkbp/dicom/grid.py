"""The network's grid within a CT, and resampling between grids that lie along the patient's axes.

The challenge's patients have 128 × 128 voxels over the whole field of view, and 128 slices, in whose middle the targets
lie: over 15 patients their centre is at voxel 63.9 ± 1.8 from the head, 59.8 ± 1.9 from the front, 64.9 ± 3.0 from the
right. A planning CT is cut to the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from runner_core import BadInput

from runner_openkbp.geometry import Geometry
from runner_openkbp.rois import SIDE, Array

if TYPE_CHECKING:
    from scipy import sparse

SIZES = ((2.6, 5.6, 3.9), (2.6, 5.6, 3.9), (1.9, 3.6, 2.5))
"""Smallest, largest and usual size (mm) of the network's voxels by axis (the challenge's: 2.7 to 5.4, 2.3 to 3)."""
CENTRE = (60.0, 64.0, 64.0)
"""Where the targets' centre lies, in voxels, along an axis that is not taken whole."""
_ALIGNED = 1e-6


def network_grid(source: Geometry, shape: tuple[int, int, int], centre: Array) -> Geometry:
    """Return the grid of 128³ voxels that the network sees of a CT.

    A voxel is a whole number of the CT's voxels if one of a usual size can be. An axis with exactly 128 such voxels is
    taken whole. Otherwise the targets' `centre` (in the CT's voxels) lies as in the challenge, without leaving the CT
    where it is longer.
    """
    axes, origin = np.empty((3, 3)), source.origin.astype(float)
    for axis in range(3):
        factor = _factor(float(source.voxel_mm[axis]), shape[axis], SIZES[axis])
        count = shape[axis] / factor
        start = round((centre[axis] + 0.5) / factor - CENTRE[axis])
        spare = int(np.ceil(count - _ALIGNED)) - SIDE
        start = int(np.clip(start, min(0, spare), max(0, spare)))
        axes[:, axis] = source.axes[:, axis] * factor
        origin = origin + source.axes[:, axis] * (start * factor + (factor - 1) / 2)
    return Geometry(origin, axes, source.header)


def _factor(size: float, count: int, sizes: tuple[float, float, float]) -> float:
    """Return how many of the CT's voxels (mm, number of them) make one of the network's, along one axis.

    >>> _factor(0.977, 512, SIZES[0]), _factor(1.25, 180, SIZES[2]), round(_factor(5.0, 60, SIZES[2]), 3)
    (4, 2, 0.5)
    """
    low, high, usual = sizes
    if count % SIDE == 0 and low <= size * (count // SIDE) <= high:
        return count // SIDE
    whole = [n for n in range(1, 64) if low <= n * size <= high]
    return min(whole, key=lambda n: abs(n * size - usual)) if whole else usual / size


def _places(source: Geometry, target: Geometry) -> tuple[Array, Array]:
    """Return, along each axis, the target's first centre and its step in the source's voxels."""
    inverse = np.linalg.inv(source.axes)
    ratio = inverse @ target.axes
    step = np.diag(ratio)
    if np.abs(ratio - np.diag(step)).max() > 1e-4:
        raise BadInput("two grids of one patient are turned against each other; export both in one orientation")
    return inverse @ (target.origin - source.origin), step


def average(
    values: Array, source: Geometry, target: Geometry, shape: tuple[int, int, int], outside: float = 0
) -> Array:
    """Return the mean (float32) over each target voxel of the source's voxels, weighted by the volumes they share."""
    first, step = _places(source, target)
    out = np.asarray(values, np.float32) - np.float32(outside)
    for axis in range(3):
        low = first[axis] + step[axis] * np.arange(shape[axis]) - step[axis] / 2 + 0.5  # in the source's edges
        out = _apply(_overlaps(low, float(step[axis]), out.shape[axis]), out, axis)
    return out + np.float32(outside)


def _overlaps(low: Array, width: float, count: int) -> sparse.csr_array:
    from scipy import sparse

    rows, columns, weights = [], [], []
    for row, start in enumerate(low.tolist()):
        for column in range(
            max(0, int(np.floor(start + _ALIGNED))), min(count, int(np.ceil(start + width - _ALIGNED)))
        ):
            shared = min(start + width, column + 1) - max(start, column)
            rows.append(row)
            columns.append(column)
            weights.append(shared / width)
    return sparse.csr_array((np.array(weights, np.float32), (rows, columns)), shape=(len(low), count))


def interpolate(values: Array, source: Geometry, target: Geometry, shape: tuple[int, int, int]) -> Array:
    """Return values (float32) at the target's centres, linear between the source's; 0 beyond its voxels."""
    first, step = _places(source, target)
    out = np.asarray(values, np.float32)
    for axis in range(3):
        at = first[axis] + step[axis] * np.arange(shape[axis])
        out = _apply(_linear(np.round(at, 6), out.shape[axis]), out, axis)
    return out


def _linear(at: Array, count: int) -> sparse.csr_array:
    from scipy import sparse

    inside = (at >= -0.5) & (at <= count - 0.5)
    held = np.clip(at, 0, count - 1)
    low = np.minimum(np.floor(held).astype(int), max(0, count - 2))
    share = np.where(inside, held - low, 0)
    rows = np.arange(len(at))
    weights = np.concatenate([np.where(inside, 1 - share, 0), share]).astype(np.float32)
    columns = np.concatenate([low, np.minimum(low + 1, count - 1)])
    return sparse.csr_array((weights, (np.concatenate([rows, rows]), columns)), shape=(len(at), count))


def _apply(weights: sparse.csr_array, values: Array, axis: int) -> Array:
    """Multiply one axis of an array by a matrix (new, old)."""
    moved = np.moveaxis(values, axis, 0)
    out = weights @ moved.reshape(moved.shape[0], -1)
    return np.moveaxis(np.asarray(out, np.float32).reshape(-1, *moved.shape[1:]), 0, axis)


def dose_grid(ct: Geometry, shape: tuple[int, int, int], spacing: float) -> tuple[Geometry, tuple[int, int, int]]:
    """Return a grid of even spacing (mm) over the same box as a CT, and its number of voxels along each axis."""
    size = ct.voxel_mm * np.array(shape)
    counts = np.maximum(1, np.floor(size / spacing + _ALIGNED)).astype(int)
    directions = ct.axes / ct.voxel_mm
    corner = ct.origin - ct.axes.sum(axis=1) / 2
    axes = directions * spacing
    first = corner + axes.sum(axis=1) / 2 + directions @ ((size - counts * spacing) / 2)
    a, b, c = (int(n) for n in counts)
    return Geometry(first, axes, ct.header), (a, b, c)
