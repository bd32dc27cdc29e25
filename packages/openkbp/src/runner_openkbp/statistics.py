"""Statistics of the training patients: their mean dose, and the error of a constant dose."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from runner_core import Statistics, Store

from runner_openkbp.rois import POSSIBLE, Array, unpack
from runner_openkbp.whole import block_sums

MEAN_SIDE = 32
"""Voxels per side of the mean dose, which every checkpoint holds. 128 would hardly be better: the baseline scores
10.72 Gy with 32 and 10.71 Gy with 128."""
BIN = 0.1
"""Width (Gy) of the bins in which doses are counted."""


def fit(store: Store, training: Sequence[int], masked: bool) -> Statistics:
    """Return the statistics `mean_dose` and `constant_error` of the training records."""
    return {"mean_dose": mean_dose(store, training), "constant_error": constant_error(store, training, masked)}


def mean_dose(store: Store, training: Sequence[int]) -> Array:
    """Return the mean dose (Gy) of the training records: (32, 32, 32) float32."""
    total = np.zeros((MEAN_SIDE,) * 3)
    for record in training:
        dose = store.arrays["dose"].read(record)[0].astype(np.int32)
        factor = dose.shape[0] // MEAN_SIDE
        step = float(store.arrays["dose_step"].read(record)[0, 0])
        total += block_sums(dose, factor) * (step / factor**3)
    return (total / len(training)).astype(np.float32)


def constant_error(store: Store, training: Sequence[int], masked: bool) -> float:
    """Return the mean absolute error (Gy) of the median dose, the best constant, averaged over the training records.

    With `masked` it is the error over the voxels that can receive dose, else over all. Doses are rounded to `BIN` Gy.
    """
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
