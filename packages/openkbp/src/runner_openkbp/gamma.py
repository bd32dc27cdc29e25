"""Gamma index: how much of a dose agrees with another within a dose difference and a distance.

Low, Harms, Mutic and Purdy, "A technique for the quantitative evaluation of dose distributions", Medical Physics 25
(1998) 656. The evaluated dose is interpolated linearly at points on spheres around each voxel, a tenth of the distance
apart: the points of pymedphys with `interp_fraction=10`, so that the values are the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

import numpy as np

from runner_openkbp.rois import Array

CRITERIA = ((3.0, 3.0), (2.0, 2.0))
"""Dose difference (%) and distance (mm)."""
THRESHOLD = 0.1
"""Voxels below this share of the highest reference dose are not judged."""
_STEPS = 10
_AT_ONCE = 1 << 16
"""Points that are interpolated at once: those of a few voxels at many offsets, or of many voxels at one."""


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

    Args: those of `gamma`.
    """
    found = gamma(reference, evaluated, voxel_mm, percent, distance, local=local, where=where, enough=1)
    judged = np.isfinite(found)
    return 100 * float((found[judged] <= 1).mean()) if judged.any() else math.nan


def gamma(
    reference: Array,
    evaluated: Array,
    voxel_mm: Array,
    percent: float,
    distance: float,
    *,
    local: bool = False,
    where: Array | None = None,
    most: float = 1.1,
    enough: float = 0,
) -> Array:
    """Return each voxel's gamma (float64, at most `most`), NaN where it is not judged.

    Args:
        reference: the reference dose, 3-D.
        evaluated: the dose that is judged, on the same grid. Points outside of the grid do not count.
        voxel_mm: (3,), the size of a voxel.
        percent: the dose difference, in per cent of the highest reference dose, or with `local` of the voxel's own.
        distance: the distance to agreement (mm).
        local: judge by the voxel's own dose.
        where: voxels to judge (bool); those of at least `THRESHOLD` of the highest dose by default.
        most: search up to this gamma.
        enough: a voxel that has reached this gamma is left at what was found, which may not be the least.
    """
    reference, evaluated = np.asarray(reference, np.float64), np.asarray(evaluated, np.float64)
    highest = float(reference.max(initial=0))
    judged = reference >= THRESHOLD * highest if where is None else np.array(where, bool)
    judged &= highest > 0
    out = np.full(reference.shape, np.nan)
    dose = reference[judged]
    allowed = percent / 100 * (dose if local else np.full(len(dose), highest))
    around = _Around(evaluated, judged, np.asarray(voxel_mm, float), most * distance)
    squares = np.full(len(dose), np.inf)
    for step in range(int(most * _STEPS + 1e-9) + 1):
        apart = (step / _STEPS) ** 2
        open_ = np.flatnonzero((squares > apart) & (squares > enough**2))
        open_ = open_[around.least(dose, open_, step * distance / _STEPS, allowed) + apart < squares[open_]]
        offsets = _sphere(step) * (distance / _STEPS)
        while len(offsets) and len(open_):
            some = max(1, _AT_ONCE // len(open_))
            found = np.fmin.reduce(((around.values(offsets[:some], open_) - dose[open_]) / allowed[open_]) ** 2)
            squares[open_] = np.fmin(squares[open_], found + apart)
            offsets = offsets[some:]
            if enough:
                open_ = open_[squares[open_] > enough**2]
    out[judged] = np.minimum(np.sqrt(squares), most)
    return out


class _Around:
    """A dose around the judged voxels: its values at an offset, and bounds of them within a distance."""

    def __init__(self, dose: Array, judged: Array, voxel_mm: Array, reach: float) -> None:
        """Keep a dose with a border of infinite values, wide enough for offsets up to `reach` (mm)."""
        self.voxel_mm = voxel_mm
        border = [int(reach / mm) + 2 for mm in voxel_mm]
        padded = np.pad(judged, [(n, n) for n in border])
        box = tuple(
            slice(int(found[0]) - n, int(found[-1]) + n + 1) if len(found) else slice(0)
            for found, n in zip(map(np.unique, np.nonzero(padded)), border, strict=True)
        )
        self.dose = np.ascontiguousarray(np.pad(dose, [(n, n) for n in border], constant_values=np.inf)[box])
        self.flat = self.dose.ravel()
        self.at = np.flatnonzero(padded[box])
        self.strides = np.array(self.dose.strides) // self.dose.itemsize

    def values(self, offsets: Array, which: Array) -> Array:
        """Return the dose (k, n), linear between voxels, at offsets (k, 3) in mm from some voxels.

        It is infinite or NaN outside of the grid.
        """
        places = np.round(offsets / self.voxel_mm, 9)
        low = np.floor(places).astype(int)
        share = places - low
        total = np.zeros((len(offsets), len(which)))
        with np.errstate(invalid="ignore"):
            for corner in product((0, 1), repeat=3):
                weights = np.prod(np.where(corner, share, 1 - share), axis=1)
                shifts = np.where(weights > 0, (low + corner) @ self.strides, low @ self.strides)
                if weights.any():
                    total += weights[:, None] * self.flat[self.at[which] + shifts[:, None]]
        return total

    def least(self, dose: Array, which: Array, reach: float, allowed: Array) -> Array:
        """Return at most the least squared difference from `dose`, as a share of `allowed`, within `reach` (mm)."""
        inside = np.isfinite(self.dose)
        low = _highest(np.where(inside, -self.dose, -np.inf), reach / self.voxel_mm).ravel()[self.at[which]]
        high = _highest(np.where(inside, self.dose, -np.inf), reach / self.voxel_mm).ravel()[self.at[which]]
        beyond = np.maximum(np.maximum(-low - dose[which], dose[which] - high), 0)
        return np.asarray((beyond / allowed[which]) ** 2)


def _highest(values: Array, reach: Array) -> Array:
    """Return at least the highest value, linear between voxels, within `reach` voxels along each axis."""
    for axis, far in enumerate(reach.tolist()):
        whole = math.ceil(far) - 1
        places = {-far, far, *range(-whole, whole + 1)}
        values = np.max([_moved(values, place, axis) for place in places], axis=0)
    return values


def _moved(values: Array, by: float, axis: int) -> Array:
    low = math.floor(by)
    near = np.roll(values, -low, axis)
    return near if by == low else (1 - (by - low)) * near + (by - low) * np.roll(near, -1, axis)


def _sphere(steps: int) -> Array:
    """Return points (n, 3) on a sphere of radius `steps`, at most 1 apart: rings about the third axis."""
    return np.array(list(_rings(steps)))


def _rings(steps: int) -> Iterator[tuple[float, float, float]]:
    for elevation in np.linspace(0, math.pi, math.ceil(math.pi * steps) + 1):
        radius = steps * math.sin(elevation)
        count = math.ceil(2 * math.pi * radius) + 1
        for turn in range(count):
            azimuth = 2 * math.pi * turn / count
            yield radius * math.cos(azimuth), radius * math.sin(azimuth), steps * math.cos(elevation)


def gamma_name(percent: float, distance: float, local: bool) -> str:
    """Return the name of a passing rate in score tables.

    >>> gamma_name(3.0, 3.0, False)
    'gamma_3_3_global'
    """
    return f"gamma_{percent:g}_{distance:g}_{'local' if local else 'global'}"
