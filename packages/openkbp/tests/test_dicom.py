"""Patients from a planning system: read on the network's grid as they were drawn, or refused by name."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
import shapely
from hypothesis import given, settings
from hypothesis import strategies as st
from runner_core import BadInput, Record
from runner_openkbp import checks, outputs
from runner_openkbp.config import DoseDataConfig, DosePredictOptions
from runner_openkbp.dicom import contours, grid, names
from runner_openkbp.dicom.read import read_planning
from runner_openkbp.files import find_inputs, find_records, read_patient
from runner_openkbp.geometry import Geometry, synthetic
from runner_openkbp.phantom_dicom import write_dicom
from runner_openkbp.rois import GRID, MASKS, POSSIBLE, Patient, unpack

SHAPE = (20, 20, 14)
VOXEL_MM = np.array([4.0, 4.0, 2.5])


def box(*corners: int) -> np.ndarray:
    mask = np.zeros(SHAPE, bool)
    mask[corners[0] : corners[1], corners[2] : corners[3], corners[4] : corners[5]] = True
    return mask


def small_patient() -> tuple[Patient, dict[str, np.ndarray]]:
    """A patient of boxes: the cord behind, one parotid on the right, a ring as PTV70."""
    body = box(2, 18, 2, 18, 0, 14)
    ring = box(5, 12, 6, 13, 3, 10) & ~box(7, 9, 8, 10, 3, 10)
    masks = {"SpinalCord": box(14, 16, 9, 11, 1, 13), "Parotid_R": box(8, 11, 3, 5, 4, 8), "PTV70": ring}
    rng = np.random.default_rng(0)
    ct = (body * rng.integers(900, 1300, SHAPE)).astype(np.int16)
    dose = (body * rng.uniform(1, 70, SHAPE)).astype(np.float32)
    return Patient(ct, dose, np.zeros(SHAPE, np.uint16), VOXEL_MM), {"PTV70": ring, **masks}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dicom") / "ann"
    patient, masks = small_patient()
    write_dicom(folder, "ann", patient, masks)
    return folder


@pytest.fixture
def exported(written: Path, tmp_path: Path) -> Path:
    """A folder of one patient's files, to be changed."""
    return Path(shutil.copytree(written, tmp_path / "ann"))


def change(folder: Path, pattern: str, edit: Callable[[Any], None]) -> None:
    for path in sorted(folder.glob(pattern)):
        found = pydicom.dcmread(path)
        edit(found)
        found.save_as(path)


def read_one(folder: Path, table: Path | None = None, with_dose: bool = False) -> tuple[Record, Patient]:
    find = find_records if with_dose else find_inputs
    (record,) = find(folder, DoseDataConfig(names=table))
    return record, read_patient(record)


# ---------------------------------------------------------------- round trips


def test_a_patient_of_the_challenge_s_grid_comes_back_as_it_was(write_boxes: Any, tmp_path: Path) -> None:
    (record,) = find_records(write_boxes(boxes={"Larynx": (50, 53, 60, 64, 60, 64)}))
    before = read_patient(record)
    masks = {m: unpack(before.masks, m) for m in MASKS if unpack(before.masks, m).any()}
    write_dicom(tmp_path / "out" / "pt_1", "pt_1", before, masks)
    _, after = read_one(tmp_path / "out", with_dose=True)
    assert np.array_equal(after.ct, before.ct)
    assert np.array_equal(after.masks, before.masks)
    assert np.allclose(after.voxel_mm, before.voxel_mm)
    found = pydicom.dcmread(tmp_path / "out" / "pt_1" / "rtdose.dcm")
    assert np.abs(after.dose - before.dose).max() <= float(found.DoseGridScaling) / 2 * (1 + 1e-3)


def test_masks_lie_where_they_were_drawn(written: Path) -> None:
    """The small CT lies whole within the network's grid, and each voxel of it is one of the network's."""
    record, found = read_one(written, with_dose=True)
    assert not [f for f in checks.findings(record, found) if "no target" in f.message or f.rule == "regions"]
    planning = read_planning(record)
    patient, masks = small_patient()
    first = np.linalg.solve(planning.grid.axes, planning.ct_grid.origin - planning.grid.origin)
    assert np.allclose(first, np.rint(first), atol=1e-6)
    part = tuple(slice(int(n), int(n) + size) for n, size in zip(np.rint(first), SHAPE, strict=True))
    for name, roi in {"PTV70": "PTV70", "SpinalCord": "SpinalCord", "Parotid_R": "RightParotid"}.items():
        own = unpack(found.masks, roi)
        assert np.array_equal(own[part], masks[name])
        assert own.sum() == masks[name].sum()
    assert np.array_equal(found.ct[part], patient.ct)
    assert np.abs(found.dose[part] - patient.dose).max() < 0.001
    assert np.array_equal(unpack(found.masks, POSSIBLE)[part], patient.ct > 0)


@pytest.mark.parametrize("turn", ["HFP", "FFS", "HFDL", "sagittal"])
def test_the_patient_s_position_changes_nothing(turn: str, exported: Path) -> None:
    """The same person, whose images have other rows and columns, and the same coordinates."""
    _, before = read_one(exported)
    if turn == "sagittal":  # slices along x: rows go back, columns go down
        slices = [pydicom.dcmread(p) for p in sorted(exported.glob("ct_*"))]
        volume = np.stack([s.pixel_array for s in slices], axis=2)
        origin, step = np.array(slices[0].ImagePositionPatient, float), VOXEL_MM
        for column in range(SHAPE[1]):
            made = slices[0].copy() if column == 0 else pydicom.dcmread(exported / "ct_001.dcm")
            made.ImagePositionPatient = [origin[0] + step[1] * column, origin[1], origin[2]]
            made.ImageOrientationPatient = [0, 0, -1, 0, 1, 0]
            made.PixelSpacing = [step[0], step[2]]
            made.Rows, made.Columns = SHAPE[0], SHAPE[2]
            made.PixelData = np.ascontiguousarray(volume[:, column, :]).tobytes()
            made.SOPInstanceUID = made.file_meta.MediaStorageSOPInstanceUID = f"1.2.{column + 1}"
            made.save_as(exported / f"sag_{column:03d}.dcm")
        for path in exported.glob("ct_*"):
            path.unlink()
        _, after = read_one(exported)
        assert np.array_equal(after.ct, before.ct)
        assert np.array_equal(after.masks, before.masks)
        return

    def edit(found: Any) -> None:
        pixels, place = found.pixel_array, np.array(found.ImagePositionPatient, float)
        if turn == "HFP":
            found.PatientPosition = "HFP"
            pixels, found.ImageOrientationPatient = pixels[::-1, ::-1], [-1, 0, 0, 0, -1, 0]
            place += [4.0 * 19, 4.0 * 19, 0]
        if turn == "HFDL":
            found.PatientPosition = "HFDL"
            pixels, found.ImageOrientationPatient = pixels.T[::-1], [0, 1, 0, -1, 0, 0]
            place += [4.0 * 19, 0, 0]
        if turn == "FFS":
            found.PatientPosition = "FFS"
            pixels, found.ImageOrientationPatient = pixels[:, ::-1], [-1, 0, 0, 0, 1, 0]
            place += [4.0 * 19, 0, 0]
        found.ImagePositionPatient = [float(v) for v in place]
        found.PixelData = np.ascontiguousarray(pixels).tobytes()

    change(exported, "ct_*", edit)
    _, after = read_one(exported)
    assert np.array_equal(after.ct, before.ct)
    assert np.array_equal(after.masks, before.masks)
    said = [f.message for f in after.notes if turn in f.message]
    assert bool(said) == (turn != "FFS")


def test_fine_pixels_are_averaged_and_contours_counted_by_half_a_voxel(tmp_path: Path) -> None:
    """2 × 2 pixels and 2 slices of the CT make one voxel; a region has a voxel if it fills half of it."""
    shape = (256, 256, 12)
    ct = np.zeros(shape, np.int16)
    ct[60:200, 60:200] = np.random.default_rng(1).integers(900, 1200, (140, 140, 12))
    ptv = np.zeros(shape, bool)
    ptv[100:121, 100:120, 2:8] = True  # 21 pixels: the last voxel is half full
    patient = Patient(ct, None, np.zeros(shape, np.uint16), np.array([2.0, 2.0, 1.25]))
    write_dicom(tmp_path / "bob", "bob", patient, {"PTV_7000": ptv})
    _, found = read_one(tmp_path)
    assert np.allclose(found.voxel_mm, [4, 4, 2.5])
    assert int(unpack(found.masks, "PTV70").sum()) == 11 * 10 * 3
    place = np.argwhere(unpack(found.masks, "PTV70"))[0]
    assert place[:2].tolist() == [50, 50]
    assert found.ct[tuple(place)] == np.rint(ct[100:102, 100:102, 2:4].mean())


# ---------------------------------------------------------------- contours


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(3, 12))
def test_a_filled_polygon_holds_the_centres_that_shapely_finds(seed: int, corners: int) -> None:
    rng = np.random.default_rng(seed)
    angles = np.sort(rng.uniform(0, 2 * np.pi, corners))
    ring = np.stack([np.cos(angles), np.sin(angles)], axis=1) * rng.uniform(3, 14, (corners, 1)) + rng.uniform(
        10, 20, 2
    )
    polygon = shapely.Polygon(ring)
    if not polygon.is_valid:
        return
    rows, columns = np.meshgrid(np.arange(30), np.arange(32), indexing="ij")
    expected = shapely.contains_xy(polygon, rows, columns)
    near = shapely.distance(polygon.boundary, shapely.points(rows, columns)) < 1e-9
    assert np.array_equal(contours.fill([ring], (30, 32)) & ~near, expected & ~near)


@given(st.integers(0, 10_000))
def test_a_traced_mask_is_filled_again(seed: int) -> None:
    mask = np.random.default_rng(seed).random((9, 11)) < 0.5
    assert np.array_equal(contours.fill(contours.trace(mask), (9, 11)), mask)


def square(low: float, high: float) -> np.ndarray:
    return np.array([[low, low], [low, high], [high, high], [high, low]])


def test_rings_in_rings_and_keyholes_are_holes() -> None:
    hole = contours.fill([square(0.5, 9.5), square(3.5, 6.5)], (12, 12))
    assert hole.sum() == 81 - 9
    keyhole = np.concatenate([square(0.5, 9.5)[:1], square(3.5, 6.5)[[0, 3, 2, 1, 0]], square(0.5, 9.5)[[0, 1, 2, 3]]])
    assert np.array_equal(contours.fill([keyhole], (12, 12)), hole)


def test_slices_between_contours_get_the_shape_midway_and_real_gaps_stay() -> None:
    planes = {2.0: [square(0.5, 9.5)], 4.0: [square(2.5, 7.5)], 12.0: [square(2.5, 7.5)]}
    found = contours.mask(contours.Contours(planes), (12, 12, 16))
    counts = found.sum(axis=(0, 1))
    assert (counts[2], counts[4], counts[12]) == (81, 25, 25)
    assert 25 < counts[3] < 81
    assert not counts[5:12].any()
    assert not counts[13:].any()
    shifted = contours.mask(contours.Contours({2.4: [square(0.5, 9.5)], 3.4: [square(0.5, 9.5)]}), (12, 12, 6))
    assert shifted.sum(axis=(0, 1)).tolist() == [0, 0, 81, 81, 0, 0]


# ---------------------------------------------------------------- the network's grid


def test_the_grid_is_the_challenge_s() -> None:
    ct = Geometry(np.zeros(3), synthetic(np.array([0.9766, 0.9766, 2.5])).axes)
    found = grid.network_grid(ct, (512, 512, 180), np.array([240.0, 256.0, 100.0]))
    assert np.allclose(found.voxel_mm, [3.9064, 3.9064, 2.5])
    first = np.linalg.solve(ct.axes, found.origin)
    assert np.allclose(first, [1.5, 1.5, 36])  # whole plane; slice 100 becomes the network's 64
    ends = grid.network_grid(ct, (512, 512, 180), np.array([240.0, 256.0, 5.0]))
    assert np.allclose(np.linalg.solve(ct.axes, ends.origin)[2], 0)  # never beyond a longer CT


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000))
def test_resampling_keeps_means_and_linear_fields(seed: int) -> None:
    rng = np.random.default_rng(seed)
    source = Geometry(rng.normal(0, 9, 3), synthetic(rng.uniform(1, 4, 3)).axes)
    target = Geometry(source.origin + source.axes @ rng.uniform(2, 3, 3), synthetic(rng.uniform(1, 3, 3)).axes)
    places = np.stack(np.meshgrid(*[np.arange(20)] * 3, indexing="ij"), axis=-1) @ source.axes.T + source.origin
    slope = rng.normal(size=3)
    wanted = np.stack(np.meshgrid(*[np.arange(4)] * 3, indexing="ij"), axis=-1) @ target.axes.T + target.origin
    for resample in (grid.interpolate,) if seed % 2 else (grid.interpolate, grid.average):
        found = resample(places @ slope, source, target, (4, 4, 4))
        if resample is grid.interpolate:
            assert np.allclose(found, wanted @ slope, atol=1e-3)
        else:
            assert np.abs(found - wanted @ slope).max() <= np.abs(slope * source.voxel_mm[[1, 0, 2]]).sum() / 2
    assert np.allclose(grid.average(np.full((20, 20, 20), 3.0), source, target, (4, 4, 4)), 3, atol=1e-5)


# ---------------------------------------------------------------- names


def structures(*found: str) -> list[names.Structure]:
    return [names.Structure(number, name) for number, name in enumerate(found, 1)]


def assigned(table: names.Table, *found: str) -> dict[str, list[str]]:
    named = names.assign(structures(*found), table, {}, "rs.dcm")
    return {roi: [s.name for s in own] for roi, own in named.rois.items()}


@pytest.mark.parametrize(
    ("name", "roi"),
    [
        *(("PTV_7000", "PTV70"), ("ptv 63 Gy", "PTV63"), ("PTVn_56", "PTV56"), ("PTV69.96", "PTV70")),
        *(("Parotid_L", "LeftParotid"), ("Spinal Cord", "SpinalCord"), ("Bone_Mandible", "Mandible")),
    ],
)
def test_usual_names_are_known(name: str, roi: str) -> None:
    assert assigned(names.Table(), "PTV70_all", name, "PTV70")[roi][0] in (name, "PTV70")
    assert roi in assigned(names.Table(), name, "PTV70")


@pytest.mark.parametrize("name", ["PTV70_opt", "zPTV70", "PTV70-3mm", "SpinalCord_PRV", "CTV70", "GTV"])
def test_helper_structures_are_no_region(name: str) -> None:
    assert assigned(names.Table(), "PTV70", name) == {"PTV70": ["PTV70"]}


def test_a_table_comes_first_and_may_be_csv(tmp_path: Path) -> None:
    yaml, csv = tmp_path / "names.yaml", tmp_path / "names.csv"
    yaml.write_text(
        "rois: {SpinalCord: 'myelon.*', body: haut}\nprescriptions: {'ptv high': 69.96}\nignore: [brainstem]\n"
    )
    csv.write_text("roi,pattern,gy\nSpinalCord,myelon.*,\nbody,haut,\n,ptv high,69.96\nignore,brainstem,\n")
    for path in (yaml, csv):
        found = assigned(names.read_table(path), "Myelon 2", "PTV High", "Brainstem", "Haut")
        assert found == {"SpinalCord": ["Myelon 2"], "PTV70": ["PTV High"]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rois: {Spinalcord: x}", "Spinalcord is no region; did you mean 'SpinalCord'"),
        ("rois: {PTV70: '('}", "is no regular expression"),
        ("prescriptions: {PTV: 7000}", "not a dose in Gy between 0 and 100"),
        ("names: {}", "its key 'names' is unknown"),
        ("- a", "it is no mapping"),
    ],
)
def test_a_wrong_table_is_refused_by_its_entry(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "names.yaml").write_text(text)
    with pytest.raises(BadInput, match=message):
        names.read_table(tmp_path / "names.yaml")


def test_names_that_cannot_be_decided_are_refused() -> None:
    with pytest.raises(BadInput, match=r"'Cord' and 'SpinalCord' are both its SpinalCord"):
        assigned(names.Table(), "Cord", "SpinalCord", "PTV70")
    with pytest.raises(BadInput, match=r"no structure is a target.*structures are Cord, Tumour"):
        assigned(names.Table(), "Cord", "Tumour")
    with pytest.raises(BadInput, match=r"the prescription of PTV_High is not known\. Export the RT Plan"):
        assigned(names.Table(), "PTV_High", "PTV56")
    with pytest.raises(BadInput, match=r"PTV60 is prescribed 60 Gy; the network knows targets of 70, 63 and 56"):
        assigned(names.Table(), "PTV60")
    named = names.assign(structures("PTV70", "Larinx"), names.Table(), {}, "rs.dcm")
    assert "Larynx; did you mean 'Larinx'?" in named.missing


def test_a_plan_s_prescriptions_are_used() -> None:
    named = names.assign([names.Structure(4, "PTV boost", "PTV")], names.Table(), {4: 70.0}, "rs.dcm")
    assert [s.name for s in named.rois["PTV70"]] == ["PTV boost"]


# ---------------------------------------------------------------- refused or handled by name


def wrong_slope(found: Any) -> None:
    found.RescaleIntercept = "0"
    found.PixelData = np.full(SHAPE[:2], 1000, "<i2").tobytes()


def refer(found: Any, sequence: str) -> None:
    reference = pydicom.Dataset()
    reference.ReferencedSOPInstanceUID = "1.2.3"
    setattr(found, sequence, pydicom.Sequence([reference]))


def tilt(found: Any) -> None:
    found.ImageOrientationPatient = [1, 0, 0, 0, 0.98, -0.17]


def shear(found: Any) -> None:
    place = [float(v) for v in found.ImagePositionPatient]
    found.ImagePositionPatient = [place[0], place[1] + 0.3 * place[2], place[2]]


@pytest.mark.parametrize(
    ("pattern", "edit", "message"),
    [
        ("ct_005.dcm", None, "a slice is missing there"),
        ("ct_00[5-9].dcm", lambda d: setattr(d, "FrameOfReferenceUID", "1.2.3"), "in 2 frames of reference"),
        ("ct_*", lambda d: setattr(d, "FrameOfReferenceUID", "1.2.3"), "in another frame of reference than the CT"),
        ("ct_*", lambda d: setattr(d, "SeriesInstanceUID", "1.2.3"), "its CT series is not there"),
        (
            "ct_*",
            lambda d: setattr(d, "PixelSpacing", [0.004, 0.004]),
            r"PixelSpacing is \[.*which is no CT's in mm",
        ),
        ("ct_005.dcm", lambda d: setattr(d, "PixelData", d.PixelData[:100]), "ct_005.dcm: the image cannot be decoded"),
        ("ct_00[1-9].dcm", None, "structure '.*' lies outside the CT; is it this CT's"),
        ("ct_*", tilt, "tilted against the patient's axes"),
        ("ct_*", shear, "shifted against each other"),
        ("ct_*", wrong_slope, "no CT of a person in Hounsfield units"),
        ("ct_003.dcm", lambda d: d.__delattr__("RescaleSlope"), "the slice has no RescaleSlope"),
        ("rtstruct.dcm", lambda d: setattr(d.StructureSetROISequence[1], "ROIName", "x"), "no structure is a target"),
        ("rtstruct.dcm", lambda d: setattr(d, "ROIContourSequence", []), "no target has contours"),
        ("rtdose.dcm", lambda d: setattr(d, "DoseUnits", "RELATIVE"), "DoseUnits is RELATIVE"),
        ("rtdose.dcm", lambda d: setattr(d, "DoseGridScaling", 100 * d.DoseGridScaling), "is it in cGy"),
        ("rtdose.dcm", lambda d: setattr(d, "DoseSummationType", "BEAM"), "DoseSummationType is BEAM"),
        ("rtdose.dcm", lambda d: setattr(d, "FrameOfReferenceUID", "1.2.3"), "no RT Dose lies in its frame"),
        ("rtdose.dcm", lambda d: refer(d, "ReferencedStructureSetSequence"), "is of another plan or structure set"),
        ("rtdose.dcm", None, "has an RT Dose"),
        ("rtstruct.dcm", None, "no RT Structure Set"),
    ],
)
def test_files_that_do_not_fit_are_refused_by_name(pattern: str, edit: Any, message: str, exported: Path) -> None:
    if edit is None:
        for path in exported.glob(pattern):
            path.unlink()
    else:
        change(exported, pattern, edit)
    with pytest.raises(BadInput, match=message):
        read_one(exported, with_dose=True)


def test_a_second_copy_of_a_slice_and_a_second_structure_set_are_refused(exported: Path) -> None:
    shutil.copy(exported / "ct_004.dcm", exported / "copy.dcm")
    with pytest.raises(BadInput, match="two slices lie at"):
        read_one(exported)
    (exported / "copy.dcm").unlink()
    found = pydicom.dcmread(exported / "rtstruct.dcm")
    found.SOPInstanceUID = "1.2.3"
    found.save_as(exported / "other.dcm")
    with pytest.raises(BadInput, match="2 structure sets belong to its CT series"):
        read_patient(find_inputs(exported)[0])


def test_slices_of_two_acquisitions_at_one_place_are_named(exported: Path) -> None:
    for path in sorted(exported.glob("ct_*")):
        found = pydicom.dcmread(path)
        found.AcquisitionNumber = 1
        found.save_as(path)
        found.AcquisitionNumber, found.SOPInstanceUID = 2, f"{found.SOPInstanceUID}.2"
        found.save_as(path.with_name(f"second_{path.name}"))
    with pytest.raises(BadInput, match=r"two slices lie at .*of acquisitions (1 and 2|2 and 1): export the one"):
        read_one(exported)


def test_a_series_that_lost_its_last_slices_is_refused_or_told(exported: Path) -> None:
    """The target's planes are slices 3 to 9 of 14, the cord's 1 to 12, and the body goes through all."""
    by_height = sorted(exported.glob("ct_*"), key=lambda p: float(pydicom.dcmread(p).ImagePositionPatient[2]))
    for path in by_height[:3]:
        path.unlink()
    texts = [note.message for note in read_one(exported)[1].notes if note.level == "warning"]
    assert "2 of the 12 contoured planes of SpinalCord lie beyond the CT's slices and are left out" in texts
    assert any(text.startswith("the CT ends 2.5 mm below the targets, inside the body") for text in texts)
    for path in by_height[3:5]:
        path.unlink()
    with pytest.raises(BadInput, match=r"1 of the 7 contoured planes of target 'PTV70' lie beyond.*export all its"):
        read_one(exported)


def test_the_series_of_the_structures_is_taken_among_several(exported: Path) -> None:
    _, before = read_one(exported)
    for path in sorted(exported.glob("ct_*"))[:3]:
        found = pydicom.dcmread(path)
        found.SeriesInstanceUID = "1.2.3"
        found.save_as(exported / f"scout_{path.name}")
    _, after = read_one(exported)
    assert np.array_equal(after.ct, before.ct)


def test_without_an_outline_the_body_is_found_without_the_couch(exported: Path) -> None:
    """A board 2 voxels thick below the body is taken off by the opening."""

    def edit(found: Any) -> None:
        pixels = found.pixel_array.copy()
        pixels[18:20] = 1000
        pixels[17] = 0
        pixels[2:17, 2:18] = 1040
        found.PixelData = pixels.tobytes()

    change(exported, "ct_*", edit)
    change(exported, "rtstruct.dcm", lambda d: setattr(d.StructureSetROISequence[0], "ROIName", "nothing"))
    change(exported, "rtstruct.dcm", lambda d: setattr(d.RTROIObservationsSequence[0], "RTROIInterpretedType", ""))
    _, found = read_one(exported)
    assert any("no structure is the body's outline" in f.message for f in found.notes)
    assert (found.ct > 0).sum() == 15 * 16 * 14


def test_overlapping_targets_are_parted(exported: Path) -> None:
    patient, masks = small_patient()
    shutil.rmtree(exported)
    write_dicom(exported, "ann", patient, masks | {"PTV63": box(4, 13, 5, 14, 2, 11)})
    _, found = read_one(exported)
    assert not (unpack(found.masks, "PTV63") & unpack(found.masks, "PTV70")).any()
    assert unpack(found.masks, "PTV63").sum() == 9 * 9 * 9 - masks["PTV70"].sum()
    assert any("also belong to a target with more dose" in f.message for f in found.notes)


# ---------------------------------------------------------------- the dose out


@pytest.mark.parametrize("spacing", [0.0, 3.0])
def test_the_dose_lies_in_the_patient_and_refers_to_what_exists(spacing: float, written: Path, tmp_path: Path) -> None:
    sitk = pytest.importorskip("SimpleITK")
    (record,) = find_inputs(written)
    planning = read_planning(record)
    at = (
        np.stack(np.meshgrid(*[np.arange(128)] * 3, indexing="ij"), axis=-1) @ planning.grid.axes.T
        + planning.grid.origin
    )
    dose = (90 + at @ [0.2, 0.1, 0.05]).clip(0).astype(np.float32)  # linear in the patient's coordinates
    files = outputs.write(record, dose, tmp_path, DosePredictOptions(csv=False, dose_grid=spacing))
    found = pydicom.dcmread(files[0])
    ct = pydicom.dcmread(written / "ct_001.dcm")
    structures = pydicom.dcmread(written / "rtstruct.dcm")
    assert [f.name for f in files] == ["ann_dose.dcm"]
    for name in ("PatientID", "StudyInstanceUID", "FrameOfReferenceUID"):
        assert found[name].value == ct[name].value
    assert found.DoseSummationType == "PLAN_OVERVIEW"
    assert "ReferencedRTPlanSequence" not in found
    assert found.ReferencedStructureSetSequence[0].ReferencedSOPInstanceUID == structures.SOPInstanceUID
    assert "research only" in found.DoseComment
    image = sitk.ReadImage(str(files[0]))
    assert np.allclose(image.GetSpacing(), [spacing or 4, spacing or 4, spacing or 2.5])
    scaling = float(found.DoseGridScaling)
    values = sitk.GetArrayFromImage(image) * (scaling if image.GetPixelID() != sitk.sitkFloat64 else 1)
    for index in ((0, 0, 0), (5, 9, 3), (2, 3, 8)):
        place = image.TransformIndexToPhysicalPoint(index)
        assert abs(values[index[::-1]] - (90 + np.dot(place, [0.2, 0.1, 0.05]))) <= scaling / 2 + 1e-3
    volume = found.DVHSequence[0].DVHData[1]
    numbers = {int(i.ROINumber): i.ROIName for i in structures.StructureSetROISequence}
    shown = {numbers[int(d.DVHReferencedROISequence[0].ReferencedROINumber)] for d in found.DVHSequence}
    assert shown == {"PTV70", "SpinalCord", "Parotid_R"}
    assert float(volume) > 0


def test_a_plan_that_exists_is_referred_to(exported: Path, tmp_path: Path) -> None:
    structures = pydicom.dcmread(exported / "rtstruct.dcm")
    plan = pydicom.dcmread(exported / "rtdose.dcm")
    del plan.PixelData
    plan.Modality, plan.SOPClassUID = "RTPLAN", pydicom.uid.RTPlanStorage
    plan.SOPInstanceUID = plan.file_meta.MediaStorageSOPInstanceUID = "1.2.3.4"
    reference = pydicom.Dataset()
    reference.ReferencedSOPClassUID, reference.ReferencedSOPInstanceUID = (
        structures.SOPClassUID,
        structures.SOPInstanceUID,
    )
    plan.ReferencedStructureSetSequence = [reference]
    plan.save_as(exported / "plan.dcm")
    (record,) = find_inputs(exported)
    (file,) = outputs.write(record, np.ones(GRID, np.float32), tmp_path / "out", DosePredictOptions(csv=False))
    found = pydicom.dcmread(file)
    assert found.DoseSummationType == "PLAN"
    assert found.ReferencedRTPlanSequence[0].ReferencedSOPInstanceUID == "1.2.3.4"
