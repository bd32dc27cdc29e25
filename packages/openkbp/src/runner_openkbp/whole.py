"""Prediction of a whole patient, brought back to the patient's grid."""

from __future__ import annotations

import numpy as np
from runner_core import Array, Arrays, Infer

from runner_openkbp.rois import POSSIBLE, SIDE, unpack


def predict(prepared: Arrays, infer: Infer, unit: int | None = None) -> Array:
    """Return the dose (128, 128, 128) float32 in Gy, also where no dose is possible.

    `prepared` holds the patient's ct and masks on the network's grid, one row each. A network that takes any multiple
    of `unit` voxels sees the box around the possible-dose mask alone (see `box`); the dose is 0 outside.
    """
    rows = {name: prepared[name] for name in ("ct", "masks")}
    if unit is None:
        dose = infer({name: row[None] for name, row in rows.items()})["prediction"][0, ..., 0]
        return upsample(dose, SIDE)
    inner = box(unpack(rows["masks"][0], POSSIBLE), unit)
    part = infer({name: np.ascontiguousarray(row[None, :, *inner]) for name, row in rows.items()})["prediction"]
    dose = np.zeros(rows["masks"].shape[1:], np.float32)
    dose[inner] = part[0, ..., 0]
    return upsample(dose, SIDE)


def box(mask: Array, unit: int) -> tuple[slice, ...]:
    """Return the smallest box around a mask whose sides are multiples of `unit`; all if the mask is empty.

    The sides of `mask` are multiples of `unit`. What the box has more than the mask lies evenly at both ends, as far as
    the grid allows.

    >>> box(np.arange(16) == 14, 8)
    (slice(8, 16, None),)
    """
    if not mask.any():
        return tuple(slice(0, size) for size in mask.shape)
    slices = []
    for places, size in zip(np.nonzero(mask), mask.shape, strict=True):
        first, after = int(places.min()), int(places.max()) + 1
        side = -(-(after - first) // unit) * unit
        start = min(max(0, first - (side - (after - first)) // 2), size - side)
        slices.append(slice(start, start + side))
    return tuple(slices)


def inside(masks: Array, dose: Array) -> Array:
    """Return the dose (Gy), 0 outside the possible-dose mask of the patient's mask bits."""
    return np.where(unpack(masks, POSSIBLE), dose, np.float32(0))


def upsample(volume: Array, size: int) -> Array:
    """Interpolate (s, s, s) linearly to (size, size, size), float32.

    Voxels are boxes that share their outer faces, so a coarse voxel's centre lies in the middle of the fine voxels it
    was averaged from. Beyond the outermost centres the nearest value holds.

    >>> upsample(np.broadcast_to(np.array([0.0, 4.0]), (2, 2, 2)), 4)[0, 0].tolist()
    [0.0, 1.0, 3.0, 4.0]
    """
    out = np.asarray(volume, np.float32)
    if out.shape[0] == size:
        return out
    weights = _weights(out.shape[0], size)
    for axis in range(3):
        out = np.moveaxis(np.tensordot(weights, out, (1, axis)), 0, axis)
    return np.ascontiguousarray(out)


def _weights(coarse: int, fine: int) -> Array:
    """Return the weights (fine, coarse) of each coarse value in each fine one."""
    at = np.clip((np.arange(fine) + 0.5) * coarse / fine - 0.5, 0, coarse - 1)
    return np.maximum(0, 1 - np.abs(at[:, None] - np.arange(coarse))).astype(np.float32)
