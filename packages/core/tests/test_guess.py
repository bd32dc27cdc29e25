"""Which images, labels and groups the names in a folder stand for (`init-data`)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from runner_core import BadInput
from runner_core.cli.init_data import _guess, table_text
from runner_core.config import PairsConfig
from runner_core.contract.facets import DataSet, PairFiles
from runner_core.data.pairs import list_pairs
from runner_core.data.pairs.guess import Guess, guess_pairs, name_endings
from runner_core.data.pairs.table import typed

END = ".nii.gz"


def is_image(path: Path) -> bool:
    return path.name.endswith(END)


def stem(path: Path) -> str:
    return path.name.removesuffix(END)


def guessed(root: Path, names: str, labelled: bool = True) -> Guess:
    """Guess from empty files with these names; those without a suffix are images."""
    for name in names.split():
        file = root / (name if "." in name else f"{name}{END}")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("", encoding="utf-8")
    return guess_pairs(root, PairFiles(is_image, stem, labelled))


def pairs(guess: Guess, root: Path) -> dict[str, str | None]:
    named = [(row.image, row.label) for row in guess.rows]
    below = [[None if p is None else str(p.relative_to(root)).removesuffix(END) for p in pair] for pair in named]
    return {str(image): label for image, label in below}


@pytest.mark.parametrize(
    "names, found, groups",
    [
        ("p1_T1 p1_brainmask p2_T1 p2_brainmask", {"p1_T1": "p1_brainmask", "p2_T1": "p2_brainmask"}, "p1 p2"),
        ("a1 a1_mask a2 mask_a2 a3 a3-seg", {"a1": "a1_mask", "a2": "mask_a2", "a3": "a3-seg"}, "a1 a2 a3"),
        ("images/x1 labels/x1 images/x2 labels/x2", {"images/x1": "labels/x1", "images/x2": "labels/x2"}, "x1 x2"),
        ("train_images/7 train_labels/7 test_images/8 test_labels/8",
         {"train_images/7": "train_labels/7", "test_images/8": "test_labels/8"}, "7 8"),
        ("one/scan one/mask two/scan two/mask", {"one/scan": "one/mask", "two/scan": "two/mask"}, "one two"),
        ("p1_t2 p1_t1 p1_flair p1_seg", {"p1_t1": "p1_seg"}, "p1_t1"),
        ("sub-01/ses-1/anat/sub-01_ses-1_T1w sub-01/ses-1/anat/sub-01_ses-1_T1w_mask sub-01/ses-2/anat/sub-01_ses-2_T1w"
         " derivatives/x/sub-01/ses-2/anat/sub-01_ses-2_label-brain_mask",
         {"sub-01/ses-1/anat/sub-01_ses-1_T1w": "sub-01/ses-1/anat/sub-01_ses-1_T1w_mask"}, "sub-01"),
        ("c_P1_v1 c_P1_v1_gt c_P1_v2 c_P1_v2_gt c_P2_v1 c_P2_v1_gt",
         {"c_P1_v1": "c_P1_v1_gt", "c_P1_v2": "c_P1_v2_gt", "c_P2_v1": "c_P2_v1_gt"}, "c_P1 c_P2"),
    ],
)  # fmt: skip
def test_names_of_many_kinds(tmp_path: Path, names: str, found: dict[str, str], groups: str) -> None:
    guess = guessed(tmp_path, names)
    assert pairs(guess, tmp_path) == found
    assert {row.group for row in guess.rows} == {*groups.split()}
    listed = [path for paths in guess.left_out.values() for path in paths]
    used = [path for row in guess.rows for path in (row.image, row.label)]
    assert sorted(map(str, [*listed, *used])) == sorted(str(p) for p in tmp_path.rglob("*") if p.is_file()), (
        "each file is in the table or among those left out, once"
    )


def test_what_is_left_out_has_a_reason(tmp_path: Path) -> None:
    guess = guessed(tmp_path, "p1_t1 p1_t2 p1_mask p1_mask2 p2_t1 p3_mask notes.txt")
    assert {why: [path.name.removesuffix(END) for path in paths] for why, paths in guess.left_out.items()} == {
        "not of a format that this project reads": ["notes.txt"],
        "further images beside one label, of which t1 is taken": ["p1_t2"],
        "another label of an image that has one": ["p1_mask2"],
        "images for which no label was found": ["p2_t1"],
        "labels for which no image was found": ["p3_mask"],
    }


def test_groups_of_a_table_in_the_folder(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("id,scroll_id\n1,A\n2,A\n3,B\n", encoding="utf-8")
    guess = guessed(tmp_path, "1 2 3 1_mask 2_mask 3_mask")
    assert [(row.id, row.group) for row in guess.rows] == [("1", "A"), ("2", "A"), ("3", "B")]
    assert guess.groups == "from train.csv"


@pytest.mark.parametrize("elsewhere", [False, True])
def test_the_table_is_read_back_as_it_was_guessed(tmp_path: Path, elsewhere: bool) -> None:
    data, table = tmp_path / "data", tmp_path / ("other" if elsewhere else "data") / "table.csv"
    guess = guessed(data, "train/p10_T1 train/p10_mask train/p9_T1 train/p9_mask val/p8_T1 val/p8_mask")
    table.parent.mkdir(exist_ok=True)
    table.write_text(table_text(guess.table(data), table.parent), encoding="utf-8")
    assert (str(data) in table.read_text(encoding="utf-8")) is elsewhere
    read = list_pairs(table, PairsConfig(), is_image, stem)
    assert read is not None
    assert [(p.key, p.group, p.split, p.image, p.label) for p in read] == [
        (row.id, row.group, row.split, row.image, row.label) for row in guess.rows
    ]
    assert [row.id for row in guess.rows] == ["p9_T1", "p10_T1", "p8_T1"]


@pytest.mark.parametrize("end", ["csv", "tsv", "parquet"])
def test_other_columns_are_values_of_a_pair(tmp_path: Path, end: str) -> None:
    guessed(tmp_path, "a a_mask b b_mask")
    columns = {
        "image": ["a.nii.gz", "b.nii.gz"], "label": ["a_mask.nii.gz", "b_mask.nii.gz"], "group": ["p1", "p2"],
        "Class": ["round", "flat"], "age": ["61", ""], "weight": ["7.5", "8"],
    }  # fmt: skip
    table = tmp_path / f"table.{end}"
    if end == "parquet":
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.table({**columns, "age": [61, None], "weight": [7.5, 8.0]}), table)
    else:
        rows = [columns.keys(), *zip(*columns.values(), strict=True)]
        table.write_text("".join({"csv": ",", "tsv": "\t"}[end].join(row) + "\n" for row in rows), encoding="utf-8")
    read = list_pairs(table, PairsConfig(), is_image, stem)
    assert read is not None
    assert [(pair.key, pair.group, pair.values) for pair in read] == [
        ("a", "p1", {"class": "round", "age": 61, "weight": 7.5}),
        ("b", "p2", {"class": "flat", "age": None, "weight": 8.0}),
    ]


def test_parquet_that_cannot_be_read_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "table.parquet"
    with pytest.raises(BadInput, match="no such file"):
        list_pairs(table, PairsConfig(), is_image, stem)
    table.write_bytes(b"hello")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(BadInput, match=r"needs the package pyarrow: install it, or save CSV instead"):
        list_pairs(table, PairsConfig(), is_image, stem)
    monkeypatch.undo()
    pytest.importorskip("pyarrow.parquet")
    with pytest.raises(BadInput, match="cannot be read as parquet"):
        list_pairs(table, PairsConfig(), is_image, stem)


@pytest.mark.parametrize(
    "names, endings",
    [
        (["p1_head.npy", "p1_skull.npy", "q/p_2_head.npy", "q/p_2_skull.npy"], ("_head.npy", "_skull.npy")),
        (["p1_head.npy", "p1_skull.npy", "p2_head.npy", "p2_brain.npy"], None),
        (["p1_head.npy", "p1_skull.npy", "p1_eye.npy"], None),
        (["p1.npy", "p2.npy"], None),
        (["p_1.npy", "p_1_by_hand.npy", "q/p_2.npy", "q/p_2_by_hand.npy"], (".npy", "_by_hand.npy")),
        (["p_1.npy", "p_1_by_hand.npy", "p_2.npy"], None),
        (["p_1.npy", "p_1_by_hand.npy", "p_2.npy", "p_2_drawn.npy"], None),
        (["p.npy", "p_1.npy", "p_2.npy"], None),
        (["p1.npy", "p10.npy"], None),
        ([], None),
    ],
)
def test_two_endings_that_all_names_share(tmp_path: Path, names: list[str], endings: object) -> None:
    for name in names:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x" * (9 if "head" in name else 3))
    assert name_endings([tmp_path / name for name in names], lambda path: path.stem) == endings


@pytest.mark.parametrize(
    "cells, found",
    [
        (["1", "-2", "+3", "0"], [1, -2, 3, 0]),
        (["1", "2.5", ".5", "3.", "1e-3"], [1, 2.5, 0.5, 3.0, 0.001]),
        (["nan", "inf", ""], ["nan", "inf", None]),
        (["0012", "1_000", "1e999"], ["0012", "1_000", "1e999"]),
        ([".", "-", "e5"], [".", "-", "e5"]),
    ],
)
def test_a_cell_is_a_number_if_it_can_be_one_whatever_the_other_rows_are(cells: list[str], found: list[object]) -> None:
    values = [typed(cell) for cell in cells]
    assert values == found
    assert [type(one) for one in values] == [type(one) for one in found]


def test_a_project_that_reads_no_table_says_so(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="project cells reads no table of files"):
        _guess("cells", tmp_path, DataSet())
