"""What the user of a predicted dose should know about it before using it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from runner_core.project import Record
from runner_core.protocols import Finding

from runner_openkbp import checks
from runner_openkbp.config import DosePredictOptions
from runner_openkbp.patients import Patient
from runner_openkbp.rois import OARS, POSSIBLE, TARGETS, Array, unpack
from runner_openkbp.scores import voxels_in_tenth_cc

HOTTEST = 1.3
"""No plan gives a voxel more than this share of the highest prescribed dose."""
TARGET_SHARES = (0.75, 1.25)
"""A target's mean dose lies between these shares of its prescription in any plan."""


def on_patient(record: Record, patient: Patient) -> Iterator[Finding]:
    """What `check` warns of in the patient's files: the prediction, or its scores, may be of no use."""
    for finding in checks.findings(record, patient):
        if finding.level == "warning" and finding.rule != checks.REGIONS:  # `on_dose` says what small ROIs mean
            yield finding


def on_dose(patient: Patient, prediction: Array) -> Iterator[Finding]:
    """Warnings about a dose (Gy) that no plan has, notes on organs too small to be scored in full."""
    yield from _impossible(patient, prediction)
    for roi, count in too_small(patient).items():
        needed = voxels_in_tenth_cc(patient.voxel_mm)
        text = f"{roi} has {_voxels(count)}, fewer than the {needed} of 0.1 cm³: its D_0.1_cc is not scored"
        yield Finding("small ROI", "note", text)


def on_files(options: DosePredictOptions) -> Iterator[Finding]:
    """What must be known of the files that were written."""
    if (options.nifti or options.dicom) and options.reference is None:
        kinds = " and ".join(name for name, asked in (("NIfTI", options.nifti), ("RTDOSE", options.dicom)) if asked)
        text = f"{kinds}: the geometry is synthetic (grid centred on 0); --reference CT_SERIES gives the patient's own"
        yield Finding("geometry", "note", text)


def too_small(patient: Patient) -> dict[str, int]:
    """Organs that have voxels, but fewer than 0.1 cm³: their D_0.1_cc is not defined; and how many they have."""
    counts = {roi: int(np.count_nonzero(unpack(patient.masks, roi))) for roi in OARS}
    return {roi: n for roi, n in counts.items() if 0 < n < voxels_in_tenth_cc(patient.voxel_mm)}


def _impossible(patient: Patient, prediction: Array) -> Iterator[Finding]:
    inside = prediction[unpack(patient.masks, POSSIBLE)]
    if bad := inside.size - int(np.count_nonzero(np.isfinite(inside))):
        yield Finding("dose", "warning", f"the predicted dose is NaN or infinite in {_voxels(bad)}: it is of no use")
        return
    if not inside.any():
        yield Finding("dose", "warning", "the predicted dose is 0 Gy everywhere: it is of no use")
        return
    prescribed = {roi: float(roi.removeprefix("PTV")) for roi in TARGETS}
    if inside.max() > HOTTEST * max(prescribed.values()):
        yield Finding("dose", "warning", f"the predicted dose reaches {inside.max():.0f} Gy, which no plan does")
    missed = []
    for roi, dose in prescribed.items():
        values = prediction[unpack(patient.masks, roi)]
        mean = float(values.mean(dtype=np.float64)) if values.size else dose
        if not TARGET_SHARES[0] * dose <= mean <= TARGET_SHARES[1] * dose:
            missed.append(f"{roi} {mean:.1f} Gy")
    if missed:
        yield Finding("target", "warning", f"mean doses far from what is prescribed: {', '.join(missed)}")


def _voxels(count: int) -> str:
    return f"{count} voxel" + "s" * (count != 1)
