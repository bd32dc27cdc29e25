"""Finding volumes: each layout, and the one message of each way in which it can be incomplete."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest
import zarr
from runner_core import LEFT_OUT, BadInput, PairsConfig, collect_left_out
from runner_vesuvius import phantom
from runner_vesuvius.config import ScrollConfig
from runner_vesuvius.files import deprecated, find_inputs, find_records
from runner_vesuvius.project import Vesuvius
from runner_vesuvius.volumes import read_image


def make(root: Path, *names: str) -> Path:
    """Empty files (folders where a name ends in .zarr): finding reads names only."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir() if name.endswith(".zarr") else path.touch()
    return root


def challenge(root: Path, rows: str = "11,s1\n12,s1\n21,s2\n", ids: tuple[str, ...] = ("11", "12", "21")) -> Path:
    make(root, *(f"{folder}/{key}.tif" for folder in ("train_images", "train_labels") for key in ids))
    (root / "train.csv").write_text(f"id,scroll_id\n{rows}")
    return root


def found(root: Path) -> dict[str, tuple[str, str, str]]:
    """Scroll, image and label by key."""
    return {r.key: (r.group, *(p.relative_to(root).as_posix() for p in r.files.values())) for r in find_records(root)}


def refused(root: Path, message: str, named: str = "") -> None:
    with pytest.raises(BadInput, match=message) as caught:
        find_records(root)
    assert str(root / named) in str(caught.value)
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------- layouts


def test_the_challenges_layout(tmp_path: Path) -> None:
    root = make(challenge(tmp_path), "test_images/31.tif", "test.csv", "sample_submission.csv")
    assert found(root) == {
        key: (scroll, f"train_images/{key}.tif", f"train_labels/{key}.tif")
        for key, scroll in {"11": "s1", "12": "s1", "21": "s2"}.items()
    }


def test_the_challenges_download(tmp_path: Path) -> None:
    """Its train.csv lists 806 volumes; the hosts took 20 of them back, whose files lie in deprecated folders alone."""
    ids = [str(1_000_000 + number) for number in range(806)]
    root = challenge(tmp_path, "".join(f"{key},s{number % 6}\n" for number, key in enumerate(ids)), tuple(ids[20:]))
    old = [f"deprecated_train_{kind}/{key}.tif" for kind in ("images", "labels") for key in ids[:20]]
    make(root, *old, "test_images/31.tif", "test.csv")
    records = find_records(root)
    assert [record.key for record in records] == ids[20:]
    assert deprecated(records) == ids[:20]
    assert {record.key for record in find_inputs(root)} == {*ids[20:], "31"}
    refused_rows = (root / "train.csv").read_text() + "2000000,s1\n"
    (root / "train.csv").write_text(refused_rows)
    refused(root, r"1 row without files \(line 808: 2000000\)", "train.csv")


def test_what_test_csv_lists_is_predicted_or_named(tmp_path: Path) -> None:
    make(tmp_path, "test_images/31.tif")
    (tmp_path / "test.csv").write_text("id,scroll_id\n31.tif,s1\n32,s1\n")
    for place in (tmp_path, tmp_path / "test_images"):
        assert {r.files["image"] for r in find_inputs(place)} == {tmp_path / f"test_images/{n}.tif" for n in (31, 32)}
    (tmp_path / "test.csv").write_text("patient,age\nx,3\n")
    assert [r.key for r in find_inputs(tmp_path)] == ["31"]
    for outside in ("../31", "/etc/hosts", ".."):
        (tmp_path / "test.csv").write_text(f"id\n{outside}\n")
        with pytest.raises(BadInput, match=r"test\.csv: the id .* is no name of a file"):
            find_inputs(tmp_path)


def test_a_table_that_is_a_pipe(tmp_path: Path) -> None:
    make(tmp_path, "test_images/31.tif", "train_images/1.tif", "train_labels/1.tif")
    for name in ("test.csv", "train.csv"):
        os.mkfifo(tmp_path / name)
    refused(tmp_path, "a named pipe", "train.csv")
    with pytest.raises(BadInput, match=r"test\.csv: a named pipe"):
        find_inputs(tmp_path / "test_images")


def test_any_manifest_beside_images(tmp_path: Path) -> None:
    make(tmp_path, "images/a.npy", "labels/a.tif", "images/b.ZARR/zarr.json", "labels/b.TIFF", "volumes.CSV")
    (tmp_path / "volumes.CSV").write_text("﻿Scroll_ID,shape, id \nx,1,a\n\ny,2,b\n")
    assert found(tmp_path) == {
        "a": ("x", "images/a.npy", "labels/a.tif"),
        "b": ("y", "images/b.ZARR", "labels/b.TIFF"),
    }


def test_names_that_say_the_scroll(tmp_path: Path) -> None:
    """Up to the first underscore: too wide a group leaks nothing."""
    make(tmp_path, *(f"{f}/{n}.tif" for f in ("images", "labels") for n in ("A_1", "A_2_x", "B_1")))
    assert {key: group for key, (group, _, _) in found(tmp_path).items()} == {"A_1": "A", "A_2_x": "A", "B_1": "B"}


def test_nnunets_layout(tmp_path: Path) -> None:
    make(tmp_path, "imagesTr/s1_7_0000.tif", "labelsTr/s1_7.tif", "imagesTs/s2_9_0000.tif", "dataset.json")
    assert found(tmp_path) == {"s1_7": ("s1", "imagesTr/s1_7_0000.tif", "labelsTr/s1_7.tif")}
    assert {r.key for r in find_inputs(tmp_path)} == {"s1_7", "s2_9"}


def test_folders_that_say_the_split(tmp_path: Path) -> None:
    make(tmp_path, *(f"{s}/{f}/A_1.tif" for s in ("train", "val") for f in ("images", "labels")), "test/images/C_1.tif")
    assert {r.key: r.split for r in find_records(tmp_path)} == {
        "train__images__A_1_tif": "train",
        "val__images__A_1_tif": "validation",
    }


def test_hidden_files_and_the_inside_of_zarrs_are_no_volumes(tmp_path: Path) -> None:
    challenge(tmp_path)
    make(tmp_path, "train_images/.12.tif", "train_images/notes.txt", "x.zarr/images/A_1.tif", ".old/images/B_1.tif")
    assert set(found(tmp_path)) == {"11", "12", "21"}


def test_the_phantom_is_found(tmp_path: Path) -> None:
    phantom.write_phantom(tmp_path, np.random.default_rng(0), shape=(32, 32, 32))
    records = find_records(tmp_path)
    assert len({r.group for r in records}) == 4
    assert all(p.is_file() for r in records for p in r.files.values())
    assert len(find_inputs(tmp_path)) == len(records) + 1
    assert len(find_inputs(tmp_path / "test_images")) == 1


# ---------------------------------------------------------------- faults of folders


def test_nothing_there(tmp_path: Path) -> None:
    refused(tmp_path / "no", "no such folder")
    refused(make(tmp_path, "x.tif"), "no volumes with labels below it. Looked for train_images")
    refused(tmp_path / "x.tif", "not a folder")
    refused(challenge(tmp_path / "c") / "train_images", f"Did you mean {tmp_path / 'c'}, in which")
    refused(make(tmp_path / "e", "images/.keep", "labels/.keep"), "no volumes with labels")


@pytest.mark.parametrize("there, missing", [("train_images", "train_labels"), ("labelsTr", "imagestr")])
def test_a_folder_without_its_partner(tmp_path: Path, there: str, missing: str) -> None:
    refused(make(tmp_path, f"{there}/A_1.tif"), f"no folder {missing} beside it", there)


def test_a_missing_partner_is_named_where_it_should_be(tmp_path: Path) -> None:
    """Decoding then says so, for every record at once."""
    make(tmp_path, "imagesTr/A_1_0000.tif", "labelsTr/A_2.tif")
    assert found(tmp_path) == {
        "A_1": ("A", "imagesTr/A_1_0000.tif", "labelsTr/A_1.tif"),
        "A_2": ("A", "imagesTr/A_2_0000.tif", "labelsTr/A_2.tif"),
    }


def test_a_partner_of_another_format_is_named(tmp_path: Path) -> None:
    """Decoding then says which are read."""
    make(tmp_path, "images/A_1.nrrd", "labels/A_1.tif", "images/B_1.tif", "labels/B_1.nrrd", "labels/B_1.json")
    assert set(found(tmp_path).values()) == {
        ("A", "images/A_1.nrrd", "labels/A_1.tif"),
        ("B", "images/B_1.tif", "labels/B_1.nrrd"),
    }
    with pytest.raises(BadInput, match=r"A_1\.nrrd: not a format that is read here \(\.tif, .*Convert it"):
        read_image(tmp_path / "images" / "A_1.nrrd")
    make(tmp_path / "nrrd", "images/A_1.nrrd", "labels/A_1.nrrd")
    refused(tmp_path / "nrrd", r"no volumes with labels .* \.nii\.gz or \.zarr volumes\. .*A_1\.nrrd is not read")


def test_two_folders_whose_names_differ_in_case(tmp_path: Path) -> None:
    refused(make(challenge(tmp_path), "Train_Images/11.tif"), "lies beside it. Which is it", "T")


def test_one_id_in_two_files(tmp_path: Path) -> None:
    refused(make(challenge(tmp_path), "train_images/11.npy"), "11.npy beside it has the same id, 11", "train_images")


def test_names_without_a_scroll(tmp_path: Path) -> None:
    """The message says both ways, and which file it is among others that say theirs."""
    for name in ("A_1", "12"):
        make(tmp_path, f"images/{name}.tif", f"labels/{name}.tif")
    refused(tmp_path, r"of which scroll is 12\?.*manifest.csv with the columns id,scroll_id.*SCROLL_ID", "images")
    refused(make(tmp_path / "c", "train_images/7.tif", "train_labels/7.tif"), r"Write .*train\.csv", "train_images")
    for odd in ("_1", "A_"):
        refused(make(tmp_path / odd, f"images/{odd}.tif", f"labels/{odd}.tif"), f"of which scroll is {odd}")


# ---------------------------------------------------------------- faults of manifests


@pytest.mark.parametrize(
    "rows, message",
    [
        ("11,s1\n12,s1\n", "no row for 21, of which files are there"),
        ("11,s1\n", r"no row for 12 and 1 other volume, .* Add the row"),
        ("11,s1\n12,s1\n21,s2\n31,s3\n", r"1 row without files \(line 5: 31\)"),
        ("11,s1\n12,s1\n21,s2\n../../x,s3\n", r"1 row without files \(line 5: \.\./\.\./x\)"),
        ("11,s1\n12,s1\n21,s2\n11,s2\n", "id 11 is on line 2 and on line 5"),
        ("11,s1\n12,s1\n21,s2\n11.tif,s2\n", "id 11 is on line 2 and on line 5"),
        ("11.0,s1\n12.0,s1\n21.0,s2\n", r"no row for 11 .*did you mean '11\.0'\?"),
        ("11,s1\n12,s1\n21\n", "line 4 has 1 value, the first line 2 names"),
        ("11,s1\n12,s1\n21,\n", "line 4 has no scroll_id"),
        ("11,s1\n12,s1\n ,s2\n", "line 4 has no id"),
        ('11,s1\n12,"s1\nx"\n21,s2\n', "line 4 has a line break"),
        ("11,s1\n12,\x1b[31ms1\n21,s2\n", "line 3 has a line break or another control character"),
        ('11,s1\n12,"s1\n', "not a readable table"),
    ],
)
def test_rows_that_do_not_fit(tmp_path: Path, rows: str, message: str) -> None:
    refused(challenge(tmp_path, rows), message, "train.csv")


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "no row below the names of its columns. A manifest has the columns id and scroll_id"),
        (b"id|scroll_id\n11|s1\n", "no column 'id'.*its first line is 'id.scroll_id'"),
        (b"id,scrol_id\n11,s1\n", "no column 'scroll_id'.*did you mean"),
        (b"id,scroll_id\n", "no row below the names of its columns"),
        (b"id,scroll_id\n\xff\xfe,s1\n", "is not UTF-8 text. Save it as CSV UTF-8"),
        ("id,scroll_id\n11,s1\n".encode("utf-16"), "is not UTF-8 text"),
        ("id,scroll_id\n11,s1\n".encode("utf-16-le"), "is not UTF-8 text"),
        (b"id,scroll_id\n11,s\0\n", "is not UTF-8 text"),
        (b"id,scroll_id\n" + b"1" * 10**6 + b",s1\n", "not a readable table"),
        (b"id,scroll_id\n" + b"1" * 10**5 + b",s1\n", "no row for 11 and 2 other volumes"),
        (b"\x89PNG\r\n\x1a\n\0\0", "is not UTF-8 text"),
    ],
)
def test_other_files_named_csv(tmp_path: Path, content: bytes, message: str) -> None:
    (challenge(tmp_path) / "train.csv").write_bytes(content)
    refused(tmp_path, message, "train.csv")


def test_rows_that_name_the_files(tmp_path: Path) -> None:
    root = challenge(tmp_path, "11.tif,s1\n12.TIF,s1\n21.npy,s2\n")
    assert {key: scroll for key, (scroll, _, _) in found(root).items()} == {"11": "s1", "12": "s1", "21": "s2"}


def test_two_manifests(tmp_path: Path) -> None:
    make(tmp_path, "images/A_1.tif", "labels/A_1.tif", "one.csv", "two.csv")
    refused(tmp_path, "which of one.csv, two.csv is the manifest")


# ---------------------------------------------------------------- inputs


def test_inputs(tmp_path: Path) -> None:
    make(tmp_path, "A_1.tif", "deep/B_2.npy", "c.zarr", "labels/A_1.tif", "notes.txt")
    zarr.create_array(tmp_path / "c.zarr" / "0", data=np.zeros((2, 2, 2), np.uint8))
    assert {r.key for r in find_inputs(tmp_path)} == {"A_1", "B_2", "c"}
    for name in ("A_1.tif", "c.zarr"):
        (record,) = find_inputs(tmp_path / name)
        assert record.files == {"image": tmp_path / name}
    with pytest.raises(BadInput, match=r"notes\.txt: not a volume"):
        find_inputs(tmp_path / "notes.txt")
    with pytest.raises(BadInput, match="no volume below it"):
        find_inputs(make(tmp_path / "e", "x.txt"))
    with pytest.raises(BadInput, match="no such folder"):
        find_inputs(tmp_path / "no")


# ---------------------------------------------------------------- the user's own table or patterns


def test_a_table_and_patterns(tmp_path: Path) -> None:
    make(tmp_path, "a/A_1.tif", "b/x.npy", "a/2.tif", "b/y.zarr")
    table = tmp_path / "t.tsv"
    table.write_text("id\timage\tlabel\tscroll_id\none\ta/A_1.tif\tb/x.npy\ts1\ntwo\ta/2.tif\tb/y.zarr\ts2\n")
    records = find_records(tmp_path, PairsConfig(manifest=table))
    assert [(r.key, r.group, r.files["label"].name) for r in records] == [
        ("one", "s1", "x.npy"),
        ("two", "s2", "y.zarr"),
    ]
    assert [r.key for r in find_inputs(table)] == ["one", "two"]
    make(tmp_path, "v/A_3_ct.tif", "v/A_3_surf.zarr")
    (record,) = find_records(tmp_path, PairsConfig(pattern=("v/{group}_{id}_ct.tif", "v/{group}_{id}_surf.zarr")))
    assert (record.key, record.group, record.files["label"].name) == ("3", "A", "A_3_surf.zarr")
    with pytest.raises(BadInput, match="of which scroll is it"):
        find_records(make(tmp_path, "w/2.tif"), PairsConfig(pattern=("w/{id}.tif", "z/{id}.tif")))


def test_a_manifest_that_patterns_leave_unread_is_said(tmp_path: Path) -> None:
    make(tmp_path, "train_images/2.tif", "train_labels/2.tif")
    (tmp_path / "train.csv").write_text("id,scroll_id\n2,s1\n")
    data = PairsConfig(pattern=("train_images/{id}.tif", "train_labels/{id}.tif"))
    unread = r"train\.csv is not read with data\.pattern or data\.manifest; a table .* id,image,label,scroll is\."
    with pytest.raises(BadInput, match=f"of which scroll is it.*{unread}$"):
        find_records(tmp_path, data)
    for name in ("train_images/2.tif", "train_labels/2.tif"):
        (tmp_path / name).rename((tmp_path / name).with_name("A_2.tif"))
    config = ScrollConfig()
    config.data.pattern = data.pattern
    project = Vesuvius(config)
    with collect_left_out() as left_out:
        assert [record.group for record in project.records(tmp_path)] == ["A"]
    (said,) = left_out
    assert (said.rule, said.level) == (LEFT_OUT, "note")
    assert re.search(f"{unread} The files' names say the scrolls", said.message)


def test_predict_says_what_it_leaves_out(tmp_path: Path) -> None:
    make(tmp_path, "images/A_1.tif", "labels/A_1.tif", "x.tif")
    with collect_left_out() as said:
        find_inputs(tmp_path)
    assert [finding.message for finding in said] == [
        f"{tmp_path}: 2 volumes left out, in no folder of images: x.tif, labels/A_1.tif"
    ]
