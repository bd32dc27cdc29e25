"""Trivial methods: every patient gets the mean of the training patients' doses, voxel by voxel; or one dose everywhere.

On the challenge's patients 201 to 203, with the mean of all patients that are shared with them, it scores 10.7 Gy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from runner_core.protocols import Store
from scipy import ndimage

from runner_openkbp.packing import block_sums
from runner_openkbp.rois import GRID, POSSIBLE, Array, unpack

SIDE = 32
"""Grid of the mean dose, which travels with every checkpoint: as good as 128 (10.72 Gy for 10.71), a 64th of it."""
BIN = 0.1
"""Gy: width of the bins in which doses are counted."""


def mean_dose(store: Store, training: Sequence[int]) -> Array:
    """Mean over the training records of their doses (Gy): (32, 32, 32) float32."""
    total = np.zeros((SIDE,) * 3)
    for record in training:
        dose = store.arrays["dose"].read(record)[0].astype(np.int32)
        factor = dose.shape[0] // SIDE
        step = float(store.arrays["dose_step"].read(record)[0, 0])
        total += block_sums(dose, factor) * (step / factor**3)
    return (total / len(training)).astype(np.float32)


def constant_error(store: Store, training: Sequence[int], masked: bool) -> float:
    """Mean absolute error (Gy) of the median dose, the best that is the same everywhere, mean over the training
    records; `masked`: over the voxels where dose can be, else over all. Doses are taken to `BIN` Gy."""
    total = np.zeros(1)
    for record in training:
        dose = store.arrays["dose"].read(record)
        if masked:
            dose = dose[unpack(store.arrays["masks"].read(record), POSSIBLE)]
        step = float(store.arrays["dose_step"].read(record)[0, 0])
        counts = np.bincount((dose.ravel() * np.float32(step / BIN) + 0.5).astype(np.int32))
        total = np.pad(total, (0, max(0, len(counts) - len(total))))
        total[: len(counts)] += counts / max(1, dose.size)
    shares, doses = total / total.sum(), np.arange(len(total)) * BIN
    median = doses[np.searchsorted(shares.cumsum(), 0.5)]
    return float((shares * np.abs(doses - median)).sum())


def trivial_dose(mean: Array, masks: Array) -> Array:
    """The mean dose on the patient's grid (linear), 0 outside the possible-dose mask: (128, 128, 128) float32, Gy."""
    dose = ndimage.zoom(np.asarray(mean, np.float32), GRID[0] // SIDE, order=1, mode="nearest", grid_mode=True)
    return np.where(unpack(masks, POSSIBLE), dose, np.float32(0))
