"""Cumulative dose-volume histograms."""

from __future__ import annotations

import numpy as np

from runner_openkbp.rois import ROIS, Array, unpack


def cumulative(values: Array, doses: Array) -> Array:
    """Return the percentage of the voxels that receive at least each of `doses`: (m,) float64.

    `values` are the doses of a region's n > 0 voxels; `doses` (m,) have the same unit.

    >>> cumulative(np.array([10.0, 20, 20, 40]), np.array([0.0, 20, 20.5, 50])).tolist()
    [100.0, 75.0, 25.0, 0.0]
    """
    reached = len(values) - np.searchsorted(np.sort(values), doses, side="left")
    return 100.0 * reached / len(values)


def curves(dose: Array, masks: Array, doses: Array) -> dict[str, Array]:
    """Return the histogram of every ROI that has voxels, by name.

    `masks` is uint16 of the dose's shape, one bit per ROI.
    """
    found = {roi: dose[unpack(masks, roi)] for roi in ROIS}
    return {roi: cumulative(values, doses) for roi, values in found.items() if len(values)}
