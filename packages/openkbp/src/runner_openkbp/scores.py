"""The OpenKBP challenge's two scores, and the cells of which the second is made.

Babier et al., "OpenKBP: The open-access knowledge-based planning grand challenge and dataset", Medical Physics 48
(2021) 5549. Doses in Gy on the 128³ grid; a prediction counts inside the possible-dose mask only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from runner_core.project import Table

from runner_openkbp.patients import Patient
from runner_openkbp.rois import OARS, POSSIBLE, ROIS, TARGETS, Array, unpack

OAR_METRICS = ("D_0.1_cc", "mean")
TARGET_METRICS = {"D_99": 1.0, "D_95": 5.0, "D_1": 99.0}
"""Dose that at least 99, 95 and 1 % of a target receive: percentiles of its voxels' doses (linear)."""
CELLS = tuple(
    (roi, m) for rois, metrics in ((OARS, OAR_METRICS), (TARGETS, TARGET_METRICS)) for roi in rois for m in metrics
)
"""The 23 DVH metrics, as (ROI, metric)."""
SHOWN = ("dose_score", "dvh_score")


def dose_score(reference: Array, prediction: Array, possible: Array) -> float:
    """Σ|reference − prediction·possible| over all voxels / Σ possible (Gy); NaN where nothing is possible.

    `possible`: bool, the possible-dose mask; all of one shape.
    """
    count = int(np.count_nonzero(possible))
    error = np.abs(np.subtract(reference, np.where(possible, prediction, 0), dtype=np.float64))
    return float(error.sum()) / count if count else math.nan


def dvh_metrics(dose: Array, masks: Array, voxel_mm: Sequence[float] | Array) -> dict[tuple[str, str], float]:
    """The 23 metrics (Gy) of a dose by (ROI, metric); NaN for an ROI that is absent, or too small for D_0.1_cc.

    `masks`: uint16 of the dose's shape, a bit per ROI (`rois.unpack`).
    """
    needed = voxels_in_tenth_cc(voxel_mm)
    metrics: dict[tuple[str, str], float] = {}
    for roi in ROIS:
        values = dose[unpack(masks, roi)].astype(np.float64)
        found = target_metrics(values) if roi in TARGETS else oar_metrics(values, needed)
        metrics |= {(roi, name): value for name, value in found.items()}
    return metrics


def oar_metrics(values: Array, needed: int) -> dict[str, float]:
    """`values`: doses of the organ's voxels; `needed`: voxels in 0.1 cm³."""
    few = len(values) < needed
    hottest = math.nan if few else float(np.percentile(values, 100 - needed / len(values) * 100))
    return {"D_0.1_cc": hottest, "mean": float(values.mean()) if len(values) else math.nan}


def target_metrics(values: Array) -> dict[str, float]:
    """`values`: doses of the target's voxels."""
    found = np.percentile(values, list(TARGET_METRICS.values())) if len(values) else [math.nan] * len(TARGET_METRICS)
    return {name: float(value) for name, value in zip(TARGET_METRICS, found, strict=True)}


def voxels_in_tenth_cc(voxel_mm: Sequence[float] | Array) -> int:
    """Voxels of these sides (mm) whose volume is nearest to 0.1 cm³ = 100 mm³, one at least."""
    return max(1, round(100 / float(np.prod(voxel_mm))))


def patient_scores(patient: Patient, prediction: Array) -> dict[str, float]:
    """dose_score and dvh_score (Gy), then the 23 differences, prediction − reference (Gy), by `difference_name`.

    The DVH score is the mean absolute difference of the cells that have a value.
    """
    assert patient.dose is not None
    possible = unpack(patient.masks, POSSIBLE)
    masked = np.where(possible, prediction, 0)
    reference = dvh_metrics(patient.dose, patient.masks, patient.voxel_mm)
    predicted = dvh_metrics(masked, patient.masks, patient.voxel_mm)
    differences = {difference_name(*cell): predicted[cell] - reference[cell] for cell in CELLS}
    scores = {"dose_score": dose_score(patient.dose, masked, possible), "dvh_score": dvh_score([differences])}
    return scores | differences


def difference_name(roi: str, metric: str) -> str:
    """
    >>> difference_name("PTV70", "D_95")
    'PTV70_D_95_difference'
    """
    return f"{roi}_{metric}_difference"


def dvh_score(scores: Sequence[Mapping[str, float]]) -> float:
    """Mean absolute difference (Gy) over every patient × metric cell that has a value."""
    return _mean([abs(row[difference_name(*cell)]) for row in scores for cell in CELLS])


def pooled(scores: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """What is not a mean over patients: the DVH score's mean is over cells, so that absent ROIs weigh nothing."""
    return {"dvh_score": dvh_score(scores)}


def roi_table(scores: Sequence[Mapping[str, float]], baseline: Sequence[Mapping[str, float]]) -> Table:
    """By ROI and metric: patients that have it, mean |difference|, mean difference, the baseline's |difference|."""

    def rows() -> Iterator[tuple[str | float, ...]]:
        for roi, metric in CELLS:
            name = difference_name(roi, metric)
            own = [row[name] for row in scores if math.isfinite(row[name])]
            trivial = [abs(row[name]) for row in baseline]
            yield roi, metric, len(own), _mean([abs(v) for v in own]), _mean(own), _mean(trivial)

    columns = ("ROI", "metric", "patients", "|difference|", "difference", "baseline |difference|")
    return Table("rois", "By ROI: mean over patients of prediction − reference (Gy)", columns, list(rows()))


def _mean(values: Sequence[float]) -> float:
    """Of the finite ones; NaN where there is none."""
    finite = [value for value in values if math.isfinite(value)]
    return math.fsum(finite) / len(finite) if finite else math.nan
