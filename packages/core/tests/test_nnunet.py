"""Folds and descriptions of datasets in nnU-Net's format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from runner_core import BadInput, nnunet_cases, write_nnunet_dataset
from runner_core.data import nnunet


def test_names_are_parts_of_file_names_and_unique() -> None:
    assert nnunet_cases({Path("a.nii"): "s 1/x"}) == {Path("a.nii"): "s_1_x"}
    with pytest.raises(BadInput, match=r"a\.nii and b\.nii: both would be called s_1 there"):
        nnunet_cases({Path("a.nii"): "s_1", Path("b.nii"): "s/1"})


def test_one_group_has_no_folds(tmp_path: Path) -> None:
    write_nnunet_dataset(tmp_path, {"a": "g", "b": "g"}, {"background": 0, "brain": 1}, "T1", ".nii.gz")
    assert [path.name for path in tmp_path.iterdir()] == ["dataset.json"]
    assert json.loads((tmp_path / "dataset.json").read_text()) == {
        "channel_names": {"0": "T1"},
        "labels": {"background": 0, "brain": 1},
        "numTraining": 2,
        "file_ending": ".nii.gz",
    }


def test_folds_hold_whole_groups_and_every_volume_once() -> None:
    groups = {
        f"{group}_{n}": group
        for group, count in zip("ABCDEFG", (9, 1, 2, 5, 1, 3, 2), strict=True)
        for n in range(count)
    }
    found = nnunet.nnunet_folds(groups)
    assert len(found) == nnunet.FOLDS
    assert sorted(key for fold in found for key in fold["val"]) == sorted(groups)
    assert all(not {k[0] for k in f["val"]} & {k[0] for k in f["train"]} for f in found)
