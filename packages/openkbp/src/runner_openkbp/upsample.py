"""From the network's grid back to the patient's."""

from __future__ import annotations

import numpy as np
from runner_core.protocols import Array


def upsample(volume: Array, size: int) -> Array:
    """Linear interpolation of (s, s, s) to (size, size, size), float32.

    Voxels are boxes that share their outer faces: a coarse voxel's centre lies in the middle of the fine ones that were
    averaged into it. Beyond the outermost centres the nearest value holds.

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
    """(fine, coarse): how much of each coarse value each fine one takes."""
    at = np.clip((np.arange(fine) + 0.5) * coarse / fine - 0.5, 0, coarse - 1)
    return np.maximum(0, 1 - np.abs(at[:, None] - np.arange(coarse))).astype(np.float32)
