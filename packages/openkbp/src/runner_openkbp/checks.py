"""Checks of `runner openkbp check`, for patients that can be read."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import numpy as np
from runner_core import Finding, Record, did_you_mean

from runner_openkbp.csvfiles import read_values
from runner_openkbp.dicom.read import is_dicom
from runner_openkbp.files import read_patient
from runner_openkbp.rois import GRID, POSSIBLE, ROIS, TARGETS, Array, Patient, unpack
from runner_openkbp.roles import FILES, REQUIRED
from runner_openkbp.scores import voxels_in_tenth_cc

VOXEL_MM = (1.0, 10.0)
"""Smallest and largest plausible side of a voxel. The challenge's are 2.3 … 5.5 mm."""
EMPTY_CT = 0.05
"""Share of the possible-dose mask that the CT file may lack (the challenge's lack up to 0.02)."""
EMPTY_DOSE = 0.3
"""Share of the possible-dose mask that an RT Dose may leave at 0: its grid seldom holds the whole body."""
OFF_PRESCRIPTION = 0.2
"""Largest plausible relative difference between a target's mean dose and its prescription (the challenge's: 0.1)."""
REGIONS = "regions"
"""The rule for ROIs without voxels, or with too few."""
_SIDES = (
    ("RightParotid", "LeftParotid", 1, "left and right look exchanged"),
    ("Brainstem", "SpinalCord", 2, "head and feet look exchanged"),
    ("Mandible", "SpinalCord", 0, "front and back look exchanged"),
)
"""(ROI with the smaller index, the other ROI, axis, meaning of the opposite order)"""


def findings(record: Record, patient: Patient | None = None) -> Iterator[Finding]:
    """Yield warnings about one patient, which is read from `record` if `patient` is None.

    Raises BadInput if a file cannot be read.
    """
    patient = patient or read_patient(record)
    masks = {roi: unpack(patient.masks, roi) for roi in ROIS if roi in record.files or roi in record.values}
    possible = unpack(patient.masks, POSSIBLE)
    yield from patient.notes
    yield from _files(record)
    yield from _voxels(patient)
    yield from _regions(masks, patient.voxel_mm)
    yield from _targets(masks, possible)
    yield from _sides(masks)
    yield from _ct(patient, possible)
    if patient.dose is not None:
        yield from _dose(record, patient.dose, possible)
        yield from _prescription(masks, patient.dose)


def _files(record: Record) -> Iterator[Finding]:
    if record.files["ct"].name != REQUIRED["ct"]:  # a table or a pattern chose among the files
        return
    known = {*FILES.values(), *(path.name for path in record.files.values())}
    for path in sorted(Path(record.files["ct"]).parent.glob("*.csv*")):
        if path.name not in known and path.name.removesuffix(".gz") not in known:
            yield _warning(
                "files", f"{path.name} is not one of the challenge's files and is not read{_meant(path.name, known)}"
            )


def _meant(name: str, known: Collection[str]) -> str:
    """Return a hint at the name that was probably meant.

    >>> _meant("ptv70.csv", ["PTV56.csv", "PTV70.csv"]), _meant("Larinx.csv", ["Larynx.csv"])
    ("; did you mean 'PTV70.csv'?", "; did you mean 'Larynx.csv'?")
    """
    same = [other for other in known if other.lower() == name.lower()]
    return did_you_mean(same[0] if same else name, known)


def _voxels(patient: Patient) -> Iterator[Finding]:
    low, high = VOXEL_MM
    if patient.voxel_mm.min() < low or patient.voxel_mm.max() > high:
        shown = " × ".join(f"{mm:g}" for mm in patient.voxel_mm)
        yield _warning("voxels", f"voxels of {shown} mm; are the numbers in voxel_dimensions.csv millimetres?")


def _regions(masks: Mapping[str, Array], voxel_mm: Array) -> Iterator[Finding]:
    least = voxels_in_tenth_cc(voxel_mm)
    for name, mask in masks.items():
        count = np.count_nonzero(mask)
        if not count:
            yield Finding(REGIONS, "note", f"{name}.csv holds no voxel, so the region counts as missing")
        elif count < least:
            yield _warning(REGIONS, f"{name} has {count} voxels, fewer than the {least} in 0.1 cm³ (D0.1cc)")


def _targets(masks: Mapping[str, Array], possible: Array) -> Iterator[Finding]:
    """Warn of missing targets, targets outside the possible-dose mask, and targets that overlap.

    Organs may reach beyond the mask (brainstem or cord does in most of the challenge's patients), targets do not.
    """
    targets = [name for name in TARGETS if name in masks and masks[name].any()]
    if not targets:
        yield _warning("targets", "there is no target (PTV56, PTV63, PTV70): nothing shows where the dose should be")
    elif "PTV70" not in targets:
        yield _warning("targets", "PTV70 is missing, which every patient of the challenge has")
    for name in targets:
        if outside := np.count_nonzero(masks[name] & ~possible):
            yield _warning(
                "targets",
                f"{outside} of {name}'s {np.count_nonzero(masks[name])} voxels lie outside the possible-dose mask, "
                "where the predicted dose is 0",
            )
    for number, first in enumerate(targets):
        for second in targets[number + 1 :]:
            if shared := np.count_nonzero(masks[first] & masks[second]):
                yield _warning(
                    "targets", f"{first} and {second} share {shared} voxels; the challenge's targets do not overlap"
                )


def _sides(masks: Mapping[str, Array]) -> Iterator[Finding]:
    centres = {name: np.array([a.mean() for a in np.nonzero(m)]) for name, m in masks.items() if m.any()}
    for first, second, axis, meaning in _SIDES:
        if first in centres and second in centres and centres[first][axis] > centres[second][axis]:
            yield _warning(
                "sides",
                f"{meaning}: along axis {axis} {first} lies at {centres[first][axis]:.0f}, {second} at "
                f"{centres[second][axis]:.0f}; in the challenge it is the other way round",
            )


def _ct(patient: Patient, possible: Array) -> Iterator[Finding]:
    if patient.ct.min() < 0:
        yield _warning(
            "ct",
            f"ct.csv has values down to {patient.ct.min()}; the challenge stores HU + 1024, never below 0, and voxels "
            "that are not in the file are read as 0 (if these are HU, add 1024)",
        )
    empty = np.count_nonzero(possible & (patient.ct == 0)) / np.count_nonzero(possible)
    if empty > EMPTY_CT:
        yield _warning("ct", f"ct.csv has nothing in {empty:.0%} of the possible-dose mask; was it cut off?")


def _dose(record: Record, dose: Array, possible: Array) -> Iterator[Finding]:
    outside = dose * ~possible
    if count := np.count_nonzero(outside):
        yield _warning(
            "dose",
            f"{count} voxels outside the possible-dose mask have a dose, up to {outside.max():.1f} Gy; the network's "
            "dose is set to 0 there, so they count as errors",
        )
    if dose[possible].all():  # every voxel has a line, so the file need not be read again
        return
    if is_dicom(record):
        if (share := float((dose[possible] == 0).mean())) > EMPTY_DOSE:
            yield _warning(
                "dose", f"the RT Dose has nothing in {share:.0%} of the possible-dose mask; export its whole grid"
            )
        return
    listed = np.zeros(GRID, bool)
    listed.reshape(-1)[read_values(record.files["dose"])[0]] = True
    if lacking := np.count_nonzero(possible & ~listed):
        share = lacking / np.count_nonzero(possible)
        yield _warning(
            "dose",
            f"dose.csv has no line for {lacking} voxels ({share:.0%}) of the possible-dose mask, and they are read as "
            "0 Gy; was it cut off?",
        )


def _prescription(masks: Mapping[str, Array], dose: Array) -> Iterator[Finding]:
    for name in TARGETS:
        if name not in masks or not masks[name].any():
            continue
        prescribed, mean = float(name.removeprefix("PTV")), float(dose[masks[name]].mean())
        if abs(mean / prescribed - 1) > OFF_PRESCRIPTION:
            yield _warning(
                "prescription",
                f"the mean dose in {name} is {mean:.1f} Gy, {prescribed:g} were prescribed; do dose and masks belong "
                "to one plan?",
            )


def _warning(rule: str, message: str) -> Finding:
    return Finding(rule, "warning", message)
