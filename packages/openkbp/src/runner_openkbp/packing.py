"""Packed patients: int16 CT, uint16 dose and uint16 mask bits, 6 bytes per voxel instead of 104 in float64.

A dose of 0 … 81.9 Gy is stored in steps of 1/800 Gy (error ≤ 0.000625 Gy); patients above that get larger steps.
"""

from __future__ import annotations

import numpy as np
from runner_core import Arrays, Decoded

from runner_openkbp.rois import POSSIBLE, Array, Patient, unpack
from runner_openkbp.whole import block_means, rows

DOSE_STEP = 1 / 800
"""Gy per unit of the stored dose."""
_MOST = np.iinfo(np.uint16).max


def pack(patient: Patient) -> Decoded:
    """Return ct int16, masks uint16 and, if the patient has one, dose uint16, each (128, 128, 128).

    `meta` holds voxel_mm (three numbers) and dose_step (Gy per unit of the stored dose).
    """
    arrays: Arrays = {"ct": patient.ct, "masks": patient.masks}
    step = DOSE_STEP
    if patient.dose is not None:
        arrays["dose"], step = quantise(patient.dose)
    voxel_mm = tuple(float(mm) for mm in patient.voxel_mm)
    return Decoded(arrays, voxel_mm, "ct", {"voxel_mm": list(voxel_mm), "dose_step": step})


def quantise(dose: Array) -> tuple[Array, float]:
    """Return a dose ≥ 0 (Gy, any shape) as uint16, and the Gy per unit; the error is at most half a unit.

    >>> units, step = quantise(np.array([0.0, 70.0], np.float32))
    >>> units.tolist(), 1 / step
    ([0, 56000], 800.0)
    """
    step = max(DOSE_STEP, float(dose.max(initial=0)) / _MOST)
    return np.minimum(np.rint(dose * (1 / step)), _MOST).astype(np.uint16), step


def prepare(decoded: Decoded, size: int) -> Arrays:
    """Return one row of the cache: ct int16, masks and dose uint16, each (1, size, size, size), and dose_step.

    dose_step is (1, 1) float32, Gy per unit. Without a dose, `dose` and `dose_step` are absent.

    If `size` (128, 64, 32) is below the grid's, a coarse voxel has the mean CT of the voxels that it replaces, and a
    region contains it if it contains at least half of them. A coarse voxel can receive dose if any of these voxels can,
    and its dose is the mean over those that can. If the zeros outside the mask counted, patients brought back to 128³
    would lack up to 1.3 Gy.
    """
    factor = decoded.arrays["ct"].shape[0] // size
    whole = decoded.arrays
    arrays = rows(whole["ct"], whole["masks"], size)
    if "dose" in whole:
        dose = whole["dose"]
        if factor > 1:
            dose = block_means(dose, factor, unpack(whole["masks"], POSSIBLE))
        arrays["dose"] = dose[None]
        arrays["dose_step"] = np.array([[decoded.meta["dose_step"]]], np.float32)
    return arrays
