"""Gamma index: how much of a dose agrees with another within a dose difference and a distance.

Low, Harms, Mutic and Purdy, "A technique for the quantitative evaluation of dose distributions", Medical Physics 25
(1998) 656. The evaluated dose is interpolated linearly, on a lattice of offsets a tenth of the distance apart.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import ndimage

from runner_openkbp.rois import Array

CRITERIA = ((3.0, 3.0), (2.0, 2.0))
"""Dose difference (%) and distance (mm)."""
THRESHOLD = 0.1
"""Voxels below this share of the highest reference dose are not judged."""
_STEPS = 10


def passing_rate(
    reference: Array,
    evaluated: Array,
    voxel_mm: Array,
    percent: float,
    distance: float,
    *,
    local: bool = False,
    where: Array | None = None,
) -> float:
    """Return the share (%) of judged voxels whose gamma is at most 1; NaN if none is judged.

    Args:
        reference: the reference dose, 3-D.
        evaluated: the dose that is judged, on the same grid.
        voxel_mm: (3,), the size of a voxel.
        percent: the dose difference, in per cent of the highest reference dose, or with `local` of the voxel's own.
        distance: the distance to agreement (mm).
        local: judge by the voxel's own dose.
        where: voxels to judge (bool); those above the threshold by default.
    """
    reference, evaluated = np.asarray(reference, np.float64), np.asarray(evaluated, np.float64)
    highest = float(reference.max(initial=0))
    judged = reference >= THRESHOLD * highest
    judged &= highest > 0 if where is None else where
    points = np.argwhere(judged)
    if not len(points):
        return math.nan
    dose = reference[judged]
    allowed = percent / 100 * (dose if local else np.full(len(points), highest))
    reach = [2 * math.ceil(distance / float(mm)) + 1 for mm in voxel_mm]
    low = ndimage.minimum_filter(evaluated, reach, mode="nearest")[judged]
    high = ndimage.maximum_filter(evaluated, reach, mode="nearest")[judged]
    hopeful = (low - allowed <= dose) & (dose <= high + allowed)  # the others can pass nowhere within the distance
    passed = 0
    points, dose, allowed = points[hopeful].astype(np.float64), dose[hopeful], allowed[hopeful]
    size = np.array(evaluated.shape) - 1
    for offset in _offsets(distance):
        if not len(points):
            break
        at = points + offset / voxel_mm
        inside = ((at >= 0) & (at <= size)).all(axis=1)
        found = ndimage.map_coordinates(evaluated, at.T, order=1, mode="nearest")
        apart = float(offset @ offset) / distance**2
        fits = inside & (((found - dose) / allowed) ** 2 + apart <= 1 + 1e-12)
        passed += int(np.count_nonzero(fits))
        points, dose, allowed = points[~fits], dose[~fits], allowed[~fits]
    return 100.0 * passed / int(np.count_nonzero(judged))


def _offsets(distance: float) -> Array:
    """Return offsets (n, 3) in mm within a distance, the nearest first."""
    steps = np.arange(-_STEPS, _STEPS + 1)
    lattice = np.stack(np.meshgrid(steps, steps, steps, indexing="ij"), axis=-1).reshape(-1, 3)
    squares = (lattice**2).sum(axis=1)
    order = np.argsort(squares, kind="stable")
    return np.asarray(lattice[order[: int(np.count_nonzero(squares <= _STEPS**2))]] * (distance / _STEPS))


def gamma_name(percent: float, distance: float, local: bool) -> str:
    """Return the name of a passing rate in score tables.

    >>> gamma_name(3.0, 3.0, False)
    'gamma_3_3_global'
    """
    return f"gamma_{percent:g}_{distance:g}_{'local' if local else 'global'}"
