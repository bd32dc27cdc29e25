"""Pairs of images and labels: by table, by pattern, from two folders; each way in which they can be wrong."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runner_core import BadInput, DataErrors, Decoded, Original
from runner_core.config import PairsConfig, RunConfig
from runner_core.data.pairs import Pair, Pattern, content, find_folder_pairs, list_pairs, read_table
from runner_core.data.pairs.content import holds_classes
from runner_core.training.data import data_folder, kept_phantom

SUFFIXES = (".nii.gz", ".nii", ".zarr")


def is_image(path: Path) -> bool:
    return path.name.endswith(SUFFIXES)


def stem(path: Path) -> str:
    return path.name.split(".")[0]


def make(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def find(root: Path, manifest: Path | None = None, *pattern: str) -> list[Pair]:
    found = list_pairs(root, PairsConfig(manifest=manifest, pattern=pattern), is_image, stem, labelled=False)
    assert found is not None
    return found


def shown(pairs: list[Pair], root: Path) -> list[tuple[object, ...]]:
    return [
        (
            p.key,
            p.image.relative_to(root).as_posix(),
            p.label and p.label.relative_to(root).as_posix(),
            p.group,
            p.split,
        )
        for p in pairs
    ]


@pytest.mark.parametrize(
    "values, mask",
    [([0, 1], True), ([0, 255], True), ([0.0, 1.0, 2.0], True), ([0.0, 0.5], False), ([7], False), (range(9), False)],
)
def test_a_mask_is_told_from_an_image_by_its_values(values: Any, mask: bool) -> None:
    image = np.zeros((80, 40, 40), np.asarray(values).dtype)
    image.flat[-len(values) :] = values  # few voxels, as in a small lesion
    image[image == 0] = values[0]
    assert holds_classes(Decoded({"image": image}, (1.0,) * 3, "image")) is mask
    resampled = np.linspace(0, 1, 1000).reshape(10, 10, 10)
    kept = Decoded({"image": resampled}, (1.0,) * 3, "image", original=Original(image, (1.0,) * 3))
    assert holds_classes(kept) is mask


def test_an_image_that_looks_like_a_mask_at_first_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "_PART", 64)
    image = np.zeros(1000, np.uint8)
    image[501:504] = 1, 2, 3
    assert holds_classes(Decoded({"image": image}, (1.0,), "image"))
    image[999] = 4
    assert not holds_classes(Decoded({"image": image}, (1.0,), "image"))


# ---------------------------------------------------------------- tables


@pytest.mark.parametrize("name, mark", [("a.csv", ","), ("a.CSV", ";"), ("a.tsv", "\t")])
def test_a_table_says_it_all(tmp_path: Path, name: str, mark: str) -> None:
    make(tmp_path, "x/1.nii", "x/1m.nii", "2.nii.gz", "masks/2.nii.gz")
    rows = [
        "ID,Age, Image ,mask,patient,split",
        "one,30,x/1.nii,x/1m.nii,P1,train",
        "",
        "two,,2.nii.gz,masks/2.nii.gz,P2,Val",
    ]
    (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + "\r\n".join(rows).replace(",", mark).encode())
    expected = [
        ("one", "x/1.nii", "x/1m.nii", "P1", "train"),
        ("two", "2.nii.gz", "masks/2.nii.gz", "P2", "validation"),
    ]
    assert shown(find(tmp_path, tmp_path / name), tmp_path) == expected
    assert shown(find(tmp_path / name), tmp_path) == expected


def test_a_table_of_images_alone(tmp_path: Path) -> None:
    make(tmp_path, "a/scan.nii", "b/scan.nii", "c.nii")
    (tmp_path / "t.csv").write_text(f"image,mask\na/scan.nii,\n{tmp_path}/b/scan.nii,c.nii\nc.nii,")
    assert shown(find(tmp_path, tmp_path / "t.csv"), tmp_path) == [
        ("a__scan_nii", "a/scan.nii", None, None, None),
        ("b__scan_nii", "b/scan.nii", "c.nii", None, None),
        ("c", "c.nii", None, None, None),
    ]


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "no row below the names"),
        ("image,mask", "no row below the names"),
        ("imag,mask\na.nii,", "no column 'image'; did you mean 'imag'"),
        ("image,mask\na.nii", "line 2 has 1 value, the first line 2 names"),
        ("image,mask\n,b.nii", "line 2 has no image"),
        ("image,mask\n../a.nii,b.nii", "line 2: the path ../a.nii has `..` in it. Write it in full"),
        ("image,mask\nx/../../a.nii,b.nii", "the path x/../../a.nii has `..` in it"),
        ("image,mask\na.nii,http://x/b.nii", "not a path on this machine"),
        ("image,mask\na.nii,b.txt", "b.txt: not of a format"),
        ("image,mask\nc.nii,b.nii", "line 2: .*c.nii: no such file"),
        ("image,mask\na.nii,b.nii\n./a.nii,b.nii", "is on line 2 and on line 3"),
        ("image,mask\n" + "a" * 5000 + ".nii,b.nii", "line 2: .*cannot be read .File name too long"),
        ("image,mask\na.nii,a.nii", "a.nii is the image and its own label"),
        ("image,mask\n~nobody/a.nii,b.nii", "line 2: .*no such file"),
        ("image,scan\na.nii,b.nii", "columns 'image' and 'scan' say the same"),
        ("image,mask,id\na.nii,b.nii,../x", "id '../x' cannot be part of a file's name"),
        ("image,mask,id\na.nii,b.nii," + "x" * 151, "an id of 151 characters"),
        ("image,mask,id\na.nii,b.nii,x\nb.nii,a.nii,x", "id x is on line 2 and on line 3"),
        ("image,mask,group\na.nii,b.nii,", "line 2 has no group"),
        ("image,mask,split\na.nii,b.nii,fold1", "unknown split 'fold1': write one of train"),
        ('image,mask\n"a.nii,b.nii', "not a readable table"),
        ("image,mask\na.nii\0,b.nii", "not UTF-8"),
    ],
)
def test_what_is_wrong_with_a_table_is_said_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    make(tmp_path, "a.nii", "b.nii", "b.txt")
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(BadInput, match=message) as caught:
        find(tmp_path, tmp_path / "t.csv")
    assert "t.csv" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_file_that_is_gone_is_named(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("image,mask\na.nii,b.nii")
    with pytest.raises(DataErrors) as caught:
        find(tmp_path, tmp_path / "t.csv")
    assert len(caught.value.errors) == 2


def test_a_table_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(BadInput, match=r"pipe.csv: a named pipe"):
        find(tmp_path / "pipe.csv")
    with pytest.raises(BadInput, match=r"t.csv: no such file"):
        find(tmp_path, tmp_path / "t.csv")
    (tmp_path / "t.csv").write_bytes("image,mask\nä,b".encode("utf-16-le"))
    with pytest.raises(BadInput, match=r"not UTF-8"):
        find(tmp_path, tmp_path / "t.csv")
    monkeypatch.setattr("runner_core.data.pairs.table.MOST_BYTES", 10)
    with pytest.raises(BadInput, match=r"at most 10 B"):
        read_table(tmp_path / "t.csv", "")


def test_a_table_that_lies_elsewhere_is_pointed_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(make(tmp_path, "own/pairs.csv", "own/lists/more.csv"))
    for name in ("pairs.csv", "lists/more.csv", "elsewhere/pairs.csv"):
        there = tmp_path / "own" / name.removeprefix("elsewhere/")
        with pytest.raises(BadInput) as caught:
            find(tmp_path / "own", Path(name))
        assert str(caught.value) == (
            f"{tmp_path / name}: no such file; there is one at {there}: write --data.manifest {there}."
        )
    with pytest.raises(BadInput, match=r"own: a folder, not a table\. Name the CSV or TSV file itself"):
        find(tmp_path, Path("own"))


# ---------------------------------------------------------------- patterns


def test_patterns_pair_by_id(tmp_path: Path) -> None:
    make(
        tmp_path,
        *(f"{s}/T1/P{n}_a.nii" for s, n in (("train", 1), ("val", 2))),
        "train/M/P1_a_x.nii",
        "val/M/P2_a_y.nii",
    )
    assert shown(find(tmp_path, None, "{split}/T1/{id}.nii", "M/{id}_*.nii"), tmp_path) == [
        ("P1_a", "train/T1/P1_a.nii", "train/M/P1_a_x.nii", None, "train"),
        ("P2_a", "val/T1/P2_a.nii", "val/M/P2_a_y.nii", None, "validation"),
    ]


def test_a_name_that_both_patterns_fit(tmp_path: Path) -> None:
    make(tmp_path, "P1_s1.nii", "P1_s1_lesion.nii", "P1_s2.nii", "P1_s2_brain_x.nii")
    assert shown(find(tmp_path, None, "{id}.nii", "{id}_*.nii"), tmp_path) == [
        ("P1_s1", "P1_s1.nii", "P1_s1_lesion.nii", None, None),
        ("P1_s2", "P1_s2.nii", "P1_s2_brain_x.nii", None, None),
    ]


def test_one_flat_folder_and_groups_in_names(tmp_path: Path) -> None:
    make(tmp_path, "P1_s1.nii", "P1_s1_mask.nii", "P2_s1.nii", "P2_s1_mask.nii", "notes.txt")
    assert shown(find(tmp_path, None, "{group}_{id}.nii", "{group}_{id}_mask.nii"), tmp_path) == [
        ("P1_s1", "P1_s1.nii", "P1_s1_mask.nii", "P1", None),
        ("P2_s1", "P2_s1.nii", "P2_s1_mask.nii", "P2", None),
    ]


def test_the_nearest_label_is_taken_and_of_two_as_near_none(tmp_path: Path) -> None:
    make(tmp_path, "a/i/1.nii", "a/m/1.nii", "b/i/1.nii", "b/m/1.nii")
    assert [p.label for p in find(tmp_path, None, "i/{id}.nii", "m/{id}.nii")] == [
        tmp_path / "a/m/1.nii",
        tmp_path / "b/m/1.nii",
    ]
    make(tmp_path, "a/m/m/1.nii")
    with pytest.raises(BadInput, match=r"2 labels fit data\.pattern"):
        find(tmp_path, None, "i/{id}.nii", "m/{id}.nii")


def test_a_partner_that_is_gone_is_named_where_it_was_looked_for(tmp_path: Path) -> None:
    make(tmp_path, "x/i/1.nii", "x/i/2.nii", "x/m/1.nii")
    assert [p.label for p in find(tmp_path, None, "i/{id}.nii", "m/{id}.nii")] == [
        tmp_path / "x/m/1.nii",
        tmp_path / "x/m/2.nii",
    ]
    make(tmp_path, "x/m/3.nii")
    with pytest.raises(BadInput, match=r"x/m/3.nii: its image, 'i/3.nii', is missing"):
        find(tmp_path, None, "i/{id}.nii", "m/{id}.nii")


@pytest.mark.parametrize(
    "pattern, message",
    [
        ("scans/{name}.nii", r"unknown part \{name\}"),
        ("scans/*.nii", r"it lacks \{id\}"),
        ("/scans/{id}.nii", "without a leading /"),
        ("../{id}.nii", r"without \.\."),
        ("{id}{group}.nii", "put text between two parts"),
        ("{id.nii", "braces hold a name"),
        ("{}.nii", "braces hold a name"),
        ("{id}" + "a*" * 30, "more than 40 pieces"),
        ("", "a path below the data"),
        ("nowhere/{id}.nii", "fits none of the 1 files"),
    ],
)
def test_patterns_that_cannot_be_used(tmp_path: Path, pattern: str, message: str) -> None:
    make(tmp_path, "a.nii")
    with pytest.raises(BadInput, match=message):
        find(tmp_path, None, pattern)


def test_a_table_and_a_pattern_are_one_too_many(tmp_path: Path) -> None:
    make(tmp_path, "t.csv")
    for root, manifest in ((tmp_path, tmp_path / "t.csv"), (tmp_path / "t.csv", None)):
        with pytest.raises(BadInput, match=r"data.pattern and the table .*t.csv both say .*: leave one out"):
            find(root, manifest, "{id}.nii")
    with pytest.raises(BadInput, match="has 3 patterns"):
        find(tmp_path, None, "{id}.nii", "{id}_a.nii", "{id}_b.nii")


def test_no_name_and_no_pattern_make_the_search_run_long() -> None:
    """A regular expression with as many parts would take longer than the universe lasts."""
    assert Pattern("*a" * 19 + "{id}b", ("id",)).match("a" * 255) is None


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(["a", "_", "ab"]), min_size=2, max_size=4), st.text("ab_", min_size=1, max_size=6))
def test_a_filled_pattern_fits_and_what_it_finds_fills_it(plain: list[str], own: str) -> None:
    pattern = Pattern("{id}".join(plain[:2]) + "/" + "".join(plain) + "{id}.nii", ("id",))
    path = pattern.filled({"id": own})
    found = pattern.match(f"folder/{path}")
    assert found is not None
    assert pattern.filled(found) == path


# ---------------------------------------------------------------- folders


def test_folders_side_by_side(tmp_path: Path) -> None:
    make(tmp_path, "a/Images/1.nii", "a/masks/1.nii.gz", "a/Images/2.nii", "a/masks/3.nii", "val/imagesTr/x.nii")
    make(tmp_path, "val/labelsTr/x.nii", "val/labelsTr/x.json", "test/images/9.nii")
    assert shown(find_folder_pairs(tmp_path, is_image, stem), tmp_path) == [
        ("1", "a/Images/1.nii", "a/masks/1.nii.gz", None, None),
        ("2", "a/Images/2.nii", "a/masks/2.nii", None, None),
        ("3", "a/Images/3.nii", "a/masks/3.nii", None, None),
        ("x", "val/imagesTr/x.nii", "val/labelsTr/x.nii", None, "validation"),
    ]


def test_a_partner_of_another_format_is_named(tmp_path: Path) -> None:
    make(tmp_path, "images/1.nii", "masks/1.png")
    (pair,) = find_folder_pairs(tmp_path, is_image, stem)
    assert pair.label == tmp_path / "masks/1.png"


@pytest.mark.parametrize("names, message", [
    (("images/1.nii", "images/1.nii.gz", "masks/1.nii"), "has the same id, 1"),
    (("images/1.nii", "labels/1.nii", "masks/1.nii"), "labels and masks lie beside it"),
])  # fmt: skip
def test_folders_that_leave_a_choice(tmp_path: Path, names: tuple[str, ...], message: str) -> None:
    make(tmp_path, *names)
    with pytest.raises(BadInput, match=message):
        find_folder_pairs(tmp_path, is_image, stem)


@pytest.mark.parametrize("name, value", [("manifest", Path("/lists/a b.csv")), ("pattern", ("{id}.nii",))])
def test_names_of_files_without_data_are_refused(name: str, value: Any) -> None:
    setup: Any = SimpleNamespace(source=None, config=RunConfig(data=PairsConfig(**{name: value})))
    with pytest.raises(BadInput, match=f"data.{name} is set, and --data is not: name the folder of "):
        data_folder(setup, print)


def test_a_fault_of_a_setting_is_not_the_phantoms(tmp_path: Path) -> None:
    setup: Any = SimpleNamespace(source=None, config=RunConfig())
    for message, of_data in (("train.seed: none", False), ("train.seed is odd", False), ("a.npy: train.seed", True)):
        with pytest.raises(BadInput) as refusal, kept_phantom(setup, tmp_path):
            raise BadInput(message)
        assert ("raise phantom_version" in str(refusal.value)) == of_data
