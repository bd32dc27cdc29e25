"""Generated patients as a planning system would export them: CT series, RT Structure Set and RT Dose."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from scipy import ndimage

from runner_openkbp.dicom import write
from runner_openkbp.dicom.contours import trace
from runner_openkbp.geometry import Geometry, synthetic
from runner_openkbp.rois import POSSIBLE, Array, Patient, unpack

OUTLINE = "External"
_STUDY = "1.2.840.10008.3.1.2.3.1"
"""Detached Study Management, the class by which a structure set names its study (PS3.3 C.8.8.5)."""


def write_dicom(folder: Path, key: str, patient: Patient, masks: Mapping[str, Array]) -> None:
    """Write a patient's CT, structures and, if there is one, dose as DICOM files.

    Contours follow the voxels' edges, so that reading them gives the same masks; so does the possible-dose mask, which
    is a structure too. The outline holds every voxel of the CT that is not 0.
    """
    from pydicom.uid import ExplicitVRLittleEndian

    folder.mkdir(parents=True, exist_ok=True)
    grid = synthetic(patient.voxel_mm)
    slices = [_slice(key, grid, patient.ct, place) for place in range(patient.ct.shape[2])]
    grid = Geometry(grid.origin, grid.axes, slices[0])
    body = ndimage.binary_fill_holes(patient.ct > 0) | unpack(patient.masks, POSSIBLE)
    structures = _structures(key, grid, slices, {OUTLINE: body, **masks})
    files = {f"ct_{number:03d}.dcm": dataset for number, dataset in enumerate(slices, 1)} | {"rtstruct.dcm": structures}
    for name, dataset in files.items():
        dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
        dataset.save_as(folder / name, enforce_file_format=True)
    if patient.dose is not None:
        write.write_dose(patient.dose, grid, key, folder / "rtdose.dcm")


def _dataset(kind: str, modality: str, key: str, *of: str) -> Any:
    from pydicom.dataset import Dataset, FileMetaDataset

    made = Dataset()
    made.file_meta = FileMetaDataset()
    made.SpecificCharacterSet = "ISO_IR 192"
    made.SOPClassUID = made.file_meta.MediaStorageSOPClassUID = kind
    made.SOPInstanceUID = made.file_meta.MediaStorageSOPInstanceUID = write.uid(modality, key, *of)
    made.StudyInstanceUID = write.uid("phantom study", key)
    made.SeriesInstanceUID, made.Modality = write.uid("phantom", modality, key), modality
    made.PatientID = made.PatientName = key
    made.PatientBirthDate = made.PatientSex = made.StudyDate = made.StudyTime = ""
    made.StudyID = made.AccessionNumber = made.ReferringPhysicianName = made.OperatorsName = ""
    made.Manufacturer, made.SeriesNumber, made.InstanceNumber = "runner-openkbp", 1, 1
    made.FrameOfReferenceUID, made.PositionReferenceIndicator = write.uid("phantom frame", key), ""
    return made


def _slice(key: str, grid: Geometry, ct: Array, place: int) -> Any:
    from pydicom.uid import CTImageStorage

    made = _dataset(CTImageStorage, "CT", key, str(place))
    down, across, step = grid.axes.T
    made.ImageType, made.InstanceNumber = ["ORIGINAL", "PRIMARY", "AXIAL"], place + 1
    made.PatientPosition, made.KVP, made.AcquisitionNumber = "HFS", "", ""
    made.BodyPartExamined = "HEADNECK"
    made.ImagePositionPatient = [write.decimal(v) for v in grid.origin + place * step]
    made.ImageOrientationPatient = [write.decimal(v) for axis in (across, down) for v in axis / np.linalg.norm(axis)]
    made.PixelSpacing = [write.decimal(float(np.linalg.norm(v))) for v in (down, across)]
    made.SliceThickness = write.decimal(float(np.linalg.norm(step)))
    made.Rows, made.Columns = ct.shape[:2]
    made.SamplesPerPixel, made.PhotometricInterpretation = 1, "MONOCHROME2"
    made.BitsAllocated, made.BitsStored, made.HighBit, made.PixelRepresentation = 16, 16, 15, 1
    made.RescaleSlope, made.RescaleIntercept, made.RescaleType = "1", "-1024", "HU"
    made.PixelData = ct[:, :, place].astype("<i2").tobytes()
    return made


def _structures(key: str, grid: Geometry, slices: list[Any], masks: Mapping[str, Array]) -> Any:
    from pydicom.dataset import Dataset
    from pydicom.uid import RTStructureSetStorage

    made = _dataset(RTStructureSetStorage, "RTSTRUCT", key)
    made.StructureSetLabel, made.StructureSetDate, made.StructureSetTime = "phantom", "", ""
    series, study, frame = Dataset(), Dataset(), Dataset()
    series.SeriesInstanceUID = slices[0].SeriesInstanceUID
    series.ContourImageSequence = [write.reference(s.SOPClassUID, s.SOPInstanceUID) for s in slices]
    study.ReferencedSOPClassUID, study.ReferencedSOPInstanceUID = _STUDY, made.StudyInstanceUID
    study.RTReferencedSeriesSequence = [series]
    frame.FrameOfReferenceUID, frame.RTReferencedStudySequence = made.FrameOfReferenceUID, [study]
    made.ReferencedFrameOfReferenceSequence = [frame]
    made.StructureSetROISequence, made.ROIContourSequence, made.RTROIObservationsSequence = [], [], []
    for number, (name, mask) in enumerate(masks.items(), 1):
        roi, contours, observation = Dataset(), Dataset(), Dataset()
        roi.ROINumber, roi.ROIName, roi.ReferencedFrameOfReferenceUID = number, name, made.FrameOfReferenceUID
        roi.ROIGenerationAlgorithm = "AUTOMATIC"
        contours.ReferencedROINumber = number
        contours.ContourSequence = [
            _contour(ring, grid, place, slices[place])
            for place in np.flatnonzero(mask.any(axis=(0, 1))).tolist()
            for ring in trace(mask[:, :, place])
        ]
        observation.ObservationNumber = observation.ReferencedROINumber = number
        kind = {OUTLINE: "EXTERNAL"}.get(name, "PTV" if name.startswith("PTV") else "ORGAN")
        observation.RTROIInterpretedType, observation.ROIInterpreter = kind, ""
        made.StructureSetROISequence.append(roi)
        made.ROIContourSequence.append(contours)
        made.RTROIObservationsSequence.append(observation)
    return made


def _contour(ring: Array, grid: Geometry, place: int, image: Any) -> Any:
    from pydicom.dataelem import RawDataElement
    from pydicom.dataset import Dataset
    from pydicom.tag import Tag

    item = Dataset()
    points = grid.origin + np.column_stack([ring, np.full(len(ring), place)]) @ grid.axes.T
    item.ContourGeometricType, item.NumberOfContourPoints = "CLOSED_PLANAR", len(points)
    text = "\\".join(map(write.decimal, points.ravel().tolist())).encode()
    text += b" " * (len(text) % 2)
    item[0x30060050] = RawDataElement(Tag(0x30060050), "DS", len(text), text, 0, False, True)  # 20 times faster
    item.ContourImageSequence = [write.reference(image.SOPClassUID, image.SOPInstanceUID)]
    return item
