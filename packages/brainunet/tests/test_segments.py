"""Masks as DICOM SEG: each voxel lies where it lies in the NIfTI scan, read by highdicom and by pydicom alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from runner_brainunet import outputs, segments
from runner_brainunet.config import BrainPredictConfig
from runner_brainunet.outputs import BrainPredictOptions
from runner_core import BadInput, Record

pydicom = pytest.importorskip("pydicom")
hd = pytest.importorskip("highdicom")

SHAPE = (9, 16, 12)
"""Slices, rows, columns."""


def write_series(folder: Path, seed: int = 0, turn: float = 0.1, **changes: Any) -> tuple[np.ndarray, np.ndarray]:
    """Write an oblique MR series; return its voxels and the matrix from (slice, row, column) to mm in RAS."""
    from pydicom.dataset import Dataset, FileMetaDataset
    from pydicom.uid import ExplicitVRLittleEndian, MRImageStorage

    voxels = np.random.default_rng(seed).integers(0, 900, SHAPE).astype(np.uint16)
    across, down = np.array([np.cos(turn), np.sin(turn), 0]), np.array([0, 0, -1.0])
    normal = np.cross(across, down)
    folder.mkdir(parents=True)
    for number, plane in enumerate(voxels):
        one = Dataset()
        one.file_meta = FileMetaDataset()
        one.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
        one.SOPClassUID = one.file_meta.MediaStorageSOPClassUID = MRImageStorage
        one.SOPInstanceUID = one.file_meta.MediaStorageSOPInstanceUID = f"1.2.3.{seed}.{number + 1}"
        one.Modality, one.PatientID, one.PatientName = "MR", "p1", "Nobody"
        one.StudyInstanceUID, one.SeriesInstanceUID, one.FrameOfReferenceUID = "1.2.4", f"1.2.5.{seed}", "1.2.6"
        one.Rows, one.Columns = plane.shape
        one.ImageOrientationPatient = [float(v) for v in (*across, *down)]
        one.ImagePositionPatient = [float(v) for v in np.array([-30.0, 20, 40]) + 2.5 * number * normal]
        one.PixelSpacing, one.SliceThickness = [1.5, 1.25], 2.5
        one.SamplesPerPixel, one.PhotometricInterpretation, one.PixelRepresentation = 1, "MONOCHROME2", 0
        one.BitsAllocated = one.BitsStored = 16
        one.HighBit = 15
        one.PixelData = plane.tobytes()
        for name, value in changes.items():
            setattr(one, name, value(number) if callable(value) else value)
        one.save_as(folder / f"{(number * 5) % 9}.dcm", enforce_file_format=True)  # names do not tell the order
    (folder / "notes.txt").write_text("not DICOM")
    affine = np.eye(4)
    affine[:3] = np.stack([normal * 2.5, down * 1.5, across * 1.25, [-30.0, 20, 40]], axis=1)
    return voxels, np.diag([-1.0, -1, 1, 1]) @ affine


def as_scan(path: Path, voxels: np.ndarray, affine: np.ndarray, order: str) -> tuple[Record, nibabel.Nifti1Image]:
    """Write the voxels as NIfTI with axes in another order."""
    image = nibabel.Nifti1Image(voxels, affine)
    turned = nibabel.orientations.ornt_transform(
        nibabel.io_orientation(affine), nibabel.orientations.axcodes2ornt(order)
    )
    image = image.as_reoriented(turned)
    nibabel.save(image, path)
    return Record("s1", "s1", {"image": path}), nibabel.load(path)


def predicted(shape: tuple[int, ...]) -> np.ndarray:
    mask = np.random.default_rng(5).random(shape) < 0.3
    mask[:, :, 0] = False
    return mask


def places(mask: np.ndarray, affine: np.ndarray) -> set[tuple[float, ...]]:
    found = np.argwhere(mask) @ affine[:3, :3].T + affine[:3, 3]
    return {tuple(place) for place in np.round(found, 1) + 0.0}


@pytest.mark.parametrize("order", ["RAS", "LPS", "PIR", "SAL"])
def test_every_voxel_stays_in_its_place(order: str, tmp_path: Path) -> None:
    voxels, affine = write_series(tmp_path / "series")
    record, image = as_scan(tmp_path / "s1.nii.gz", voxels, affine, order)
    mask = predicted(image.shape)
    options = BrainPredictOptions(reference=tmp_path / "series")
    written = outputs.write(mask, record, tmp_path / "out", options, BrainPredictConfig(), lambda: mask)
    assert [path.name for path in written] == ["s1_brainmask.dcm", "s1_brainmask.nii.gz"]
    with pydicom.config.strict_reading():
        found = pydicom.dcmread(written[0])
        list(found.iterall())
    theirs = np.zeros((4, 4))
    frames = [frame.PlanePositionSequence[0].ImagePositionPatient for frame in found.PerFrameFunctionalGroupsSequence]
    shared = found.SharedFunctionalGroupsSequence[0]
    across, down = np.reshape(shared.PlaneOrientationSequence[0].ImageOrientationPatient, (2, 3)).astype(float)
    rows, columns = map(float, shared.PixelMeasuresSequence[0].PixelSpacing)
    lie: set[tuple[float, ...]] = set()
    for frame, corner in zip(found.pixel_array, frames, strict=True):
        theirs = np.eye(4)
        theirs[:3] = np.stack([np.zeros(3), down * rows, across * columns, np.array(corner, float)], axis=1)
        lie |= places(frame[None] > 0, np.diag([-1.0, -1, 1, 1]) @ theirs)
    assert lie == places(mask, image.affine)
    read = hd.seg.segread(written[0])
    volume = read.get_volume(combine_segments=True)
    assert places(volume.array > 0, np.diag([-1.0, -1, 1, 1]) @ volume.affine) == places(mask, image.affine)
    (segment,) = read.SegmentSequence
    assert segment.SegmentLabel == "Brain"
    assert segment.SegmentedPropertyTypeCodeSequence[0].CodeValue == "12738006"  # SNOMED CT: brain structure
    assert (read.PatientID, read.StudyInstanceUID, read.FrameOfReferenceUID) == ("p1", "1.2.4", "1.2.6")
    used = {item.ReferencedSOPInstanceUID for item in read.ReferencedSeriesSequence[0].ReferencedInstanceSequence}
    assert used <= {f"1.2.3.0.{number + 1}" for number in range(9)}


def test_equal_masks_get_equal_uids_and_an_empty_one_is_written(tmp_path: Path) -> None:
    voxels, affine = write_series(tmp_path / "series")
    masks = [predicted(SHAPE), predicted(SHAPE), ~predicted(SHAPE), np.zeros(SHAPE, bool)]
    paths = [
        segments.write(mask, voxels, affine, "s1", tmp_path / "series", tmp_path / f"{number}.dcm")
        for number, mask in enumerate(masks)
    ]
    uids = [pydicom.dcmread(path).SOPInstanceUID for path in paths]
    assert uids[0] == uids[1]
    assert len(set(uids)) == 3
    assert not pydicom.dcmread(paths[3]).pixel_array.any()


def test_other_series_are_refused(tmp_path: Path) -> None:
    voxels, affine = write_series(tmp_path / "series")
    write_series(tmp_path / "visit2", seed=1)
    write_series(tmp_path / "turned", turn=0.2)
    write_series(tmp_path / "gap", ImagePositionPatient=lambda number: [0, 2.5 * (number + (number > 4)), 0])
    write_series(tmp_path / "headless", PixelSpacing=None)
    write_series(tmp_path / "nowhere", ImagePositionPatient=[1, 2])
    write_series(tmp_path / "frames", NumberOfFrames=1)
    (tmp_path / "empty").mkdir()
    write_series(tmp_path / "mixed", SeriesInstanceUID=lambda number: f"1.{number % 2 + 1}")
    for name, said in {
        "visit2": r"does not show this scan \(correlation", "turned": "do not lie where the scan's do",
        "gap": "not evenly spaced", "frames": "many frames",
        "headless": "no PixelSpacing, or not all", "nowhere": "no ImagePositionPatient",
        "empty": "no DICOM image", "mixed": "holds 2 series",
    }.items():  # fmt: skip
        with pytest.raises(BadInput, match=f"{name}.*{said}"):
            segments.write(predicted(SHAPE), voxels, affine, "s1", tmp_path / name, tmp_path / "out.dcm")
    with pytest.raises(BadInput, match="do not lie"):
        segments.write(predicted(SHAPE)[1:], voxels[1:], affine, "s1", tmp_path / "series", tmp_path / "out.dcm")
    assert not (tmp_path / "out.dcm").exists()


def test_options_that_cannot_be_met(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match="no/such: there is no such folder"):
        outputs.refuse(BrainPredictOptions(reference=Path("no/such")))
    with pytest.raises(BadInput, match="leave out --bids"):
        outputs.refuse(BrainPredictOptions(reference=tmp_path, bids="x"))
    monkeypatch.setattr(segments, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match=r"uv pip install highdicom"):
        outputs.refuse(BrainPredictOptions(reference=tmp_path))
