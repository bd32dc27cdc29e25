"""Cumulative dose-volume histograms."""

from __future__ import annotations

import numpy as np

from runner_openkbp.rois import ROIS, Array, unpack


def cumulative(values: Array, doses: Array) -> Array:
    """Per cent of the voxels that receive at least each of `doses`.

    `values`: (n,) doses of a region's voxels, n > 0; `doses`: (m,) in the same unit; (m,) float64.

    >>> cumulative(np.array([10.0, 20, 20, 40]), np.array([0.0, 20, 20.5, 50])).tolist()
    [100.0, 75.0, 25.0, 0.0]
    """
    reached = len(values) - np.searchsorted(np.sort(values), doses, side="left")
    return 100.0 * reached / len(values)


def curves(dose: Array, masks: Array, doses: Array) -> dict[str, Array]:
    """The histogram of every ROI that has voxels, by name. `masks`: uint16 of the dose's shape, a bit per ROI."""
    found = {roi: dose[unpack(masks, roi)] for roi in ROIS}
    return {roi: cumulative(values, doses) for roi, values in found.items() if len(values)}
