"""Cumulative dose-volume histograms."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from runner_openkbp.rois import ROIS, Array, unpack

STEP = 0.5
"""Gy between two points of a written histogram."""
SPREAD = ("sd", "lowest", "highest")
"""Columns of the numbers behind the mean that `spread` gives."""


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


def write_spread(path: Path, doses: Sequence[Array], masks: Array) -> None:
    """Write the histograms of several networks' doses (Gy): mean, sd (n − 1) and extremes of the volumes (%)."""
    at = np.arange(0, max(float(dose.max()) for dose in doses) + STEP, STEP)
    found = [curves(dose, masks, at) for dose in doses]
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["roi", "dose_gy", "volume_percent", *SPREAD])
        for roi in found[0]:
            for gy, volumes in zip(at, np.stack([each[roi] for each in found], 1), strict=True):
                table.writerow([roi, f"{gy:g}", *spread(volumes)])


def spread(values: Array) -> list[str]:
    """Return mean, standard deviation (n − 1; 0 of one value), least and most of values (n,), as text.

    >>> spread(np.array([1.0, 2.0, 6.0]))
    ['3.000', '2.646', '1.000', '6.000']
    """
    deviation = values.std(ddof=1) if len(values) > 1 else 0.0
    return [f"{value:.3f}" for value in (values.mean(), deviation, values.min(), values.max())]
