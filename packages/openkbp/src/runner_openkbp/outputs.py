"""What `predict` writes: the challenge's CSV, NIfTI, DICOM RTDOSE and a picture."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import numpy as np
from runner_core._errors import BadInput
from runner_core.evaluation import write_png
from runner_core.project import Record

from runner_openkbp import csvfiles, dicom, geometry, nifti, patients
from runner_openkbp.config import DosePredictOptions
from runner_openkbp.figures import dose_figure
from runner_openkbp.rois import Array


def refuse(options: DosePredictOptions, patients_asked: Collection[Path]) -> None:
    """BadInput for options that write nothing, or that would give several patients one person's identity."""
    if not (options.csv or options.nifti or options.dicom or options.figure or options.reference):
        raise BadInput("--no-csv leaves nothing to write; add --nifti, --dicom or --figure, or leave it out")
    if options.reference is not None and len(patients_asked) > 1:
        raise BadInput(
            f"{options.reference}: --reference is one person's CT series, and {len(patients_asked)} patients are to be "
            "predicted; predict each with its own"
        )


def write(record: Record, dose: Array, out: Path, options: DosePredictOptions) -> Sequence[Path]:
    """Write a predicted dose (128, 128, 128) float32 in Gy as the options say; the files written.

    Raises BadInput for a dose that is not finite, a folder that cannot be written and an unfit reference.
    """
    if not np.isfinite(dose).all():
        raise BadInput(f"{record.key}: the predicted dose is NaN or infinite in places and is not written; train anew")
    patient = patients.read_patient(record)
    grid = geometry.synthetic(patient.voxel_mm)
    if options.reference is not None:  # before anything is written: it may be refused
        grid = geometry.of_series(options.reference, patient.voxel_mm, patient.ct)
    wanted: dict[Path, Callable[[Path], None]] = {}
    if options.csv:
        wanted[out / f"{record.key}.csv"] = lambda path: csvfiles.write_values(path, dose)
    if options.nifti:
        wanted[out / f"{record.key}_dose.nii.gz"] = lambda path: nifti.write_dose(dose, grid, path)
    if options.dicom or options.reference is not None:
        wanted[out / f"{record.key}_dose.dcm"] = lambda path: dicom.write_dose(dose, grid, record.key, path)
    if options.figure:
        wanted[out / f"{record.key}_dose.png"] = lambda path: write_png(path, dose_figure(patient, dose, record.key))
    for path, write_to in wanted.items():
        try:
            out.mkdir(parents=True, exist_ok=True)
            write_to(path)
        except OSError as error:
            raise BadInput(f"{path}: cannot be written: {error.strerror or error}") from error
    return list(wanted)
