"""Doses as NIfTI files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from runner_openkbp.geometry import SYNTHETIC, Geometry
from runner_openkbp.rois import Array

_SCANNER, _ALIGNED = 1, 2
"""NIfTI's codes for scanner coordinates, and for other coordinates that are aligned with the patient."""


def write_dose(dose: Array, grid: Geometry, path: Path) -> None:
    """Write a dose (128, 128, 128) in Gy as float32, with the array axes of the challenge's files.

    The affine holds their directions (back, left, down for the challenge's patients). If the geometry is synthetic, the
    form's code is "aligned" instead of "scanner", and the description says so.
    """
    import nibabel

    image = nibabel.Nifti1Image(np.asarray(dose, np.float32), grid.affine)
    image.header.set_xyzt_units("mm")
    code = _SCANNER if grid.header is not None else _ALIGNED
    image.set_sform(grid.affine, code)
    image.set_qform(grid.affine, code)
    text = "predicted dose in Gy" + ("" if grid.header is not None else f"; {SYNTHETIC}")
    image.header["descrip"] = text.encode()[:79]
    nibabel.save(image, path)
