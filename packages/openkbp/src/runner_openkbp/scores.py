"""The OpenKBP challenge's two scores, and the 23 dose-volume metrics behind the second.

Babier et al., "OpenKBP: The open-access knowledge-based planning grand challenge and dataset", Medical Physics 48
(2021) 5549. Doses are in Gy on the 128³ grid; a prediction counts inside the possible-dose mask only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from runner_core import Table

from runner_openkbp.gamma import CRITERIA, THRESHOLD, gamma_name, passing_rate
from runner_openkbp.rois import OARS, POSSIBLE, ROIS, TARGETS, Array, Patient, unpack

OAR_METRICS = ("D_0.1_cc", "mean")
TARGET_METRICS = {"D_99": 1.0, "D_95": 5.0, "D_1": 99.0}
"""Doses that at least 99, 95 and 1 % of a target receive: percentiles of its voxels' doses (linear)."""
CELLS = tuple(
    (roi, m) for rois, metrics in ((OARS, OAR_METRICS), (TARGETS, TARGET_METRICS)) for roi in rois for m in metrics
)
"""The 23 DVH metrics, as (ROI, metric)."""
SHOWN = ("dose_score", "dvh_score")
GAMMA = tuple(gamma_name(*criteria, local) for criteria in CRITERIA for local in (False, True))
"""Names of the gamma passing rates."""


def dose_score(reference: Array, prediction: Array, possible: Array) -> float:
    """Return Σ|reference − prediction·possible| over all voxels / Σ possible (Gy); NaN for an empty mask.

    `possible` is the possible-dose mask (bool); all three have one shape.
    """
    count = int(np.count_nonzero(possible))
    error = np.abs(np.subtract(reference, np.where(possible, prediction, 0), dtype=np.float64))
    return float(error.sum()) / count if count else math.nan


def dvh_metrics(dose: Array, masks: Array, voxel_mm: Sequence[float] | Array) -> dict[tuple[str, str], float]:
    """Return the 23 metrics (Gy) of a dose by (ROI, metric).

    A metric is NaN if its ROI is absent, or too small for D_0.1_cc. `masks`: uint16 of the dose's shape, one bit per
    ROI (`rois.unpack`).
    """
    needed = voxels_in_tenth_cc(voxel_mm)
    metrics: dict[tuple[str, str], float] = {}
    for roi in ROIS:
        values = dose[unpack(masks, roi)].astype(np.float64)
        found = target_metrics(values) if roi in TARGETS else oar_metrics(values, needed)
        metrics |= {(roi, name): value for name, value in found.items()}
    return metrics


def oar_metrics(values: Array, needed: int) -> dict[str, float]:
    """Return an organ's metrics from its voxels' doses; `needed` is the number of voxels in 0.1 cm³."""
    few = len(values) < needed
    hottest = math.nan if few else float(np.percentile(values, 100 - needed / len(values) * 100))
    return {"D_0.1_cc": hottest, "mean": float(values.mean()) if len(values) else math.nan}


def target_metrics(values: Array) -> dict[str, float]:
    """Return a target's metrics from its voxels' doses."""
    found = np.percentile(values, list(TARGET_METRICS.values())) if len(values) else [math.nan] * len(TARGET_METRICS)
    return {name: float(value) for name, value in zip(TARGET_METRICS, found, strict=True)}


def voxels_in_tenth_cc(voxel_mm: Sequence[float] | Array) -> int:
    """Return the number of voxels nearest to 0.1 cm³ = 100 mm³, at least 1; `voxel_mm` are a voxel's sides."""
    return max(1, round(100 / float(np.prod(voxel_mm))))


def patient_scores(patient: Patient, prediction: Array, gamma: bool = False) -> dict[str, float]:
    """Return dose_score, dvh_score (Gy) and the 23 differences, prediction − reference (Gy), by `difference_name`.

    The DVH score is the mean absolute difference of the metrics that have a value. With `gamma`, passing rates (%)
    inside the possible-dose mask follow, by the names `GAMMA`.
    """
    assert patient.dose is not None
    possible = unpack(patient.masks, POSSIBLE)
    masked = np.where(possible, prediction, 0)
    reference = dvh_metrics(patient.dose, patient.masks, patient.voxel_mm)
    predicted = dvh_metrics(masked, patient.masks, patient.voxel_mm)
    differences = {difference_name(*cell): predicted[cell] - reference[cell] for cell in CELLS}
    scores = {"dose_score": dose_score(patient.dose, masked, possible), "dvh_score": dvh_score([differences])}
    if gamma:
        judged = possible & (patient.dose >= THRESHOLD * patient.dose.max())
        scores |= {
            gamma_name(*criteria, local): passing_rate(
                patient.dose, masked, patient.voxel_mm, *criteria, local=local, where=judged
            )
            for criteria in CRITERIA
            for local in (False, True)
        }
    return scores | differences


def difference_name(roi: str, metric: str) -> str:
    """Return the name of a difference in score tables.

    >>> difference_name("PTV70", "D_95")
    'PTV70_D_95_difference'
    """
    return f"{roi}_{metric}_difference"


def dvh_score(scores: Sequence[Mapping[str, float]]) -> float:
    """Return the mean absolute difference (Gy) over all metrics of all patients that have a value."""
    return _mean([abs(row[difference_name(*cell)]) for row in scores for cell in CELLS])


def pooled(scores: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the DVH score over all metrics of all patients.

    It is not the mean of the patients' scores, because patients have different numbers of ROIs.
    """
    return {"dvh_score": dvh_score(scores)}


def roi_table(scores: Sequence[Mapping[str, float]], baseline: Sequence[Mapping[str, float]]) -> Table:
    """Return a table by ROI and metric.

    Its columns are the number of patients with a value, mean |difference|, mean difference and the baseline's mean
    |difference|.
    """

    def rows() -> Iterator[tuple[str | float, ...]]:
        for roi, metric in CELLS:
            name = difference_name(roi, metric)
            own = [row[name] for row in scores if math.isfinite(row[name])]
            trivial = [abs(row[name]) for row in baseline]
            yield roi, metric, len(own), _mean([abs(v) for v in own]), _mean(own), _mean(trivial)

    columns = ("ROI", "metric", "patients", "|difference|", "difference", "baseline |difference|")
    return Table("rois", "By ROI: mean over patients of prediction − reference (Gy)", columns, list(rows()))


def _mean(values: Sequence[float]) -> float:
    """Return the mean of the finite values, NaN if there is none."""
    finite = [value for value in values if math.isfinite(value)]
    return math.fsum(finite) / len(finite) if finite else math.nan
