"""Doses as DICOM RT Dose (PS3.3 A.18.3, C.8.8.3, C.8.8.4)."""

from __future__ import annotations

import hashlib
import math
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from runner_openkbp.dvh import cumulative
from runner_openkbp.geometry import SYNTHETIC, Geometry
from runner_openkbp.rois import ROIS, Array, unpack

PREDICTED = "predicted by a network; research only"
BIN = 0.1
"""Width (Gy) of the histograms' bins."""

_MOST = np.iinfo(np.uint16).max
_PATIENT = ("PatientName", "PatientID", "PatientBirthDate", "PatientSex")
_STUDY = ("StudyInstanceUID", "StudyDate", "StudyTime", "ReferringPhysicianName", "StudyID", "AccessionNumber")


@dataclass(frozen=True)
class Refers:
    """The files of the patient that a dose refers to, beside its CT."""

    structures: Any
    """The RT Structure Set (pydicom Dataset)."""
    regions: Mapping[str, tuple[int, ...]]
    """Numbers of the structures by region, for the histograms."""
    masks: Array
    """(128, 128, 128) uint16, and `dose` on the same grid: the histograms are of what the network saw."""
    dose: Array
    voxel_mm: Array
    plan: Any = None


def write_dose(dose: Array, grid: Geometry, key: str, path: Path, refers: Refers | None = None) -> None:
    """Write a dose ≥ 0 in Gy as uint16 frames from the feet up, scaled by DoseGridScaling.

    The axes of `dose` and `grid` are those of `rois.GRID`, with any number of voxels. If the geometry is a CT series',
    patient, study and frame of reference are taken from it. Otherwise the patient is `key`, and the file says that its
    geometry is synthetic. Equal content gives equal UIDs and an equal file.
    """
    from pydicom.uid import ExplicitVRLittleEndian

    dataset = _dataset(dose, grid, key, refers)
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset.save_as(path, enforce_file_format=True)


def _dataset(dose: Array, grid: Geometry, key: str, refers: Refers | None) -> Any:
    from pydicom.dataset import Dataset, FileMetaDataset
    from pydicom.uid import RTDoseStorage

    units, scaling = quantise(np.moveaxis(dose[:, :, ::-1], 2, 0))  # frames from the feet up: offsets grow
    content = hashlib.sha256(units.tobytes() + f"{scaling} {grid.affine.tolist()}".encode()).hexdigest()
    dataset = Dataset()
    dataset.file_meta = FileMetaDataset()
    _identify(dataset, grid, key)
    dataset.SOPClassUID = dataset.file_meta.MediaStorageSOPClassUID = RTDoseStorage
    dataset.SOPInstanceUID = dataset.file_meta.MediaStorageSOPInstanceUID = uid("dose", key, content)
    dataset.SeriesInstanceUID = uid("series", key, content)
    dataset.Modality = "RTDOSE"
    dataset.SeriesNumber, dataset.InstanceNumber, dataset.OperatorsName = 1, 1, ""
    dataset.Manufacturer, dataset.SoftwareVersions = "runner-openkbp", version("runner-openkbp")
    dataset.ManufacturerModelName, dataset.DeviceSerialNumber = "runner-openkbp", "0"
    dataset.SeriesDescription = "predicted dose" if grid.header is not None else "predicted dose, synthetic geometry"
    dataset.DoseComment = PREDICTED
    if grid.header is None:
        dataset.ImageComments = f"{PREDICTED}; {SYNTHETIC}"
    dataset.DoseUnits, dataset.DoseType = "GY", "PHYSICAL"
    dataset.TissueHeterogeneityCorrection = "IMAGE"
    _refer(dataset, refers)
    _place(dataset, grid, dose.shape[2])
    dataset.SamplesPerPixel, dataset.PhotometricInterpretation = 1, "MONOCHROME2"
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit, dataset.PixelRepresentation = 16, 16, 15, 0
    dataset.NumberOfFrames, dataset.Rows, dataset.Columns = units.shape
    dataset.FrameIncrementPointer = 0x3004000C  # GridFrameOffsetVector
    dataset.DoseGridScaling = decimal(scaling)
    dataset.PixelData = units.astype("<u2").tobytes()
    return dataset


def _refer(dataset: Any, refers: Refers | None) -> None:
    """Name the plan and the structure set that exist. A dose without a plan says so: its type is PLAN_OVERVIEW."""
    from pydicom.dataset import Dataset
    from pydicom.uid import RTPlanStorage

    if refers is not None and refers.plan is not None:
        dataset.DoseSummationType = "PLAN"
        dataset.ReferencedRTPlanSequence = [reference(RTPlanStorage, refers.plan.SOPInstanceUID)]
    else:
        overview = Dataset()
        overview.PlanOverviewIndex, overview.RTPlanLabel, overview.TreatmentSite = 1, "no plan", ""
        overview.PrescriptionOverviewSequence = overview.TreatmentSiteCodeSequence = []
        if refers is not None:
            overview.ReferencedStructureSetSequence = _structure_set(refers)
        dataset.DoseSummationType = "PLAN_OVERVIEW"
        dataset.PlanOverviewSequence = [overview]
    if refers is None:
        return
    dataset.ReferencedStructureSetSequence = _structure_set(refers)
    dataset.DVHSequence = [
        _histogram(refers, roi, numbers)
        for roi, numbers in refers.regions.items()
        if roi in ROIS and unpack(refers.masks, roi).any()
    ]
    if not dataset.DVHSequence:
        del dataset.DVHSequence, dataset.ReferencedStructureSetSequence


def _structure_set(refers: Refers) -> list[Any]:
    from pydicom.uid import RTStructureSetStorage

    return [reference(RTStructureSetStorage, refers.structures.SOPInstanceUID)]


def reference(kind: str, instance: str) -> Any:
    """Return an item that refers to a stored instance."""
    from pydicom.dataset import Dataset

    item = Dataset()
    item.ReferencedSOPClassUID, item.ReferencedSOPInstanceUID = kind, instance
    return item


def _histogram(refers: Refers, roi: str, numbers: tuple[int, ...]) -> Any:
    """Return a cumulative histogram (bins of `BIN` Gy, cm³) of the structures that make a region."""
    from pydicom.dataset import Dataset

    values = refers.dose[unpack(refers.masks, roi)].astype(np.float64)
    bins = np.arange(0, values.max() + BIN, BIN)
    volumes = cumulative(values, bins) / 100 * len(values) * float(np.prod(refers.voxel_mm)) / 1000
    item = Dataset()
    item.DVHType, item.DoseUnits, item.DoseType = "CUMULATIVE", "GY", "PHYSICAL"
    item.DVHDoseScaling, item.DVHVolumeUnits, item.DVHNumberOfBins = "1", "CM3", len(bins)
    item.DVHData = [text for volume in volumes for text in (decimal(BIN), decimal(volume))]
    item.DVHMinimumDose, item.DVHMaximumDose, item.DVHMeanDose = map(
        decimal, (values.min(), values.max(), values.mean())
    )
    item.DVHReferencedROISequence = []
    for number in numbers:
        roi_item = Dataset()
        roi_item.ReferencedROINumber, roi_item.DVHROIContributionType = number, "INCLUDED"
        item.DVHReferencedROISequence.append(roi_item)
    return item


def quantise(dose: Array) -> tuple[Array, float]:
    """Return a dose ≥ 0 (Gy) as uint16, and the Gy per unit, a number that a DICOM decimal string holds exactly."""
    step = float(dose.max(initial=0)) / _MOST or 1e-3
    digits = 8 - math.floor(math.log10(step))
    step = math.ceil(step * 10**digits) / 10**digits
    step = float(decimal(step))
    units = np.rint(np.maximum(dose, 0) / np.float64(step))  # in float64: float32 is too coarse for the last unit
    return np.minimum(units, _MOST).astype(np.uint16), step


def _identify(dataset: Any, grid: Geometry, key: str) -> None:
    """Set patient, study and frame of reference."""
    if grid.header is None:
        for name in (*_PATIENT, *_STUDY):
            setattr(dataset, name, "")
        dataset.SpecificCharacterSet = "ISO_IR 192"
        dataset.PatientID = dataset.PatientName = key[:64]
        dataset.StudyInstanceUID, dataset.FrameOfReferenceUID = uid("study", key), uid("frame of reference", key)
        dataset.PositionReferenceIndicator = ""
        return
    if "SpecificCharacterSet" in grid.header:
        dataset.SpecificCharacterSet = grid.header.SpecificCharacterSet
    for name in (*_PATIENT, *_STUDY, "FrameOfReferenceUID", "PositionReferenceIndicator"):
        setattr(dataset, name, grid.header.get(name, ""))


def _place(dataset: Any, grid: Geometry, frames: int) -> None:
    """Set the position of the frames; the first one is the lowest."""
    down, across, step = grid.axes.T
    lowest = grid.origin + (frames - 1) * step
    dataset.ImagePositionPatient = [decimal(v) for v in lowest]
    dataset.ImageOrientationPatient = [decimal(v) for axis in (across, down) for v in axis / np.linalg.norm(axis)]
    dataset.PixelSpacing = [decimal(float(np.linalg.norm(v))) for v in (down, across)]
    thickness = float(np.linalg.norm(step))
    dataset.SliceThickness = decimal(thickness)
    dataset.GridFrameOffsetVector = [decimal(thickness * n) for n in range(frames)]


def decimal(value: float) -> str:
    """Return a DICOM decimal string of 16 characters at most.

    >>> decimal(-162.7369999999), decimal(0.0011326848)
    ('-162.737', '0.0011326848')
    """
    return f"{value + 0.0:.9g}"


def uid(*of: str) -> str:
    """Return a UID made of a name-based UUID (PS3.5 B.2): equal words give equal UIDs on any machine."""
    return f"2.25.{uuid.uuid5(uuid.NAMESPACE_OID, chr(0).join(('runner-openkbp', *of))).int}"
