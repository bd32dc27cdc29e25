"""Files that `predict` writes (the challenge's CSV, NIfTI, DICOM RTDOSE and a picture), and remarks on doses."""

from __future__ import annotations

import csv
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from runner_core import BadInput, Finding, Record, write_png

from runner_openkbp import checks, clinic, csvfiles, dvh, geometry, nifti
from runner_openkbp.config import DosePredictOptions
from runner_openkbp.dicom import grid as grids
from runner_openkbp.dicom import read
from runner_openkbp.dicom import write as rtdose
from runner_openkbp.dicom.coverage import RULE
from runner_openkbp.figures import figure
from runner_openkbp.files import read_patient
from runner_openkbp.rois import OARS, POSSIBLE, ROIS, TARGETS, Array, Patient, unpack
from runner_openkbp.scores import dvh_metrics, voxels_in_tenth_cc

HOTTEST = 1.3
"""No plan gives a voxel more than this multiple of the highest prescribed dose."""
TARGET_SHARES = (0.75, 1.25)
"""In any plan a target's mean dose lies between these multiples of its prescription."""


def refuse(options: DosePredictOptions, patients_asked: Collection[Path]) -> None:
    """Raise BadInput for options that write nothing, or that give several patients one person's identity."""
    if not (options.csv or options.nifti or options.dicom or options.figure or options.goals or options.reference):
        raise BadInput("--no-csv leaves nothing to write; add --nifti, --dicom or --figure, or leave it out")
    if options.reference is not None and len(patients_asked) > 1:
        raise BadInput(
            f"{options.reference}: --reference is one person's CT series, and {len(patients_asked)} patients are to be "
            "predicted; predict each with its own"
        )


def write(
    record: Record, dose: Array, out: Path, options: DosePredictOptions, goals: Sequence[clinic.Goal] = clinic.DEFAULT
) -> Sequence[Path]:
    """Write a predicted dose (128, 128, 128) float32 in Gy in the formats of the options, and return the files.

    Raises BadInput for a dose that is not finite, a folder that cannot be written, or a reference that does not fit.
    """
    if not np.isfinite(dose).all():
        raise BadInput(f"{record.key}: the predicted dose is NaN or infinite in places and is not written; train again")
    if read.is_dicom(record):
        if options.reference is not None:
            raise BadInput(
                f"{record.key}: --reference is for patients from CSV files; this one brings its own CT series"
            )
        planning = read.read_planning(record)
        patient, grid = planning.patient, planning.grid
    else:
        planning, patient = None, read_patient(record)
        grid = geometry.synthetic(patient.voxel_mm)
        if options.reference is not None:  # before anything is written: it may be refused
            grid = geometry.of_series(options.reference, patient.voxel_mm, patient.ct)
    wanted: dict[Path, Callable[[Path], None]] = {}
    if options.csv:
        wanted[out / f"{record.key}.csv"] = lambda path: csvfiles.write_values(path, dose)
    if options.nifti:
        wanted[out / f"{record.key}_dose.nii.gz"] = lambda path: nifti.write_dose(dose, grid, path)
    if planning is not None:
        wanted[out / f"{record.key}_dose.dcm"] = lambda path: write_planned(planning, dose, record.key, path, options)
    elif options.dicom or options.reference is not None:
        wanted[out / f"{record.key}_dose.dcm"] = lambda path: rtdose.write_dose(dose, grid, record.key, path)
    if options.goals:
        wanted[out / f"{record.key}_goals.csv"] = lambda path: clinic.write_goals(path, goals, patient, dose)
    if options.figure:
        wanted[out / f"{record.key}_dose.png"] = lambda path: write_png(path, figure(patient, dose, record.key))
    _write_all(wanted)
    return list(wanted)


def _write_all(wanted: Mapping[Path, Callable[[Path], None]]) -> None:
    for path, write_to in wanted.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_to(path)
        except OSError as error:
            raise BadInput(f"{path}: cannot be written: {error.strerror or error}") from error


def write_planned(planning: read.Planning, dose: Array, key: str, path: Path, options: DosePredictOptions) -> None:
    """Write a dose on the network's grid as RT Dose of a patient from a planning system, on the grid of the options."""
    grid, shape = planning.ct_grid, planning.ct_shape
    if options.dose_grid:
        grid, shape = grids.dose_grid(planning.ct_grid, planning.ct_shape, options.dose_grid)
    values = grids.interpolate(dose, planning.grid, grid, shape)
    patient = planning.patient
    regions = {roi: numbers for roi, numbers in planning.numbers.items() if roi in ROIS}
    refers = rtdose.Refers(planning.structures, regions, patient.masks, dose, patient.voxel_mm, planning.plan)
    rtdose.write_dose(values, grid, key, path, refers)


def write_map(values: Array, voxel_mm: Array, stem: Path, options: DosePredictOptions) -> Sequence[Path]:
    """Write a map (128, 128, 128) in Gy in the challenge's format; with --nifti or --dicom, as NIfTI too."""
    wanted = [stem.with_name(f"{stem.name}.csv")]
    csvfiles.write_values(wanted[0], values)
    if options.nifti or options.dicom or options.reference is not None:
        wanted.append(stem.with_name(f"{stem.name}.nii.gz"))
        nifti.write_dose(values, geometry.synthetic(voxel_mm), wanted[1])
    return wanted


def write_members(doses: Sequence[Array], masks: Array, voxel_mm: Array, stem: Path) -> Sequence[Path]:
    """Write how much the networks' doses (Gy) differ in each region: their histograms, and the metrics of each."""
    histograms, metrics = (stem.with_name(f"{stem.name}_{name}.csv") for name in ("dvh", "metrics"))
    dvh.write_spread(histograms, doses, masks)
    found = [dvh_metrics(dose, masks, voxel_mm) for dose in doses]
    with metrics.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["roi", "metric", "mean_gy", *(f"{name}_gy" for name in dvh.SPREAD)])
        for roi, metric in found[0]:
            values = np.array([each[roi, metric] for each in found])
            if np.isfinite(values).all():
                table.writerow([roi, metric, *dvh.spread(values)])
    return [histograms, metrics]


def remarks(
    record: Record,
    patient: Patient,
    dose: Array,
    options: DosePredictOptions,
    goals: Sequence[clinic.Goal] = clinic.DEFAULT,
) -> Iterator[Finding]:
    """Yield what a user should know about a predicted dose (Gy) before using it."""
    yield from on_patient(record, patient)
    yield from on_dose(patient, dose)
    if judged := list(clinic.judge(goals, dose, patient.masks, patient.voxel_mm)):
        yield Finding("goals", "note", clinic.summary(judged))
    if read.is_dicom(record):
        yield Finding("research", "note", "the RTDOSE is a network's prediction, for research only: no treatment")
    else:
        yield from on_files(options)


def on_patient(record: Record, patient: Patient) -> Iterator[Finding]:
    """Yield the warnings that `check` has for the patient's files: they may make prediction or scores useless."""
    for finding in checks.findings(record, patient):
        if finding.rule == RULE or (
            finding.level == "warning" and finding.rule != checks.REGIONS
        ):  # `on_dose` says what small ROIs mean
            yield finding


def on_dose(patient: Patient, prediction: Array) -> Iterator[Finding]:
    """Yield warnings about a dose (Gy) that no plan has, and notes on organs too small to be scored in full."""
    yield from _impossible(patient, prediction)
    for roi, count in too_small(patient).items():
        needed = voxels_in_tenth_cc(patient.voxel_mm)
        text = f"{roi} has {_voxels(count)}, fewer than the {needed} in 0.1 cm³: its D_0.1_cc is not scored"
        yield Finding("small ROI", "note", text)


def on_files(options: DosePredictOptions) -> Iterator[Finding]:
    """Yield what a user must know about the files that were written."""
    if (options.nifti or options.dicom) and options.reference is None:
        kinds = " and ".join(name for name, asked in (("NIfTI", options.nifti), ("RTDOSE", options.dicom)) if asked)
        text = f"{kinds}: the geometry is synthetic (grid centred on 0); --reference CT_SERIES gives the patient's own"
        yield Finding("geometry", "note", text)


def too_small(patient: Patient) -> dict[str, int]:
    """Return the organs that have voxels, but fewer than 0.1 cm³, and how many; their D_0.1_cc is not defined."""
    counts = {roi: int(np.count_nonzero(unpack(patient.masks, roi))) for roi in OARS}
    return {roi: n for roi, n in counts.items() if 0 < n < voxels_in_tenth_cc(patient.voxel_mm)}


def _impossible(patient: Patient, prediction: Array) -> Iterator[Finding]:
    inside = prediction[unpack(patient.masks, POSSIBLE)]
    if bad := inside.size - int(np.count_nonzero(np.isfinite(inside))):
        yield Finding("dose", "warning", f"the predicted dose is NaN or infinite in {_voxels(bad)}: it cannot be used")
        return
    if not inside.any():
        yield Finding("dose", "warning", "the predicted dose is 0 Gy everywhere: it cannot be used")
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
