"""Masks as DICOM Segmentation (PS3.3 A.51) of the series that a scan was converted from, by highdicom.

The NIfTI scan and its series hold the same voxels in another order: the mask goes back into the order of the series,
and no voxel is interpolated.
"""

from __future__ import annotations

import hashlib
import uuid
import warnings
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from runner_core import Array, BadInput, whole_file

_SAME = 0.05
"""Part of a voxel by which a corner of the scan may lie beside its place in the series: files have rounded numbers."""
_SAME_SCAN = 0.9
"""A scan and its series correlate at least this much, even if one was corrected or clipped."""
_STEP = 4
"""Every fourth voxel along each axis is compared."""
_NEEDED = {
    "SeriesInstanceUID": 1,
    "StudyInstanceUID": 1,
    "FrameOfReferenceUID": 1,
    "SOPInstanceUID": 1,
    "Rows": 1,
    "Columns": 1,
    "ImagePositionPatient": 3,
    "ImageOrientationPatient": 6,
    "PixelSpacing": 2,
}
"""What places a slice, and how many values it has."""
_MAY_BE_EMPTY = ("PatientID", "PatientName", "PatientBirthDate", "PatientSex", "StudyID", "StudyDate", "StudyTime",
                 "AccessionNumber", "ReferringPhysicianName")  # fmt: skip
"""What the standard wants in each file, be it empty; anonymised files often lack it."""


def refuse_unusable(series: Path) -> None:
    """Raise BadInput if nothing can be written: highdicom is not installed, or there is no such folder."""
    if find_spec("highdicom") is None:
        raise BadInput(
            "--reference writes DICOM by the package highdicom, which is not installed: uv pip install highdicom"
        )
    if not series.is_dir():
        raise BadInput(f"{series}: there is no such folder; --reference names the DICOM series of the scan")


def write(mask: Array, scan: Array, affine: Array, key: str, series: Path, path: Path) -> Path:
    """Write a mask as DICOM SEG, and return the file.

    Args:
        mask: The mask (x, y, z), bool, in the order of the NIfTI scan.
        scan: The scan (x, y, z).
        affine: The scan's (4, 4), from voxels to mm towards right, front and head.
        key: The record's key.
        series: Folder of the DICOM series that the scan was converted from.
        path: The file to write.

    Raises:
        BadInput: The series cannot be read, is of another scan, or the file cannot be written.
    """
    slices = _read(series)
    order = _order(affine, mask.shape, slices, series)
    _refuse_other_scan(order(scan), slices, series)
    try:
        with warnings.catch_warnings(action="ignore"):  # about how the series writes the patient's name
            found = _segmentation(order(mask), slices, key)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadInput(
            f"{series}: DICOM SEG cannot refer to it ({str(error)[:200]}). Export the series again."
        ) from error
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as file:
            found.save_as(file)
    except OSError as error:
        raise BadInput(f"{path}: cannot be written ({error.strerror or error}).") from error
    return path


def _read(folder: Path) -> list[Any]:
    """Return the slices (pydicom Datasets) of the only series of images in a folder, along their normal."""
    import pydicom
    from pydicom.errors import InvalidDicomError

    found: dict[str, list[Any]] = {}
    for path in sorted(path for path in folder.iterdir() if path.is_file()):
        try:
            dataset = pydicom.dcmread(path)
        except (InvalidDicomError, OSError):
            continue
        if "NumberOfFrames" in dataset and "PixelData" in dataset:
            raise BadInput(f"{path}: an image of many frames; --reference takes a series with a file for each slice")
        if "PixelData" not in dataset:
            continue
        if wrong := [name for name, count in _NEEDED.items() if name not in dataset or count != dataset[name].VM]:
            raise BadInput(f"{path}: the slice has no {', '.join(wrong)}, or not all of it. Export the series again.")
        for name in _MAY_BE_EMPTY:
            if name not in dataset:
                setattr(dataset, name, None)
        found.setdefault(str(dataset.SeriesInstanceUID), []).append(dataset)
    if len(found) != 1:
        what = f"{len(found)} series" if found else "no DICOM image"
        raise BadInput(f"{folder}: holds {what}; --reference names the folder of one (all slices, no sub-folders)")
    (slices,) = found.values()
    if len(slices) < 2 or len({tuple(map(float, one.ImageOrientationPatient)) for one in slices}) > 1:
        raise BadInput(f"{folder}: its images are no stack of parallel slices; --reference needs one")
    normal = np.cross(*np.reshape(np.asarray(slices[0].ImageOrientationPatient, float), (2, 3)))
    return sorted(slices, key=lambda one: float(normal @ np.asarray(one.ImagePositionPatient, float)))


def _affine(slices: list[Any], folder: Path) -> Array:
    """Return the matrix (4, 4) from (slice, row, column) to mm towards right, front and head, as NIfTI has it."""
    first, places = slices[0], np.array([one.ImagePositionPatient for one in slices], float)
    steps = np.diff(places, axis=0)
    if np.abs(steps - np.median(steps, axis=0)).max() > _SAME * np.linalg.norm(steps, axis=1).max():
        raise BadInput(f"{folder}: its slices are not evenly spaced, or shifted; one may be missing or doubled")
    across, down = np.reshape(np.asarray(first.ImageOrientationPatient, float), (2, 3))
    between_rows, between_columns = map(float, first.PixelSpacing)
    found = np.eye(4)
    found[:3] = np.stack([steps.mean(0), down * between_rows, across * between_columns, places[0]], axis=1)
    return np.diag([-1.0, -1.0, 1.0, 1.0]) @ found


def _order(affine: Array, shape: tuple[int, ...], slices: list[Any], folder: Path) -> Any:
    """Return what brings an array (x, y, z) of the scan into the order (slice, row, column) of the series."""
    theirs = (len(slices), int(slices[0].Rows), int(slices[0].Columns))
    way = np.linalg.inv(affine) @ _affine(slices, folder)  # from the series' voxels to the scan's
    turn, size = np.rint(way[:3, :3]), np.array(theirs) - 1
    axes = np.abs(turn).argmax(0)
    fits = sorted(axes) == [0, 1, 2] and (np.abs(turn).sum(0) == 1).all() and tuple(np.array(shape)[axes]) == theirs
    start = np.where(turn.sum(1) < 0, np.array(shape) - 1, 0)  # where the series' first voxel must be in the scan
    if not fits or (np.abs(way[:3, :3] - turn) @ size + np.abs(way[:3, 3] - start)).max() > _SAME:
        raise BadInput(
            f"{folder}: the series' voxels do not lie where the scan's do ({' × '.join(map(str, theirs))} of them): is "
            "it the series that the scan was converted from, neither cropped nor resampled?"
        )
    backwards = [axis for axis in range(3) if turn[axes[axis], axis] < 0]
    return lambda values: np.flip(values.transpose(axes), tuple(backwards))


def _refuse_other_scan(scan: Array, slices: list[Any], folder: Path) -> None:
    """Raise BadInput unless the series shows the scan: equal grids are no sign, as two visits of one person have them.

    `scan` is in the order of the series.
    """
    try:
        images = np.stack([one.pixel_array[::_STEP, ::_STEP] for one in slices[::_STEP]]).astype(np.float64)
    except (AttributeError, NotImplementedError, RuntimeError, ValueError) as error:
        raise BadInput(
            f"{folder}: its images cannot be read, so nothing shows whose they are ({str(error)[:200]}). Export the "
            "series uncompressed."
        ) from error
    values = scan[::_STEP, ::_STEP, ::_STEP].astype(np.float64)
    alike = np.corrcoef(images.ravel(), values.ravel())[0, 1] if images.std() and values.std() else 0.0
    if not alike >= _SAME_SCAN:
        raise BadInput(
            f"{folder}: the series does not show this scan (correlation {alike:.2f}): the mask would become another "
            "scan's. Predict each scan with its own --reference."
        )


def _segmentation(mask: Array, slices: list[Any], key: str) -> Any:
    """Return the DICOM object; equal masks of equal series get equal UIDs."""
    from highdicom import AlgorithmIdentificationSequence
    from highdicom.seg import SegmentAlgorithmTypeValues, Segmentation, SegmentationTypeValues, SegmentDescription
    from pydicom.sr.codedict import codes

    own = version("runner-brainunet")
    brain = SegmentDescription(
        1, "Brain", codes.SCT.AnatomicalStructure, codes.SCT.Brain, SegmentAlgorithmTypeValues.AUTOMATIC,
        AlgorithmIdentificationSequence("runner-brainunet", codes.DCM.ArtificialIntelligence, own),
    )  # fmt: skip
    content = hashlib.sha256(np.packbits(mask).tobytes()).hexdigest()
    series = str(slices[0].SeriesInstanceUID)
    return Segmentation(
        slices, mask.astype(np.uint8), SegmentationTypeValues.BINARY, [brain],
        series_instance_uid=_uid("series", series, key), series_number=int(slices[0].get("SeriesNumber") or 0) + 1000,
        sop_instance_uid=_uid("instance", series, key, content), instance_number=1,
        manufacturer="runner", manufacturer_model_name="runner-brainunet", software_versions=own,
        device_serial_number="none", content_label="BRAIN", content_description="by a network; research only",
        omit_empty_frames=bool(mask.any()),
    )  # fmt: skip


def _uid(*of: str) -> str:
    """Return a UID made of a name-based UUID (PS3.5 B.2): equal words give equal UIDs on any machine."""
    return f"2.25.{uuid.uuid5(uuid.NAMESPACE_OID, chr(0).join(('runner-brainunet', *of))).int}"
