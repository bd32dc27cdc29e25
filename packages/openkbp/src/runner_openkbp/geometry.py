"""Position of the challenge's grid in a patient, read from a DICOM CT series or made up.

Coordinates are DICOM's: millimetres towards the patient's left (x), back (y) and head (z).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from runner_core import BadInput

from runner_openkbp.rois import GRID, Array

SYNTHETIC = "geometry synthetic: the challenge's grid, centred on 0"
SAME_MM = 0.02
"""Voxel sizes and slice positions may differ by this much (mm), because files round them."""
SAME_CT = 0.9
"""Two copies of one CT correlate at least this much, even if one was clipped or offset."""


@dataclass(frozen=True)
class Geometry:
    """A grid's position: `origin`, the centre of voxel [0, 0, 0] (mm), and `axes`.

    The columns of `axes` (3, 3) are the step (mm) of each array axis.
    """

    origin: Array
    axes: Array
    header: Any = None
    """A slice of the CT series (pydicom Dataset without pixels); None if the geometry is synthetic."""

    @property
    def voxel_mm(self) -> Array:
        return np.linalg.norm(self.axes, axis=0)

    @property
    def affine(self) -> Array:
        """Return the matrix (4, 4) from voxels to mm towards right, front and head, as NIfTI has it."""
        affine = np.eye(4)
        affine[:3, :3], affine[:3, 3] = self.axes, self.origin
        return np.diag([-1.0, -1.0, 1.0, 1.0]) @ affine


def synthetic(voxel_mm: Array) -> Geometry:
    """Return the grid of a supine patient with its centre at 0.

    The axes are those measured on the challenge's patients (`rois.GRID`): rows go backwards, columns to the patient's
    left, slices down.
    """
    steps = np.diag(voxel_mm)
    axes = np.stack([steps[:, 0][[1, 0, 2]], steps[:, 1][[1, 0, 2]], -steps[:, 2]], axis=1)
    return Geometry(-axes @ (np.array(GRID) - 1) / 2, axes)


def of_series(folder: Path, voxel_mm: Array, ct: Array) -> Geometry:
    """Return the geometry of the axial CT series in `folder` if it is this patient's grid.

    Raises BadInput if there is no CT series or more than one, if the grid or voxel size differs, if the grid is tilted,
    if slices are missing, or if the images show another patient.

    Args:
        folder: the folder of the series.
        voxel_mm: (3,), the patient's voxel size.
        ct: (128, 128, 128), the patient's CT.
    """
    slices = _read_series(folder)
    across, down = _directions(folder, slices[0])
    slices.sort(key=lambda s: -float(s.ImagePositionPatient[2]))  # as the challenge has them, from the head down
    shape = (int(slices[0].Rows), int(slices[0].Columns), len(slices))
    if shape != GRID:
        raise BadInput(
            f"{folder}: the series has {shape[0]} × {shape[1]} × {shape[2]} voxels, not the challenge's "
            "128 × 128 × 128; resample it to the patient's grid"
        )
    spacing = [float(mm) for mm in slices[0].PixelSpacing]
    places = np.array([s.ImagePositionPatient for s in slices], float)
    steps = np.diff(places, axis=0)
    if np.abs(steps - np.median(steps, axis=0)).max() > SAME_MM:
        raise BadInput(f"{folder}: its slices are not evenly spaced, or shifted; one may be missing or doubled")
    axes = np.stack([down * spacing[0], across * spacing[1], steps.mean(axis=0)], axis=1)
    geometry = Geometry(places[0], axes, slices[0])
    if np.abs(geometry.voxel_mm - voxel_mm).max() > SAME_MM:
        raise BadInput(
            f"{folder}: the series has voxels of {_mm(geometry.voxel_mm)}, the patient's are {_mm(voxel_mm)} "
            "(voxel_dimensions.csv); resample it to the patient's grid"
        )
    _refuse_other_patient(folder, slices, ct)
    return geometry


def _read_series(folder: Path) -> list[Any]:
    """Read the slices (pydicom Datasets) of the only CT series in a folder."""
    import pydicom
    from pydicom.errors import InvalidDicomError

    if not folder.is_dir():
        raise BadInput(f"{folder}: there is no such folder; --reference names the folder of a DICOM CT series")
    series: dict[str, list[Any]] = {}
    for path in sorted(p for p in folder.iterdir() if p.is_file()):
        try:
            found = pydicom.dcmread(path)
        except (InvalidDicomError, OSError):
            continue
        if found.get("Modality") == "CT":
            missing = [n for n in _NEEDED if n not in found]
            if missing:
                raise BadInput(f"{path}: the slice has no {', '.join(missing)}; export the series again")
            series.setdefault(found.SeriesInstanceUID, []).append(found)
    if len(series) != 1:
        count = f"{len(series)} CT series" if series else "no DICOM CT series"
        raise BadInput(f"{folder}: holds {count}; --reference names the folder of one (all its slices, no sub-folders)")
    return next(iter(series.values()))


_NEEDED = (
    *("SeriesInstanceUID", "StudyInstanceUID", "FrameOfReferenceUID"),
    *("ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing", "Rows", "Columns", "PixelData"),
)


def _directions(folder: Path, header: Any) -> tuple[Array, Array]:
    """Return unit vectors along a row and down a column: (1, 0, 0), (0, 1, 0), or both turned if prone."""
    found = np.array(header.ImageOrientationPatient, float)
    for sign in (1.0, -1.0):
        wanted = sign * np.array([1.0, 0, 0, 0, 1, 0])
        if np.abs(found - wanted).max() < 1e-3:
            return wanted[:3], wanted[3:]
    raise BadInput(f"{folder}: the series is not axial (ImageOrientationPatient {found.tolist()}); give an axial one")


def _refuse_other_patient(folder: Path, slices: list[Any], ct: Array) -> None:
    """Raise BadInput unless the series shows the patient's CT.

    The pixels decide, row by row and column by column as the images have them. The headers do not, because they cannot
    tell one person's series from another's.
    """
    try:
        images = np.stack([hounsfield(s) for s in slices], axis=2) + 1024
    except (AttributeError, NotImplementedError, RuntimeError, ValueError) as error:
        raise BadInput(
            f"{folder}: its images cannot be read, so nothing shows whose they are ({str(error)[:200]}); "
            "export the series uncompressed"
        ) from error
    inside = ct > 0
    pair = np.stack([np.clip(volume[inside], 0, 3000).astype(np.float64) for volume in (images, ct)])
    for what, values in zip((f"{folder}: its images have", "the patient's ct.csv has"), pair, strict=True):
        if not values.size or values.min() == values.max():
            raise BadInput(f"{what} one value everywhere, so nothing shows whose series it is; export it again")
    correlation = float(np.asarray(np.corrcoef(pair))[0, 1])
    if not correlation >= SAME_CT:
        raise BadInput(
            f"{folder}: the series' images are not this patient's CT (correlation {correlation:.2f}): the dose would "
            "become another patient's. Predict each patient with its own --reference"
        )


def hounsfield(image: Any) -> Array:
    """Return the pixels of a CT slice in HU, (rows, columns) float32."""
    pixels = image.pixel_array.astype(np.float32)
    return np.asarray(pixels * float(image.get("RescaleSlope", 1)) + float(image.get("RescaleIntercept", 0)))


def _mm(voxel: Array) -> str:
    return " × ".join(f"{mm:.3f}" for mm in voxel) + " mm"
