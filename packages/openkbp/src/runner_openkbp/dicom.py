"""A dose as DICOM RT Dose (PS3.3 A.18.3, C.8.8.3)."""

from __future__ import annotations

import hashlib
import math
import uuid
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from runner_openkbp.geometry import SYNTHETIC, Geometry
from runner_openkbp.rois import Array

_MOST = np.iinfo(np.uint16).max
_PATIENT = ("PatientName", "PatientID", "PatientBirthDate", "PatientSex")
_STUDY = ("StudyInstanceUID", "StudyDate", "StudyTime", "ReferringPhysicianName", "StudyID", "AccessionNumber")


def write_dose(dose: Array, grid: Geometry, key: str, path: Path) -> None:
    """Write a dose (128, 128, 128) ≥ 0 in Gy: uint16 frames from the feet up, DoseGridScaling Gy a unit.

    Patient, study and frame of reference are the CT series' where the geometry is one's; else the patient is `key` and
    the file says that its geometry is synthetic. Equal content gives equal UIDs, and an equal file.
    """
    from pydicom.uid import ExplicitVRLittleEndian

    dataset = _dataset(dose, grid, key)
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset.save_as(path, enforce_file_format=True)


def _dataset(dose: Array, grid: Geometry, key: str) -> Any:
    from pydicom.dataset import Dataset, FileMetaDataset
    from pydicom.uid import RTDoseStorage, RTPlanStorage

    units, scaling = quantise(np.moveaxis(dose[:, :, ::-1], 2, 0))  # frames from the feet up: offsets grow
    content = hashlib.sha256(units.tobytes() + f"{scaling} {grid.affine.tolist()}".encode()).hexdigest()
    made = Dataset()
    made.file_meta = FileMetaDataset()
    _identify(made, grid, key)
    made.SOPClassUID = made.file_meta.MediaStorageSOPClassUID = RTDoseStorage
    made.SOPInstanceUID = made.file_meta.MediaStorageSOPInstanceUID = _uid("dose", key, content)
    made.SeriesInstanceUID = _uid("series", key, content)
    made.Modality = "RTDOSE"
    made.SeriesNumber, made.InstanceNumber, made.OperatorsName = 1, 1, ""
    made.Manufacturer, made.SoftwareVersions = "runner-openkbp", version("runner-openkbp")
    made.SeriesDescription = "predicted dose" if grid.header is not None else "predicted dose, synthetic geometry"
    made.DoseComment = "predicted by a network" if grid.header is not None else SYNTHETIC
    made.DoseUnits, made.DoseType, made.DoseSummationType = "GY", "PHYSICAL", "PLAN"
    made.TissueHeterogeneityCorrection = "IMAGE"
    plan = Dataset()  # required with PLAN; a predicted dose has none, so this one is not to be found anywhere
    plan.ReferencedSOPClassUID, plan.ReferencedSOPInstanceUID = RTPlanStorage, _uid("no plan", key, content)
    made.ReferencedRTPlanSequence = [plan]
    _place(made, grid)
    made.SamplesPerPixel, made.PhotometricInterpretation = 1, "MONOCHROME2"
    made.BitsAllocated, made.BitsStored, made.HighBit, made.PixelRepresentation = 16, 16, 15, 0
    made.NumberOfFrames, made.Rows, made.Columns = units.shape
    made.FrameIncrementPointer = 0x3004000C  # GridFrameOffsetVector
    made.DoseGridScaling = _decimal(scaling)
    made.PixelData = units.astype("<u2").tobytes()
    return made


def quantise(dose: Array) -> tuple[Array, float]:
    """Dose ≥ 0 (Gy) → (uint16, Gy a unit), the unit a number that a DICOM decimal string holds exactly."""
    step = float(dose.max(initial=0)) / _MOST or 1e-3
    digits = 8 - math.floor(math.log10(step))
    step = math.ceil(step * 10**digits) / 10**digits
    step = float(_decimal(step))
    units = np.rint(np.maximum(dose, 0) / np.float64(step))  # in float64: float32 is too coarse for the last unit
    return np.minimum(units, _MOST).astype(np.uint16), step


def _identify(made: Any, grid: Geometry, key: str) -> None:
    """Patient, study, frame of reference."""
    if grid.header is None:
        for name in (*_PATIENT, *_STUDY):
            setattr(made, name, "")
        made.SpecificCharacterSet = "ISO_IR 192"
        made.PatientID = made.PatientName = key[:64]
        made.StudyInstanceUID, made.FrameOfReferenceUID = _uid("study", key), _uid("frame of reference", key)
        made.PositionReferenceIndicator = ""
        return
    if "SpecificCharacterSet" in grid.header:
        made.SpecificCharacterSet = grid.header.SpecificCharacterSet
    for name in (*_PATIENT, *_STUDY, "FrameOfReferenceUID", "PositionReferenceIndicator"):
        setattr(made, name, grid.header.get(name, ""))


def _place(made: Any, grid: Geometry) -> None:
    """Where the frames lie: the first one is the lowest."""
    down, across, step = grid.axes.T
    lowest = grid.origin + 127 * step
    made.ImagePositionPatient = [_decimal(v) for v in lowest]
    made.ImageOrientationPatient = [_decimal(v) for axis in (across, down) for v in axis / np.linalg.norm(axis)]
    made.PixelSpacing = [_decimal(float(np.linalg.norm(v))) for v in (down, across)]
    thickness = float(np.linalg.norm(step))
    made.SliceThickness = _decimal(thickness)
    made.GridFrameOffsetVector = [_decimal(thickness * n) for n in range(128)]


def _decimal(value: float) -> str:
    """A DICOM decimal string: 16 characters at most.

    >>> _decimal(-162.7369999999), _decimal(0.0011326848)
    ('-162.737', '0.0011326848')
    """
    return f"{value + 0.0:.9g}"


def _uid(*of: str) -> str:
    """Made of a name-based UUID (PS3.5 B.2): the same for the same words, on any machine."""
    return f"2.25.{uuid.uuid5(uuid.NAMESPACE_OID, chr(0).join(('runner-openkbp', *of))).int}"
