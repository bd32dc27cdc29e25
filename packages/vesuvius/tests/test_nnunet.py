"""Datasets of nnU-Net are read by what their dataset.json says, and written so that scrolls stay apart."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runner_core import BadInput
from runner_vesuvius import files, nnunet, volumes


def export(*words: object) -> int:
    return nnunet.export_nnunet(argparse.ArgumentParser(), [str(word) for word in words])


def dataset(folder: Path, labels: dict[str, Any], stored: np.ndarray, **more: Any) -> Path:
    """A dataset of one volume."""
    for name in ("imagesTr", "labelsTr"):
        (folder / name).mkdir(parents=True)
    volumes.write_tif(folder / "imagesTr" / "s1_a_0000.tif", np.full(stored.shape, 9, np.uint8))
    volumes.write_tif(folder / "labelsTr" / "s1_a.tif", stored)
    (folder / "dataset.json").write_text(json.dumps({"labels": labels, "file_ending": ".tif", **more}))
    return folder


@pytest.mark.parametrize("ending", nnunet.FORMATS)
def test_what_is_written_is_read_again(write_volumes, tmp_path, capsys, ending) -> None:
    root = write_volumes({"1": "A_x", "2": "B", "B_3": "B"})
    (root / "test_images").mkdir()
    volumes.write_tif(root / "test_images" / "9.tif", np.full((20, 20, 20), 7, np.uint8))
    out = tmp_path / "Dataset001_Scrolls"
    assert export("--data", root, "--out", out, "--format", ending) == 0
    assert "3 volumes of 2 scrolls" in capsys.readouterr().out
    before, after = files.find_records(root), files.find_records(out)
    assert [(r.key, r.group) for r in after] == [("A_x_1", "A_x"), ("B_2", "B"), ("B_3", "B")]
    for one, other in zip(before, after, strict=True):
        image = volumes.read_image(one.files["image"])
        assert np.array_equal(image, volumes.read_image(other.files["image"]))
        truth = volumes.read_truth(one.files, image.shape)
        assert np.array_equal(truth, volumes.read_truth(other.files, image.shape))
    about = json.loads((out / "dataset.json").read_text())
    assert (about["numTraining"], about["file_ending"]) == (3, f".{ending}")
    for split in json.loads((out / "splits_final.json").read_text()):
        assert not {key[0] for key in split["train"]} & {key[0] for key in split["val"]}
        assert sorted(split["train"] + split["val"]) == ["A_x_1", "B_2", "B_3"]
    assert volumes.read_image(out / "imagesTs" / f"9_0000.{ending}").shape == (20, 20, 20)
    assert [each.key for each in files.find_inputs(out)] == ["9", "A_x_1", "B_2", "B_3"]
    with pytest.raises(BadInput, match="is not an empty folder; name another --out"):
        export("--data", root, "--out", out)


def test_labels_mean_what_the_dataset_says(tmp_path) -> None:
    stored = np.random.default_rng(0).choice(np.array([0, 3, 7], np.uint8), (20, 20, 20))
    root = dataset(tmp_path / "d", {"background": 3, "papyrus": 0, "ignore": 7}, stored)
    (record,) = files.find_records(root)
    found = volumes.read_truth(record.files, stored.shape)
    assert np.array_equal(found, np.select([stored == 3, stored == 0], [0, 1], 2))
    other = dataset(tmp_path / "other", {"background": 0, "papyrus": 3, "ignore": 7}, stored)
    assert files.find_records(other)[0].values != record.values  # a cache of one is none of the other
    volumes.write_tif(record.files["label"], stored + 1)
    with pytest.raises(BadInput, match=r"s1_a\.tif: holds 1, 4, 8, which dataset\.json does not list"):
        volumes.read_truth(record.files, stored.shape)


@pytest.mark.parametrize(
    ("labels", "more", "message"),
    [
        ({"background": 0, "recto": 1, "verso": 2}, {}, "labels has recto, verso; one is needed"),
        ({"background": 0, "all": [1, 2]}, {}, "labels must give one number"),
        ({"background": 0, "surface": 0}, {}, "the same number"),
        ({"background": 0, "surface": 1}, {"channel_names": {"0": "CT", "1": "again"}}, r"2 channels \(CT, again\)"),
        ({"background": 0, "surface": 1}, {"file_ending": ".nrrd"}, r"file_ending is \.nrrd"),
        ({"background": 0, "surface": 1}, {"channel_names": ["CT", "again"]}, "must give a name for each channel"),
        ({"surface": 1}, {}, "labels has no background"),
    ],
)
def test_datasets_that_cannot_be_read_are_refused(tmp_path, labels, more, message) -> None:
    root = dataset(tmp_path / "d", labels, np.zeros((20, 20, 20), np.uint8), **more)
    with pytest.raises(BadInput, match=rf"dataset\.json: .*{message}"):
        files.find_records(root)


def test_two_volumes_of_one_name_are_refused(write_volumes, tmp_path) -> None:
    root = write_volumes({"1": "A", "A_1": "A"})
    with pytest.raises(BadInput, match="both would be called A_1"):
        export("--data", root, "--out", tmp_path / "out")
