"""CT series: images in Hounsfield units with their place in the patient, in one orientation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from runner_core import BadInput

from runner_openkbp.geometry import SAME_MM, Geometry, hounsfield
from runner_openkbp.rois import Array

OFF_AXIS = 1e-3
"""Largest component of an image's directions beside the patient's axes: beyond it, the series is tilted."""
NEEDED = (
    *("SeriesInstanceUID", "StudyInstanceUID", "FrameOfReferenceUID", "SOPInstanceUID", "PixelData"),
    *("ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing", "Rows", "Columns"),
    *("RescaleSlope", "RescaleIntercept"),
)
_CANONICAL = np.array([[0.0, 1, 0], [1, 0, 0], [0, 0, -1]]).T
"""Directions of the array axes of a patient, as columns: to the back, to the left, to the feet (`rois.GRID`)."""
_AIR, _TISSUE = -500.0, 0.0
"""Every CT of a person has values (HU) below the first and above the second."""
_FINEST_MM, _COARSEST_MM = 0.1, 20.0
"""Widths of pixels."""


@dataclass(frozen=True)
class Volume:
    """Values on a grid whose axes go back, left and down; `turned` says how the patient lay if not supine."""

    values: Array
    grid: Geometry
    position: str = ""


def read_series(paths: Sequence[Path]) -> Volume:
    """Read the slices of one CT series, in HU (float32), in any of the 24 orientations along the patient's axes.

    Raises BadInput, with the file or folder and the remedy, for slices that are missing, doubled or uneven, for a
    tilted series, for slices of different sizes or frames of reference, and for values that are no HU.
    """
    import pydicom

    folder = paths[0].parent
    slices = []
    for path in paths:
        try:
            found = pydicom.dcmread(path)
        except (OSError, ValueError, EOFError, pydicom.errors.InvalidDicomError) as error:
            raise BadInput(f"{path}: cannot be read ({error}); export the series again") from error
        if missing := [name for name in NEEDED if found.get(name) is None]:
            raise BadInput(f"{path}: the slice has no {', '.join(missing)}; export the series again")
        slices.append(found)
    _refuse_mixed(folder, slices)
    across, down = directions(slices[0], str(folder))
    normal = np.cross(across, down)
    slices.sort(key=lambda s: float(np.dot(normal, s.ImagePositionPatient)))
    places = np.array([s.ImagePositionPatient for s in slices], float)
    step = _step(folder, slices, places, normal)
    spacing = [float(mm) for mm in slices[0].PixelSpacing]
    if not all(_FINEST_MM <= mm <= _COARSEST_MM for mm in spacing):
        raise BadInput(f"{folder}: PixelSpacing is {spacing}, which is no CT's in mm; export the series again")
    axes = np.stack([down * spacing[0], across * spacing[1], step], axis=1)
    values = np.stack([_image(s) for s in slices], axis=2)
    _refuse_other_units(folder, values, slices[0])
    grid, values = canonical(Geometry(places[0], axes, slices[0]), values)
    return Volume(values, grid, str(slices[0].get("PatientPosition", "") or ""))


def directions(header: Any, where: str) -> tuple[Array, Array]:
    """Return unit vectors along a row and down a column. Raises BadInput unless both lie along the patient's axes."""
    found = np.array(header.ImageOrientationPatient, float)
    if found.shape != (6,):
        raise BadInput(f"{where}: ImageOrientationPatient has {found.size} numbers instead of 6; export it again")
    across, down = np.rint(found[:3]), np.rint(found[3:])
    if (
        np.abs(found - np.concatenate([across, down])).max() > OFF_AXIS
        or abs(across @ down) > 0
        or across @ across != 1
    ):
        raise BadInput(
            f"{where}: the images are tilted against the patient's axes (ImageOrientationPatient {found.tolist()}); "
            "resample the series to an axial one in the planning system"
        )
    return across, down


def canonical(grid: Geometry, values: Array) -> tuple[Geometry, Array]:
    """Turn an array along the patient's axes into the orientation of `rois.GRID`: to the back, to the left, down."""
    cosines = _CANONICAL.T @ (grid.axes / grid.voxel_mm)  # [wanted axis, own axis]
    order = np.abs(cosines).argmax(axis=1)
    axes, origin = grid.axes[:, order], grid.origin.astype(float)
    values = np.transpose(values, order)
    for axis in range(3):
        if cosines[axis, order[axis]] < 0:
            origin = origin + axes[:, axis] * (values.shape[axis] - 1)
            axes = axes * np.where(np.arange(3) == axis, -1, 1)
            values = np.flip(values, axis)
    return Geometry(origin, axes, grid.header), np.ascontiguousarray(values)


def _refuse_mixed(folder: Path, slices: Sequence[Any]) -> None:
    for name, what in (
        ("FrameOfReferenceUID", "frames of reference"),
        ("ImageOrientationPatient", "orientations (a localizer?)"),
        ("PixelSpacing", "pixel sizes"),
        ("Rows", "numbers of rows"),
        ("Columns", "numbers of columns"),
    ):
        found = {str(s.get(name)) for s in slices}
        if len(found) > 1:
            raise BadInput(f"{folder}: the slices of one series have {len(found)} {what}; export one series again")


def _step(folder: Path, slices: Sequence[Any], places: Array, normal: Array) -> Array:
    """Return the step (mm) from slice to slice, or raise BadInput for missing, doubled, uneven or sheared slices."""
    if len(places) < 2:
        raise BadInput(f"{folder}: the series has {len(places)} slice; a plan needs all of them")
    heights = places @ normal
    gaps = np.diff(heights)
    usual = float(np.median(gaps))
    if (twice := np.flatnonzero(gaps < SAME_MM)).size:
        raise BadInput(f"{folder}: two slices lie at {heights[twice[0]]:g} mm; {_which(slices, int(twice[0]))}")
    if (uneven := np.flatnonzero(np.abs(gaps - usual) > SAME_MM)).size:
        first = int(uneven[0])
        lost = gaps[first] / usual
        why = "a slice is missing there" if abs(lost - round(lost)) < 0.01 and lost > 1.5 else "the spacing is uneven"
        raise BadInput(
            f"{folder}: from {heights[first]:g} to {heights[first + 1]:g} mm are {gaps[first]:g} mm, elsewhere "
            f"{usual:g} mm: {why}. Export all slices, or resample the series to even ones"
        )
    steps = np.diff(places, axis=0)
    if np.abs(steps - np.outer(gaps, normal)).max() > SAME_MM * 5:
        raise BadInput(
            f"{folder}: the slices are shifted against each other (a tilted gantry); resample the series in the "
            "planning system"
        )
    return normal * float(heights[-1] - heights[0]) / (len(places) - 1)


def _which(slices: Sequence[Any], first: int) -> str:
    """Return what to do with two slices at one place."""
    one, other = (s.get("AcquisitionNumber") for s in slices[first : first + 2])
    if one == other or one is None or other is None:
        return "take out the copy"
    return f"they are of acquisitions {one} and {other}: export the one that the plan was made on"


def _image(image: Any) -> Array:
    try:
        return hounsfield(image)
    except (AttributeError, NotImplementedError, RuntimeError, ValueError) as error:
        raise BadInput(
            f"{image.filename}: the image cannot be decoded ({str(error)[:200]}); export it again, uncompressed"
        ) from error


def _refuse_other_units(folder: Path, values: Array, header: Any) -> None:
    kind = str(header.get("RescaleType", "HU") or "HU")
    low, high = float(values.min()), float(values.max())
    if kind not in ("HU", "US", "HU_MOD") or low > _AIR or high < _TISSUE:
        raise BadInput(
            f"{folder}: values run from {low:g} to {high:g} (RescaleType {kind}), which is no CT of a person in "
            "Hounsfield units; export the CT that the plan was made on"
        )
