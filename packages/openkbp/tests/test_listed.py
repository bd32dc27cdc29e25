"""Patients under other names: in a table, by patterns, guessed; and the one message of what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from runner_core import BadInput, FilesConfig, Record, collect_left_out
from runner_openkbp.files import find_inputs, find_records
from runner_openkbp.guess import guess
from runner_openkbp.roles import FILES, role_of

OTHER_NAMES = {
    "ct.csv": "CT.csv", "dose.csv": "RTDOSE.csv", "SpinalCord.csv": "spinal_cord.csv",
    "RightParotid.csv": "Parotid_R.csv", "PTV70.csv": "PTV_7000.csv", "possible_dose_mask.csv": "dose-mask.csv",
    "voxel_dimensions.csv": "VoxelSize.csv",
}  # fmt: skip
ROLES = {"ct", "dose", "voxels", "possible_dose_mask", "SpinalCord", "RightParotid", "PTV70"}


def make(root: Path, *patients: str) -> Path:
    """Write empty files under other names: PATIENT may be a folder (p1/) or the beginning of names (p1_)."""
    for patient in patients:
        for name in OTHER_NAMES.values():
            path = root / f"{patient}{name}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    return root


def table(path: Path, *lines: str) -> FilesConfig:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return FilesConfig(manifest=path)


def names(record: Record, root: Path) -> dict[str, str]:
    return {role: path.relative_to(root).as_posix() for role, path in record.files.items()}


def test_every_role_is_known_by_the_challenges_name() -> None:
    assert {role: role_of(name.removesuffix(".csv")) for role, name in FILES.items()} == {role: role for role in FILES}


def test_a_table_of_folders(tmp_path: Path) -> None:
    data = table(tmp_path / "t.csv", "id;patient;split;folder;site", "a1;A;train;x/p1;7", "b1;B;val;x/p2;8")
    make(tmp_path, "x/p1/", "x/p2/")
    (tmp_path / "x/p1/notes.csv").touch()
    one, two = find_records(tmp_path, data)
    assert (one.key, one.group, one.split) == ("a1", "A", "train")
    assert (two.key, two.group, two.split) == ("b1", "B", "validation")
    assert {*one.files} == ROLES
    assert names(one, tmp_path)["RightParotid"] == "x/p1/Parotid_R.csv"
    (input_, _) = find_inputs(tmp_path / "t.csv")
    assert {*input_.files} == ROLES - {"dose"}


def test_a_table_of_files(tmp_path: Path) -> None:
    """A column for each file, or a folder of the regions; a column goes before what a folder holds."""
    make(tmp_path, "p1_", "p2/")
    (tmp_path / "other_ct.csv").touch()
    data = table(
        tmp_path / "t.csv",
        "id,folder,ct,dose,dose_mask,voxels,Parotid_R,structures",
        "1,,p1_CT.csv,p1_RTDOSE.csv,p1_dose-mask.csv,p1_VoxelSize.csv,p1_Parotid_R.csv,p2",
        "2,p2,other_ct.csv,,,,,",
    )
    one, two = find_records(tmp_path, data)
    assert names(one, tmp_path)["RightParotid"] == "p1_Parotid_R.csv"
    assert names(one, tmp_path)["PTV70"] == "p2/PTV_7000.csv"
    assert names(two, tmp_path)["ct"] == "other_ct.csv"
    assert names(two, tmp_path)["dose"] == "p2/RTDOSE.csv"


@pytest.mark.parametrize(
    "pattern, files", [("{id}_{role}.csv", "a/p_1_"), ("{id}/{role}.csv", "a/p_1/"), ("{id}/x/{role}.csv", "p_1/x/")]
)
def test_patterns(tmp_path: Path, pattern: str, files: str) -> None:
    """An id may hold the mark before the role."""
    make(tmp_path, files, files.replace("1", "2"))
    (tmp_path / f"{files}lung.csv").touch()
    with collect_left_out() as said:
        records = find_records(tmp_path, FilesConfig(pattern=(pattern,)))
    assert [(r.key, r.group, {*r.files}) for r in records] == [("p_1", "p_1", ROLES), ("p_2", "p_2", ROLES)]
    assert ["lung.csv for one: left out" in finding.message for finding in said] == [True]


def test_patterns_with_groups_and_splits(tmp_path: Path) -> None:
    make(tmp_path, "train/P1/a/", "val/P2/a/")
    first, second = find_records(tmp_path, FilesConfig(pattern=("{split}/{group}/{id}/{role}.csv",)))
    assert (first.key, first.group, first.split) == ("train__P1__a", "P1", "train")
    assert (second.key, second.group, second.split) == ("val__P2__a", "P2", "validation")
    assert {*first.files} == {*second.files} == ROLES


def test_predict_uses_the_pattern_where_it_fits(tmp_path: Path) -> None:
    data = FilesConfig(pattern=("{id}_{role}.csv",))
    (record,) = find_inputs(make(tmp_path / "one", "p1_"), data)
    assert (record.key, {*record.files}) == ("p1", ROLES - {"dose"})
    for name in ("ct.csv", "possible_dose_mask.csv", "voxel_dimensions.csv"):
        (tmp_path / "pt_7").mkdir(exist_ok=True)
        (tmp_path / "pt_7" / name).touch()
    with collect_left_out() as said:
        (record,) = find_inputs(tmp_path / "pt_7", data)
    assert record.key == "pt_7"
    assert "found by the challenge's names instead" in said[0].message
    assert [r.key for r in find_inputs(tmp_path / "pt_7" / "ct.csv", data)] == ["pt_7"]


@pytest.mark.parametrize(
    "lines, message",
    [
        (("id,dose", "1,p1/RTDOSE.csv"), r"t\.csv: line 2 has no ct\. Fill it in"),
        (("dose", "p1/RTDOSE.csv"), r"line 2 names neither a folder nor a ct\. It needs a row for each patient"),
        (("folder", "p1", "p1"), "two patients would be called p1"),
        (("id,folder", "1,p1", "2,p1"), r"ct .*p1/CT\.csv is on line 2 and on line 3\. Delete one"),
        (("folder", "p9"), r"line 2: .*p9: no such file"),
        (("folder", "p1/CT.csv"), "not a folder, as the column folder needs"),
        (("folder,ct,image", "p1,,"), "the columns 'ct' and 'image' say the same thing"),
        (("id,ct,dose_mask,voxels", "1,p1/CT.csv,p1/dose-mask.csv,p1/VoxelSize.csv"),
         r"1: .*t\.csv names no dose for it \(1 of 1 patient\)"),
        (("folder", "../p1"), r"the path \.\./p1 has `\.\.` in it"),
        (("folder,ct", "p1,notes.txt"), r"notes\.txt: not of a format that this project reads"),
    ],
)  # fmt: skip
def test_tables_that_are_refused(tmp_path: Path, lines: tuple[str, ...], message: str) -> None:
    make(tmp_path, "p1/")
    (tmp_path / "notes.txt").touch()
    with pytest.raises(BadInput, match=message):
        find_records(tmp_path, table(tmp_path / "t.csv", *lines))


def test_two_files_of_one_role_are_refused(tmp_path: Path) -> None:
    make(tmp_path, "p1/")
    (tmp_path / "p1" / "cord.csv").touch()
    with pytest.raises(BadInput, match=r"cord\.csv and spinal_cord\.csv are both its SpinalCord"):
        find_records(tmp_path, FilesConfig(pattern=("{id}/{role}.csv",)))
    (tmp_path / "p1" / "SpinalCord.csv").touch()  # the challenge's own name
    (record,) = find_records(tmp_path, FilesConfig(pattern=("{id}/{role}.csv",)))
    assert record.files["SpinalCord"].name == "SpinalCord.csv"


@pytest.mark.parametrize(
    "pattern, message",
    [
        ("{id}.csv", r"it lacks \{role\}"),
        ("{id}/{rol}.csv", r"unknown part \{rol\}; did you mean 'role'"),
        ("x/{id}/{role}.csv", "fits none of the 7 files"),
    ],
)
def test_patterns_that_are_refused(tmp_path: Path, pattern: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        find_records(make(tmp_path, "p1/"), FilesConfig(pattern=(pattern,)))


@pytest.mark.parametrize("layout", ["{0}/", "{0}_", "train/{0}/", "deep/{0}/{0}-"])
def test_a_guess_is_read_back(tmp_path: Path, layout: str) -> None:
    root = make(tmp_path, *(layout.format(name) for name in ("p10", "p9")))
    guessed = guess(root)
    assert [row["id"] for row in guessed.rows] == ["p9", "p10"]
    assert not guessed.left_out
    columns = [name for name, cell in guessed.rows[0].items() if cell]
    lines = [",".join(str(row[name]) for name in columns) for row in guessed.rows]
    records = find_records(root, table(tmp_path / "t.csv", ",".join(columns), *lines))
    assert [(r.key, {*r.files}, r.split) for r in records] == [
        (key, ROLES, "train" if layout.startswith("train") else None) for key in ("p9", "p10")
    ]


def test_a_folder_for_each_kind_of_file(tmp_path: Path) -> None:
    """ct/p1.csv, structures/PTV70/p1.csv: what the guess leaves out has a reason."""
    root = tmp_path
    for kind in ("ct", "dose", "structures/PTV70"):
        (root / kind).mkdir(parents=True)
        for name in ("p1", "p2"):
            (root / kind / f"{name}.csv").touch()
    (root / "dose" / "p3.csv").touch()
    (root / "lung.csv").touch()
    (root / "readme.txt").touch()
    guessed = guess(root)
    assert [(row["id"], Path(row["PTV70"]).parent.name) for row in guessed.rows] == [("p1", "PTV70"), ("p2", "PTV70")]
    assert {why: [path.name for path in paths] for why, paths in guessed.left_out.items()} == {
        "named neither as ct, dose, possible_dose_mask, voxel_dimensions nor as a region": ["lung.csv"],
        "not of a format that this project reads": ["readme.txt"],
        "of a patient without a ct": ["p3.csv"],
    }
