"""A patient from a planning system on the network's grid."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from runner_core import BadInput, Finding, Record

from runner_openkbp.dicom.contours import mask, read_contours
from runner_openkbp.dicom.coverage import RULE, ends_near, refuse_beyond
from runner_openkbp.dicom.dose import read_dose
from runner_openkbp.dicom.find import PLAN, STRUCTURES
from runner_openkbp.dicom.grid import average, interpolate, network_grid
from runner_openkbp.dicom.series import Volume, read_series
from runner_openkbp.geometry import Geometry
from runner_openkbp.rois import GRID, OARS, POSSIBLE, TARGETS, Array, Patient, bit

MARGIN_MM = 50.0
"""The possible-dose mask is the body from this far above the targets to as far below (the challenge's: 2 to 72 mm)."""
BODY_HU = -350.0
"""Without an outline, the body is the largest part of the CT above this."""
LOST = 0.01
"""Largest share of the targets that may lie outside the network's grid."""
_HIGHEST = np.iinfo(np.int16).max


@dataclass(frozen=True)
class Planning:
    """A patient on the network's grid, and the CT and the files that a dose for this patient refers to."""

    patient: Patient
    grid: Geometry
    ct_grid: Geometry
    ct_shape: tuple[int, int, int]
    structures: Any
    """The RT Structure Set (pydicom Dataset)."""
    numbers: Mapping[str, tuple[int, ...]]
    """Numbers of the structures that are a region."""
    plan: Any = None


def is_dicom(record: Record) -> bool:
    """Return whether a patient comes from DICOM files."""
    return STRUCTURES in record.files


def read_patient(record: Record) -> Patient:
    """Read a patient on the network's grid. Raises BadInput that names the file, the fault and the remedy."""
    return read_planning(record).patient


def read_planning(record: Record) -> Planning:
    """Read a patient with what a written dose refers to. Raises BadInput as `read_patient` does."""
    import pydicom

    if fault := record.values.get("fault"):
        raise BadInput(str(fault))
    volume = read_series([path for role, path in record.files.items() if role.split()[0] == "ct"])
    structures = pydicom.dcmread(record.files[STRUCTURES])
    numbers = {
        roi: tuple(map(int, str(text).split()))
        for roi, text in record.values.items()
        if roi in (*OARS, *TARGETS, POSSIBLE, "body")
    }
    masks, notes = _masks(record.files[STRUCTURES], structures, numbers, volume)
    patient, grid = _on_network_grid(record, volume, masks)
    notes = [Finding(RULE, "note", str(record.values["names"])), *notes, *_position(volume)]
    patient.notes = tuple(notes)
    plan = pydicom.dcmread(record.files[PLAN]) if PLAN in record.files else None
    shape: Any = volume.values.shape
    return Planning(patient, grid, volume.grid, shape, structures, numbers, plan)


def _masks(
    path: Path, structures: Any, numbers: Mapping[str, tuple[int, ...]], volume: Volume
) -> tuple[dict[str, Array], list[Finding]]:
    """Return the masks (bool) on the CT's grid: the regions, the body and, if it was drawn, the possible-dose mask."""
    items = {int(item.ReferencedROINumber): item for item in structures.get("ROIContourSequence") or ()}
    names = {int(item.ROINumber): str(item.ROIName) for item in structures.StructureSetROISequence}
    shape: Any = volume.values.shape
    found: dict[str, Array] = {}
    notes = []
    for roi, own in numbers.items():
        for number in own:
            contours = read_contours(items.get(number, {}), volume.grid, names[number])
            if contours.ignored:
                text = f"{names[number]}: {contours.ignored} contours are points or open lines and enclose nothing"
                notes.append(Finding(RULE, "note", text))
            notes += refuse_beyond(path, names[number], roi, contours, shape)
            filled = mask(contours, shape)
            if not filled.any():
                notes.append(Finding(RULE, "warning", f"{names[number]} ({roi}) has no contours, or they are empty"))
                continue
            found[roi] = found[roi] | filled if roi in found else filled
    if not any(roi in found for roi in TARGETS):
        raise BadInput(f"{path}: no target has contours: nothing shows where the dose should be")
    if "body" not in found:
        found["body"] = _body(volume.values)
        text = (
            f"no structure is the body's outline: the body is the largest part above {BODY_HU:g} HU. Look for the couch"
        )
        notes.append(Finding(RULE, "warning", text))
    notes += [*ends_near(found, volume.grid), *_separate(found)]
    return found, notes


def _separate(masks: dict[str, Array]) -> Iterator[Finding]:
    """Take each target out of those with a lower dose, as the challenge's are; say so."""
    higher: Array | None = None
    for roi in reversed(TARGETS):
        if roi not in masks:
            continue
        if higher is None:
            higher = masks[roi]
            continue
        if (shared := masks[roi] & higher).any():
            share = np.count_nonzero(shared) / np.count_nonzero(masks[roi])
            yield Finding(
                RULE, "note", f"{share:.0%} of {roi} also belong to a target with more dose, and are taken out"
            )
            masks[roi] = masks[roi] & ~shared
        higher = higher | masks[roi]


def _body(values: Array) -> Array:
    """Return the body of a CT in HU: the largest part, after a couch's thin boards are taken off, without holes."""
    from scipy import ndimage  # most commands read no DICOM, and importing it takes half a second

    tissue = ndimage.binary_opening(values > BODY_HU, np.ones((5, 5, 1), bool))
    labels, count = ndimage.label(tissue)
    if not count:
        raise BadInput("the CT shows no body, and no structure is its outline; draw one (data.names names it)")
    largest = labels == 1 + int(np.argmax(np.bincount(labels.ravel())[1:]))
    return np.stack([ndimage.binary_fill_holes(largest[:, :, k]) for k in range(values.shape[2])], axis=2)


def _on_network_grid(record: Record, volume: Volume, masks: Mapping[str, Array]) -> tuple[Patient, Geometry]:
    targets = np.logical_or.reduce([masks[roi] for roi in TARGETS if roi in masks])
    centre = np.array([float(along.mean()) for along in np.nonzero(targets)])
    source, shape = volume.grid, volume.values.shape
    grid = network_grid(source, shape, centre)
    stored = np.where(masks["body"], np.clip(volume.values + 1024, 0, _HIGHEST), 0)
    ct = np.rint(average(stored, source, grid, GRID)).astype(np.int16)
    bits = np.zeros(GRID, np.uint16)
    for roi, own in masks.items():
        if roi in (*OARS, *TARGETS, POSSIBLE):
            bits |= (average(own, source, grid, GRID) >= 0.5).astype(np.uint16) << bit(roi)
    if POSSIBLE not in masks:
        possible = (average(masks["body"], source, grid, GRID) >= 0.5) & _near(targets, source, grid)
        bits |= possible.astype(np.uint16) << bit(POSSIBLE)
    held = float(average(targets, source, grid, GRID).sum()) * float(np.prod(grid.voxel_mm / source.voxel_mm))
    if held < (1 - LOST) * np.count_nonzero(targets):
        size = " × ".join(f"{mm:.0f}" for mm in grid.voxel_mm * np.array(GRID))
        raise BadInput(
            f"{record.files[STRUCTURES]}: {1 - held / np.count_nonzero(targets):.0%} of the targets lie outside the "
            f"{size} mm that the network sees; it was made for targets in head and neck"
        )
    dose = None
    if "dose" in record.files:
        planned = read_dose(record.files["dose"], str(source.header.FrameOfReferenceUID))
        dose = interpolate(planned.values, planned.grid, grid, GRID)
    return Patient(ct, dose, bits, grid.voxel_mm), grid


def _near(targets: Array, source: Geometry, grid: Geometry) -> Array:
    """Return the slices of the network's grid near the targets, (1, 1, 128) bool."""
    heights = source.origin[2] + source.axes[2, 2] * np.flatnonzero(targets.any(axis=(0, 1)))
    own = grid.origin[2] + grid.axes[2, 2] * np.arange(GRID[2])
    return np.asarray((own >= heights.min() - MARGIN_MM) & (own <= heights.max() + MARGIN_MM))[None, None]


def _position(volume: Volume) -> Iterator[Finding]:
    if volume.position not in ("", "HFS", "FFS"):
        text = (
            f"the patient lay {volume.position}, not supine as the challenge's patients; images are turned to the front"
        )
        yield Finding(RULE, "warning", text)
