"""Doses as DICOM RT Dose (PS3.3 A.18.3, C.8.8.3)."""

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
    """Write a dose (128, 128, 128) ≥ 0 in Gy as uint16 frames from the feet up, scaled by DoseGridScaling.

    If the geometry is a CT series', patient, study and frame of reference are taken from it. Otherwise the patient is
    `key`, and the file says that its geometry is synthetic. Equal content gives equal UIDs and an equal file.
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
    dataset = Dataset()
    dataset.file_meta = FileMetaDataset()
    _identify(dataset, grid, key)
    dataset.SOPClassUID = dataset.file_meta.MediaStorageSOPClassUID = RTDoseStorage
    dataset.SOPInstanceUID = dataset.file_meta.MediaStorageSOPInstanceUID = _uid("dose", key, content)
    dataset.SeriesInstanceUID = _uid("series", key, content)
    dataset.Modality = "RTDOSE"
    dataset.SeriesNumber, dataset.InstanceNumber, dataset.OperatorsName = 1, 1, ""
    dataset.Manufacturer, dataset.SoftwareVersions = "runner-openkbp", version("runner-openkbp")
    dataset.SeriesDescription = "predicted dose" if grid.header is not None else "predicted dose, synthetic geometry"
    dataset.DoseComment = "predicted by a network" if grid.header is not None else SYNTHETIC
    dataset.DoseUnits, dataset.DoseType, dataset.DoseSummationType = "GY", "PHYSICAL", "PLAN"
    dataset.TissueHeterogeneityCorrection = "IMAGE"
    plan = Dataset()  # a dose of type PLAN must name a plan; this plan does not exist
    plan.ReferencedSOPClassUID, plan.ReferencedSOPInstanceUID = RTPlanStorage, _uid("no plan", key, content)
    dataset.ReferencedRTPlanSequence = [plan]
    _place(dataset, grid)
    dataset.SamplesPerPixel, dataset.PhotometricInterpretation = 1, "MONOCHROME2"
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit, dataset.PixelRepresentation = 16, 16, 15, 0
    dataset.NumberOfFrames, dataset.Rows, dataset.Columns = units.shape
    dataset.FrameIncrementPointer = 0x3004000C  # GridFrameOffsetVector
    dataset.DoseGridScaling = _decimal(scaling)
    dataset.PixelData = units.astype("<u2").tobytes()
    return dataset


def quantise(dose: Array) -> tuple[Array, float]:
    """Return a dose ≥ 0 (Gy) as uint16, and the Gy per unit, a number that a DICOM decimal string holds exactly."""
    step = float(dose.max(initial=0)) / _MOST or 1e-3
    digits = 8 - math.floor(math.log10(step))
    step = math.ceil(step * 10**digits) / 10**digits
    step = float(_decimal(step))
    units = np.rint(np.maximum(dose, 0) / np.float64(step))  # in float64: float32 is too coarse for the last unit
    return np.minimum(units, _MOST).astype(np.uint16), step


def _identify(dataset: Any, grid: Geometry, key: str) -> None:
    """Set patient, study and frame of reference."""
    if grid.header is None:
        for name in (*_PATIENT, *_STUDY):
            setattr(dataset, name, "")
        dataset.SpecificCharacterSet = "ISO_IR 192"
        dataset.PatientID = dataset.PatientName = key[:64]
        dataset.StudyInstanceUID, dataset.FrameOfReferenceUID = _uid("study", key), _uid("frame of reference", key)
        dataset.PositionReferenceIndicator = ""
        return
    if "SpecificCharacterSet" in grid.header:
        dataset.SpecificCharacterSet = grid.header.SpecificCharacterSet
    for name in (*_PATIENT, *_STUDY, "FrameOfReferenceUID", "PositionReferenceIndicator"):
        setattr(dataset, name, grid.header.get(name, ""))


def _place(dataset: Any, grid: Geometry) -> None:
    """Set the position of the frames; the first one is the lowest."""
    down, across, step = grid.axes.T
    lowest = grid.origin + 127 * step
    dataset.ImagePositionPatient = [_decimal(v) for v in lowest]
    dataset.ImageOrientationPatient = [_decimal(v) for axis in (across, down) for v in axis / np.linalg.norm(axis)]
    dataset.PixelSpacing = [_decimal(float(np.linalg.norm(v))) for v in (down, across)]
    thickness = float(np.linalg.norm(step))
    dataset.SliceThickness = _decimal(thickness)
    dataset.GridFrameOffsetVector = [_decimal(thickness * n) for n in range(128)]


def _decimal(value: float) -> str:
    """Return a DICOM decimal string of 16 characters at most.

    >>> _decimal(-162.7369999999), _decimal(0.0011326848)
    ('-162.737', '0.0011326848')
    """
    return f"{value + 0.0:.9g}"


def _uid(*of: str) -> str:
    """Return a UID made of a name-based UUID (PS3.5 B.2): equal words give equal UIDs on any machine."""
    return f"2.25.{uuid.uuid5(uuid.NAMESPACE_OID, chr(0).join(('runner-openkbp', *of))).int}"
