"""The written dose reads back as it was predicted, in its place."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pydicom
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from runner_core import BadInput, Record
from runner_core.testing import cropped
from runner_openkbp import csvfiles, outputs
from runner_openkbp.config import DosePredictOptions, demo
from runner_openkbp.dicom import write as dicom
from runner_openkbp.files import find_inputs, find_records, read_patient
from runner_openkbp.project import OpenKBP
from runner_openkbp.rois import GRID, POSSIBLE
from runner_openkbp.scores import dvh_metrics

HEAD, RIGHT = (60, 50, 58), (60, 44, 64)
"""Voxels near the head and near the patient's right: the axes go backwards, to the left and down."""


BODY = (slice(50, 70), slice(40, 72), slice(58, 70))
VOXEL_MM = np.array([3.9, 4.1, 2.5])


@pytest.fixture
def boxed() -> Callable[..., Any]:
    """boxed(value) → (128, 128, 128) float32, the value (or an array that fits) in the body and 0 outside."""

    def make(value: Any, where: tuple[slice, ...] = BODY) -> Any:
        volume = np.zeros(GRID, np.float32)
        volume[where] = value
        return volume

    return make


@pytest.fixture
def write_patient(tmp_path: Path, boxed: Any) -> Callable[..., Record]:
    """write_patient(key, dose=True) → the record of a patient with targets, cord and parotid, in tmp_path/patients."""

    def write(key: str = "pt_7", dose: bool = True) -> Record:
        rng = np.random.default_rng(sum(key.encode()))
        folder = tmp_path / "patients" / key
        folder.mkdir(parents=True)
        shape = tuple(s.stop - s.start for s in BODY)
        csvfiles.write_values(folder / "ct.csv", boxed(1024 + rng.integers(-200, 300, shape)))
        masks = {
            POSSIBLE: BODY,
            "PTV70": (slice(52, 58), slice(45, 60), slice(60, 66)),
            "PTV56": (slice(58, 62), slice(45, 60), slice(60, 66)),
            "SpinalCord": (slice(66, 68), slice(54, 57), slice(58, 70)),
            "RightParotid": (slice(54, 60), slice(41, 44), slice(59, 62)),
        }
        for name, where in masks.items():
            csvfiles.write_indices(folder / f"{name}.csv", boxed(1, where) > 0)
        csvfiles.write_voxels(folder / "voxel_dimensions.csv", VOXEL_MM)
        if dose:
            csvfiles.write_values(folder / "dose.csv", boxed(rng.uniform(1, 70, shape).round(3)))
        (record,) = find_records(folder) if dose else find_inputs(folder)
        return record

    return write


@pytest.fixture
def write_series(tmp_path: Path) -> Callable[..., Path]:
    """write_series(ct) → folder of a DICOM CT series of (128, 128, 128) stored values (HU + 1024); keywords change
    attributes of every slice, `slices` says which ones are written."""

    def write(ct: Any, name: str = "series", slices: Any = range(128), **changed: Any) -> Path:
        from pydicom.dataset import Dataset, FileMetaDataset
        from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        uids = {n: generate_uid() for n in ("StudyInstanceUID", "SeriesInstanceUID", "FrameOfReferenceUID")}
        for k in slices:
            made = Dataset()
            made.file_meta = FileMetaDataset()
            made.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
            made.SOPClassUID = made.file_meta.MediaStorageSOPClassUID = CTImageStorage
            made.SOPInstanceUID = made.file_meta.MediaStorageSOPInstanceUID = generate_uid()
            made.Modality, made.PatientName, made.PatientID = "CT", "Doe^Jo", "4711"
            made.ImagePositionPatient = [-250.0, -300.5, 80.0 - 2.5 * k]
            made.ImageOrientationPatient = [1, 0, 0, 0, 1, 0]
            made.PixelSpacing = [3.9, 4.1]  # between rows, between columns
            made.Rows, made.Columns, made.SamplesPerPixel, made.PhotometricInterpretation = 128, 128, 1, "MONOCHROME2"
            made.BitsAllocated, made.BitsStored, made.HighBit, made.PixelRepresentation = 16, 16, 15, 1
            made.RescaleSlope, made.RescaleIntercept = 1, -1024
            made.PixelData = np.asarray(ct[:, :, k]).astype("<i2").tobytes()
            for attribute, value in {**uids, **changed}.items():
                setattr(made, attribute, value)
            # in an order that says nothing
            made.save_as(folder / f"{(37 * k) % 128:03d}.dcm", enforce_file_format=True)
        return folder

    return write


@pytest.fixture
def dose(boxed: Any) -> Any:
    return boxed(np.random.default_rng(1).uniform(0.1, 75, (20, 32, 12)))


def write(record: Any, dose: Any, out: Path, **options: Any) -> dict[str, Path]:
    return {path.name: path for path in outputs.write(record, dose, out, DosePredictOptions(**options))}


def rtdose(path: Path) -> tuple[Any, Any]:
    """The file, and its dose with the axes of the challenge's grid."""
    found = pydicom.dcmread(path)
    return found, np.moveaxis(found.pixel_array * float(found.DoseGridScaling), 0, 2)[:, :, ::-1]


def place(found: Any, voxel: tuple[int, int, int]) -> Any:
    """Return the place (mm) that an RTDOSE file gives to a voxel of the challenge's grid, by the standard's
    equation."""
    row, column, k = voxel
    across, down = (
        np.array(found.ImageOrientationPatient[:3], float),
        np.array(found.ImageOrientationPatient[3:], float),
    )
    between_rows, between_columns = found.PixelSpacing
    normal = np.cross(across, down)
    offset = found.GridFrameOffsetVector[127 - k]
    return (
        np.array(found.ImagePositionPatient, float)
        + across * float(between_columns) * column
        + down * float(between_rows) * row
        + normal * float(offset)
    )


# ---------------------------------------------------------------- CSV


def test_the_csv_is_the_challenge_s_and_reads_back_exactly(write_patient: Any, dose: Any, tmp_path: Path) -> None:
    record = write_patient(dose=False)
    written = write(record, dose, tmp_path / "out")
    assert list(written) == ["pt_7.csv"]
    lines = written["pt_7.csv"].read_text().splitlines()
    assert lines[0] == ",data"
    assert len(lines) == 1 + np.count_nonzero(dose)
    index, values = csvfiles.read_values(written["pt_7.csv"])
    back = np.zeros(dose.size, np.float32)
    back[index] = values
    assert np.array_equal(back.reshape(GRID), dose)


def test_a_submission_needs_no_other_file_and_csv_can_be_left_out(
    write_patient: Any, dose: Any, tmp_path: Path
) -> None:
    record = write_patient()
    assert list(write(record, dose, tmp_path / "out", csv=False, nifti=True)) == ["pt_7_dose.nii.gz"]


# ---------------------------------------------------------------- NIfTI


def test_nifti_holds_the_dose_and_says_which_way_is_which(write_patient: Any, dose: Any, tmp_path: Path) -> None:
    path = write(write_patient(), dose, tmp_path / "out", nifti=True)["pt_7_dose.nii.gz"]
    image = nibabel.load(path)
    assert image.get_data_dtype() == np.float32
    assert np.array_equal(np.asarray(image.dataobj), dose)
    assert nibabel.aff2axcodes(image.affine) == ("P", "L", "I")
    assert np.allclose(image.header.get_zooms(), [3.9, 4.1, 2.5])
    assert np.allclose(image.affine @ [63.5, 63.5, 63.5, 1], [0, 0, 0, 1], atol=1e-3)
    assert int(image.header["sform_code"]) == 2
    assert np.allclose(image.get_qform(), image.get_sform(), atol=1e-4)
    assert b"synthetic" in bytes(image.header["descrip"])


# ---------------------------------------------------------------- DICOM


def test_rtdose_is_what_was_predicted(write_patient: Any, dose: Any, tmp_path: Path) -> None:
    path = write(write_patient(), dose, tmp_path / "out", dicom=True)["pt_7_dose.dcm"]
    found, back = rtdose(path)
    assert np.abs(back - dose).max() <= float(found.DoseGridScaling) / 2 * (1 + 1e-9)
    assert float(found.DoseGridScaling) < 75 / 65000
    assert found.SOPClassUID == pydicom.uid.RTDoseStorage
    assert (found.DoseUnits, found.DoseType, found.DoseSummationType) == ("GY", "PHYSICAL", "PLAN_OVERVIEW")
    assert found.FrameIncrementPointer == pydicom.tag.Tag("GridFrameOffsetVector")
    assert found.GridFrameOffsetVector[0] == 0
    assert np.allclose(np.diff(np.array(found.GridFrameOffsetVector, float)), 2.5)
    assert found.PatientID == "pt_7"
    assert "synthetic" in found.ImageComments
    assert "synthetic" in found.SeriesDescription


def test_rtdose_lies_as_the_patient_does(write_patient: Any, dose: Any, tmp_path: Path) -> None:
    """DICOM: x grows to the left, y backwards, z to the head; NIfTI says the same of the same voxels."""
    written = write(write_patient(), dose, tmp_path / "out", dicom=True, nifti=True)
    found, _ = rtdose(written["pt_7_dose.dcm"])
    middle = place(found, (60, 50, 64))
    assert np.allclose(place(found, HEAD) - middle, [0, 0, 15])
    assert np.allclose(place(found, RIGHT) - middle, [-24.6, 0, 0])
    assert np.allclose(place(found, (70, 50, 64)) - middle, [0, 39, 0])
    affine = nibabel.load(written["pt_7_dose.nii.gz"]).affine
    for voxel in (HEAD, RIGHT, (0, 0, 0), (127, 127, 127)):
        assert np.allclose((affine @ [*voxel, 1])[:3], place(found, voxel) * [-1, -1, 1], atol=1e-3)


def test_equal_predictions_give_equal_files_and_others_other_uids(
    write_patient: Any, dose: Any, tmp_path: Path
) -> None:
    one, two = write_patient(), write_patient("pt_8")
    first = write(one, dose, tmp_path / "a", dicom=True)["pt_7_dose.dcm"]
    again = write(one, dose, tmp_path / "b", dicom=True)["pt_7_dose.dcm"]
    assert first.read_bytes() == again.read_bytes()
    found = rtdose(first)[0]
    changed = rtdose(write(one, dose / 2, tmp_path / "c", dicom=True)["pt_7_dose.dcm"])[0]
    other = rtdose(write(two, dose, tmp_path / "d", dicom=True)["pt_8_dose.dcm"])[0]
    assert len({d.SOPInstanceUID for d in (found, changed, other)}) == 3
    assert found.StudyInstanceUID == changed.StudyInstanceUID != other.StudyInstanceUID
    assert found.FrameOfReferenceUID == changed.FrameOfReferenceUID != other.FrameOfReferenceUID
    assert all(u.is_valid for u in (found.SOPInstanceUID, found.StudyInstanceUID, found.SeriesInstanceUID))


@given(arrays(np.float32, 20, elements=st.floats(0, 200, width=32)))
def test_units_are_as_near_as_can_be(values: Any) -> None:
    units, step = dicom.quantise(values)
    assert np.abs(units * step - values).max() <= step / 2 * (1 + 1e-9)
    assert step <= max(1e-3, float(values.max()) / 65535 * (1 + 1e-6))
    assert len(str(pydicom.valuerep.DSfloat(step))) <= 16


# ---------------------------------------------------------------- with the patient's own CT series


def test_a_reference_series_gives_place_patient_and_study(
    write_patient: Any, write_series: Any, dose: Any, tmp_path: Path
) -> None:
    record = write_patient()
    series = write_series(read_patient(record).ct)
    written = write(record, dose, tmp_path / "out", reference=series, nifti=True)
    assert list(written) == ["pt_7.csv", "pt_7_dose.nii.gz", "pt_7_dose.dcm"]
    found, back = rtdose(written["pt_7_dose.dcm"])
    image = pydicom.dcmread(series / "000.dcm")
    assert np.abs(back - dose).max() <= float(found.DoseGridScaling) / 2 * (1 + 1e-9)
    for name in ("PatientName", "PatientID", "StudyInstanceUID", "FrameOfReferenceUID"):
        assert found[name].value == image[name].value
    assert found.SeriesInstanceUID != image.SeriesInstanceUID
    assert "synthetic" not in str(found)
    assert np.allclose(place(found, (0, 0, 0)), [-250, -300.5, 80])
    assert np.allclose(place(found, (2, 3, 10)), [-250 + 3 * 4.1, -300.5 + 2 * 3.9, 80 - 25])
    header = nibabel.load(written["pt_7_dose.nii.gz"]).header
    assert int(header["sform_code"]) == 1
    assert b"synthetic" not in bytes(header["descrip"])


def test_a_prone_patient_s_dose_lies_on_its_images(
    write_patient: Any, write_series: Any, dose: Any, tmp_path: Path
) -> None:
    record = write_patient()
    series = write_series(read_patient(record).ct, ImageOrientationPatient=[-1, 0, 0, 0, -1, 0])
    found, _ = rtdose(write(record, dose, tmp_path / "out", reference=series)["pt_7_dose.dcm"])
    assert np.allclose(place(found, (2, 3, 10)), [-250 - 3 * 4.1, -300.5 - 2 * 3.9, 80 - 25])


def test_a_series_that_lies_about_its_orientation_is_refused(
    write_patient: Any, write_series: Any, dose: Any, tmp_path: Path
) -> None:
    """The images decide: those of a patient turned by 180 degrees are not in this patient's rows and columns."""
    record = write_patient()
    series = write_series(read_patient(record).ct[::-1, ::-1], ImageOrientationPatient=[-1, 0, 0, 0, -1, 0])
    with pytest.raises(BadInput, match="not this patient's CT"):
        write(record, dose, tmp_path / "out", reference=series)


@pytest.mark.parametrize("value", [0, -1024, 900])
def test_a_series_that_shows_nothing_is_refused(
    value: int, write_patient: Any, write_series: Any, dose: Any, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match="one value everywhere, so nothing shows whose series it is"):
        write(write_patient(), dose, tmp_path / "out", reference=write_series(np.full(GRID, value)))
    assert not (tmp_path / "out").exists()


def test_a_series_without_pixels_is_refused(write_patient: Any, write_series: Any, dose: Any, tmp_path: Path) -> None:
    record = write_patient()
    series = write_series(read_patient(record).ct)
    for change, said in (("cut", "its images cannot be read"), ("delete", "the slice has no PixelData")):
        image = pydicom.dcmread(series / "005.dcm")
        image.PixelData = image.PixelData[:100]
        if change == "delete":
            del image.PixelData
        image.save_as(series / "005.dcm")
        with pytest.raises(BadInput, match=said):
            write(record, dose, tmp_path / "out", reference=series)
    assert not (tmp_path / "out").exists()


def test_one_person_s_series_is_not_for_several_patients(write_patient: Any, write_series: Any, tmp_path: Path) -> None:
    """Named by one folder or by several, before anything is predicted."""
    record, _ = write_patient(), write_patient("pt_8")
    series = write_series(read_patient(record).ct)

    def project() -> OpenKBP:
        made = OpenKBP(demo())
        made.predict_options = DosePredictOptions(reference=series)
        return made

    def infer(arrays: Any) -> Any:
        raise AssertionError("predicted")

    with pytest.raises(BadInput, match="one person's CT series, and 2 patients are to be predicted"):
        project().inputs(tmp_path / "patients")
    one_by_one = project()
    (first,) = one_by_one.inputs(tmp_path / "patients/pt_7")
    assert list(one_by_one.inputs(tmp_path / "patients/pt_7"))
    with pytest.raises(BadInput, match="2 patients"):
        one_by_one.inputs(tmp_path / "patients/pt_8")
    with pytest.raises(BadInput, match="2 patients"):
        one_by_one.predict(cropped(one_by_one, first), infer)


def test_options_that_write_nothing_are_refused(write_patient: Any, tmp_path: Path) -> None:
    write_patient()
    project = OpenKBP(demo())
    project.predict_options = DosePredictOptions(csv=False)
    with pytest.raises(BadInput, match="--no-csv leaves nothing to write"):
        project.inputs(tmp_path / "patients")
    project.predict_options = DosePredictOptions(csv=False, figure=True)
    assert len(project.inputs(tmp_path / "patients")) == 1


@pytest.mark.parametrize(
    "slices, changed, said",
    [
        (
            range(128),
            {"PixelSpacing": [3.9, 3.9]},
            "voxels of 3.900 × 3.900 × 2.500 mm, the patient's are 3.900 × 4.100",
        ),
        (range(100), {}, "128 × 128 × 100 voxels, not the challenge's 128 × 128 × 128"),
        (range(128), {"Rows": 64, "PixelData": bytes(64 * 128 * 2)}, "64 × 128 × 128 voxels"),
        (range(128), {"ImageOrientationPatient": [0, 1, 0, 0, 0, -1]}, "not axial"),
        (range(128), {"Modality": "MR"}, "no DICOM CT series"),
        (range(0), {}, "no DICOM CT series"),
    ],
)
def test_an_unfit_series_is_refused_before_anything_is_written(
    slices: Any, changed: Any, said: str, write_patient: Any, write_series: Any, dose: Any, tmp_path: Path
) -> None:
    record = write_patient()
    series = write_series(read_patient(record).ct, slices=slices, **changed)
    with pytest.raises(BadInput, match=said) as refused:
        write(record, dose, tmp_path / "out", reference=series)
    assert str(series) in str(refused.value)
    assert not (tmp_path / "out").exists()


def test_series_that_are_mixed_gappy_missing_or_another_s_are_refused(
    write_patient: Any, write_series: Any, dose: Any, tmp_path: Path
) -> None:
    record, other = write_patient(), write_patient("pt_8")
    ct = read_patient(record).ct

    def refused(series: Path, said: str) -> None:
        with pytest.raises(BadInput, match=said):
            write(record, dose, tmp_path / "out", reference=series)

    refused(write_series(read_patient(other).ct, "other"), "not this patient's CT")
    write_series(ct, "two", slices=range(60))
    refused(write_series(ct, "two", slices=range(60, 128)), "2 CT series")
    gappy = write_series(ct, "gappy")
    moved = pydicom.dcmread(gappy / "000.dcm")
    moved.ImagePositionPatient = [0, 0, 79]
    moved.save_as(gappy / "000.dcm")
    refused(gappy, "evenly spaced")
    del moved.PixelSpacing
    moved.save_as(gappy / "000.dcm")
    refused(gappy, "000.dcm: the slice has no PixelSpacing")
    refused(tmp_path / "nowhere", "there is no such folder")


# ---------------------------------------------------------------- faults


def test_a_dose_that_is_not_finite_is_not_written(write_patient: Any, boxed: Any, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="pt_7: the predicted dose is NaN"):
        write(write_patient(), boxed(np.nan), tmp_path / "out")


def test_an_unwritable_folder_is_named(write_patient: Any, dose: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for options in ({}, {"csv": False, "nifti": True}, {"csv": False, "dicom": True}, {"csv": False, "figure": True}):
        with pytest.raises(BadInput, match=r"file/out/pt_7.*cannot be written"):
            write(write_patient(f"pt_7{len(options)}{list(options)[-1:]}"), dose, tmp_path / "file" / "out", **options)


def test_several_doses_give_the_spread_of_each_metric(write_patient: Any, dose: Any, tmp_path: Path) -> None:
    patient = read_patient(write_patient())
    files = outputs.write_members([dose, 1.5 * dose], patient.masks, patient.voxel_mm, tmp_path / "pt_7_disagreement")
    assert [file.name for file in files] == ["pt_7_disagreement_dvh.csv", "pt_7_disagreement_metrics.csv"]
    alone = dvh_metrics(dose, patient.masks, patient.voxel_mm)
    with files[1].open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows
    for row in rows:
        least = alone[row["roi"], row["metric"]]
        found = [float(row[column]) for column in ("mean_gy", "sd_gy", "lowest_gy", "highest_gy")]
        np.testing.assert_allclose(found, [1.25 * least, 0.5 * least / 2**0.5, least, 1.5 * least], atol=0.002)
