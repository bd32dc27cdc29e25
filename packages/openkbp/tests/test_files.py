"""Which folders are patients, what a patient's files become, and every fault named."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from runner_core import BadInput
from runner_openkbp.files import find_inputs, find_records, read_patient
from runner_openkbp.rois import GRID, MASKS, POSSIBLE, ROIS, pack_masks, unpack

Write = Callable[..., Path]
REAL = Path(os.environ.get("RUNNER_TEST_DATA", Path(__file__).resolve().parents[4] / "shared" / "data")) / "openkbp"


def replace_line(path: Path, number: int, line: str) -> None:
    lines = path.read_text().splitlines()
    lines[number - 1] = line
    path.write_text("\n".join(lines) + "\n")


# ---------------------------------------------------------------- finding


def test_the_challenges_layout(tmp_path: Path, write_boxes: Write) -> None:
    for name in ("train-pats/pt_10", "train-pats/pt_2", "validation-pats/pt_201", "test-pats/pt_241"):
        write_boxes(f"provided-data/{name}")
    for root in (tmp_path / "data", tmp_path / "data" / "provided-data"):
        found = [(r.key, r.group, r.split) for r in find_records(root)]
        assert sorted(found) == [
            ("pt_10", "pt_10", "train"),
            ("pt_2", "pt_2", "train"),
            ("pt_201", "pt_201", "validation"),
            ("pt_241", "pt_241", "test"),
        ]


def test_patients_are_in_natural_order(tmp_path: Path, write_boxes: Write) -> None:
    for number in (10, 9, 2):
        write_boxes(f"pt_{number}")
    assert [r.key for r in find_records(tmp_path / "data")] == ["pt_2", "pt_9", "pt_10"]


def test_one_patients_own_folder(write_boxes: Write) -> None:
    (record,) = find_records(write_boxes("clinic/Müller 7"))
    assert (record.key, record.group, record.split) == ("Müller 7", "Müller 7", None)
    assert record.files["PTV70"].name == "PTV70.csv"
    assert "Larynx" not in record.files


def test_two_folders_of_one_name(tmp_path: Path, write_boxes: Write) -> None:
    """The core then refuses the split: one group on both sides."""
    write_boxes("train-pats/pt_1")
    write_boxes("validation-pats/pt_1")
    records = find_records(tmp_path / "data")
    assert [r.key for r in records] == ["train-pats__pt_1", "validation-pats__pt_1"]
    assert {r.group for r in records} == {"pt_1"}


def test_a_set_without_doses_is_left_out(tmp_path: Path, write_boxes: Write) -> None:
    write_boxes("train-pats/pt_1")
    write_boxes("test-pats/pt_241", without=("dose",))
    assert [r.key for r in find_records(tmp_path / "data")] == ["pt_1"]
    assert [r.key for r in find_inputs(tmp_path / "data")] == ["pt_241", "pt_1"]


def test_one_patient_without_a_dose_is_not(tmp_path: Path, write_boxes: Write) -> None:
    write_boxes("train-pats/pt_1")
    write_boxes("train-pats/pt_2", without=("dose",))
    _, record = find_records(tmp_path / "data")
    with pytest.raises(
        BadInput, match=r"pt_2/dose\.csv: the file is missing \(training and evaluation need the dose\)"
    ):
        read_patient(record)


def test_no_dose_anywhere(tmp_path: Path, write_boxes: Write) -> None:
    write_boxes("pt_1", without=("dose",))
    with pytest.raises(BadInput, match=r"none of its 1 patients has dose\.csv.*predict"):
        find_records(tmp_path / "data")


def test_a_file_of_a_patient_is_no_table(tmp_path: Path, write_boxes: Write) -> None:
    write_boxes("pt_1")
    with pytest.raises(BadInput, match=r"ct\.csv: one file of a patient, .*: name the patient's folder \(.*pt_1\), or"):
        find_records(tmp_path / "data/pt_1/ct.csv")


def test_nothing_but_empty_folders(tmp_path: Path) -> None:
    (tmp_path / "data/pt_1").mkdir(parents=True)
    with pytest.raises(
        BadInput, match=r"has dose\.csv.*, nor ct\.csv, possible_dose_mask\.csv, voxel_dimensions\.csv; "
    ):
        find_records(tmp_path / "data")


def test_inputs_have_no_dose(tmp_path: Path, write_boxes: Write) -> None:
    folder = write_boxes("pt_1", without=("dose",))
    for path in (folder, folder / "ct.csv", tmp_path / "data"):
        (record,) = find_inputs(path)
        assert record.key == "pt_1"
        assert "dose" not in record.files
        assert read_patient(record).dose is None


def test_an_empty_patients_folder_is_named(tmp_path: Path, write_boxes: Write) -> None:
    write_boxes("train-pats/pt_1")
    (tmp_path / "data/train-pats/pt_2").mkdir()
    _, record = find_records(tmp_path / "data")
    with pytest.raises(
        BadInput,
        match=r"pt_2/ct\.csv: the file is missing .* so are possible_dose_mask\.csv, voxel_dimensions\.csv, dose\.csv",
    ):
        read_patient(record)


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no such folder"):
        find_records(tmp_path / "nowhere")
    with pytest.raises(BadInput, match=r"it is empty.*train-pats/"):
        find_records(tmp_path)
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(BadInput, match=r"no patient below it.*voxel_dimensions\.csv"):
        find_records(tmp_path)
    with pytest.raises(BadInput, match="not a folder"):
        find_records(tmp_path / "notes.txt")


# ---------------------------------------------------------------- reading


def test_what_a_patient_becomes(write_boxes: Write) -> None:
    (record,) = find_records(write_boxes())
    patient = read_patient(record)
    assert (patient.ct.dtype, patient.masks.dtype) == (np.int16, np.uint16)
    assert patient.dose is not None
    assert patient.dose.dtype == np.float32
    assert patient.ct.shape == patient.dose.shape == patient.masks.shape == GRID
    assert patient.voxel_mm.tolist() == [4.0, 4.0, 2.5]
    assert patient.ct[50, 50, 30] == 1050
    assert patient.ct[0, 0, 0] == 0
    assert patient.dose[55, 60, 60] == 71.25
    assert unpack(patient.masks, "PTV70").sum() == 10 * 10 * 22
    assert not unpack(patient.masks, "Larynx").any()


def test_masks_are_packed_by_name(write_boxes: Write) -> None:
    rng = np.random.default_rng(0)
    masks = {name: rng.random((4, 5, 6)) < 0.5 for name in MASKS}
    bits = pack_masks(masks)
    assert bits.dtype == np.uint16
    assert all(np.array_equal(unpack(bits, name), mask) for name, mask in masks.items())
    with pytest.raises(KeyError, match="Mandibel"):
        unpack(bits, "Mandibel")


@pytest.mark.parametrize("role, file, why", [
    ("ct", "ct.csv", "every patient needs it"),
    ("possible_dose_mask", "possible_dose_mask.csv", "every patient needs it"),
    ("voxels", "voxel_dimensions.csv", "size in mm"),
])  # fmt: skip
def test_a_required_file_is_missing(write_boxes: Write, role: str, file: str, why: str) -> None:
    (record,) = find_records(write_boxes(without=(role,)))
    with pytest.raises(BadInput, match=rf"{file}: the file is missing \(.*{why}"):
        read_patient(record)


def test_a_compressed_file_is_not_overlooked(write_boxes: Write) -> None:
    folder = write_boxes()
    for name in ("ct.csv", "PTV56.csv"):
        (folder / name).rename(folder / f"{name}.gz")
        (record,) = find_records(folder)
        with pytest.raises(BadInput, match=rf"only {name}\.gz is there; unpack it"):
            read_patient(record)
        (folder / f"{name}.gz").rename(folder / name)


@pytest.mark.parametrize("file, line, message", [
    ("dose.csv", "700000,-0.5", "1 doses are negative, down to -0.5 Gy at index 700000"),
    ("dose.csv", "700000,nan", "NaN or infinite"),
    ("dose.csv", "700000,7012", r"the dose reaches 7012 Gy, and no plan's is above 120; is it in cGy\?"),
    ("dose.csv", "2097152,1", "outside the 128"),
    ("ct.csv", "700000,40000", r"values run from 1050 to 40000, beyond CT numbers \(-32768 … 32767\)"),
    ("ct.csv", "700000,inf", "NaN or infinite"),
    ("Mandible.csv", "2097152,", "outside the 128"),
    ("Mandible.csv", "726454,1.0", "a mask has none"),
])  # fmt: skip
def test_faults_are_named(write_boxes: Write, file: str, line: str, message: str) -> None:
    folder = write_boxes()
    replace_line(folder / file, 2, line)
    (record,) = find_records(folder)
    with pytest.raises(BadInput, match=message) as caught:
        read_patient(record)
    assert str(caught.value).startswith(str(folder / file))


@pytest.mark.parametrize("file, message", [
    ("ct.csv", "holds no voxel"), ("dose.csv", "no dose above 0"), ("possible_dose_mask.csv", "the mask is empty"),
])  # fmt: skip
def test_nothing_but_a_header(write_boxes: Write, file: str, message: str) -> None:
    folder = write_boxes()
    (folder / file).write_text(",data\n")
    (record,) = find_records(folder)
    with pytest.raises(BadInput, match=rf"{file}: .*{message}"):
        read_patient(record)


@pytest.mark.parametrize("file", ["ct.csv", "dose.csv"])
def test_a_file_cut_off_between_two_lines(write_boxes: Write, file: str) -> None:
    """Refused when over 1 % of the possible-dose mask lies behind its last voxel, in whatever order its lines are."""
    folder = write_boxes()
    (record,) = find_records(folder)
    header, *lines = (folder / file).read_text().splitlines(keepends=True)
    (folder / file).write_text(header + "".join(reversed(lines[: int(len(lines) * 0.992)])))
    read_patient(record)
    (folder / file).write_text(header + "".join(reversed(lines[: int(len(lines) * 0.9)])))
    with pytest.raises(BadInput, match=rf"{file}: seems cut off: .*10% of the possible-dose mask lies behind"):
        read_patient(record)


def test_an_unreadable_file(write_boxes: Write) -> None:
    folder = write_boxes()
    (folder / "ct.csv").unlink()
    (folder / "ct.csv").mkdir()
    (record,) = find_records(folder)
    with pytest.raises(BadInput, match=r"ct\.csv: cannot be read \(Is a directory\)"):
        read_patient(record)


def test_ct_with_fractions_is_rounded(write_boxes: Write) -> None:
    folder = write_boxes()
    replace_line(folder / "ct.csv", 2, "700000,-37.6")
    (record,) = find_records(folder)
    assert read_patient(record).ct.reshape(-1)[700000] == -38


@pytest.mark.skipif(not REAL.is_dir(), reason=f"no real patients in {REAL}")
def test_real_patients_against_a_reader_of_another_kind() -> None:
    """NumPy's own text reader gives the same numbers."""
    records = find_records(REAL)
    assert {(r.split, r.group[:4]) for r in records} >= {("train", "pt_1"), ("validation", "pt_2")}
    record = next(r for r in records if r.key == "pt_1")
    patient = read_patient(record)
    for role, volume in (("ct", patient.ct), ("dose", patient.dose)):
        table = np.loadtxt(record.files[role], delimiter=",", skiprows=1)
        other = np.zeros(GRID)
        other.reshape(-1)[table[:, 0].astype(int)] = table[:, 1]
        assert np.array_equal(volume, other.astype(np.float32))
    for roi in (*ROIS, POSSIBLE):
        own = np.flatnonzero(unpack(patient.masks, roi))
        if roi in record.files:
            lines = record.files[roi].read_text().split("\n")[1:-1]
            assert own.tolist() == [int(line.removesuffix(",")) for line in lines]
        else:
            assert own.size == 0


@pytest.mark.skipif(not REAL.is_dir(), reason=f"no real patients in {REAL}")
def test_the_axes_of_the_real_patients() -> None:
    """First index to the back, second to the patient's left, third to the feet."""
    for record in find_records(REAL):
        masks = read_patient(record).masks
        centre = {r: [a.mean() for a in np.nonzero(unpack(masks, r))] for r in ROIS if r in record.files}
        for first, second, axis in (
            ("Mandible", "SpinalCord", 0), ("RightParotid", "LeftParotid", 1), ("Brainstem", "SpinalCord", 2),
        ):  # fmt: skip
            if first in centre and second in centre:
                assert centre[first][axis] < centre[second][axis], (record.key, first, second)
