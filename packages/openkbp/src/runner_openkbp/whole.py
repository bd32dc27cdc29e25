"""Prediction of a whole patient, brought back to the patient's grid."""

from __future__ import annotations

import numpy as np
from runner_core import Array, Arrays, Infer

from runner_openkbp.rois import POSSIBLE, SIDE, unpack


def predict(prepared: Arrays, infer: Infer) -> Array:
    """Return the dose (128, 128, 128) float32 in Gy, also where no dose is possible.

    `prepared` holds the patient's ct and masks on the network's grid, one row each.
    """
    dose = infer({name: prepared[name][None] for name in ("ct", "masks")})["prediction"][0, ..., 0]
    return upsample(dose, SIDE)


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
