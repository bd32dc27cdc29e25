"""nnU-Net's layouts: a dataset that nnU-Net accepts, and predictions as it writes them."""

from __future__ import annotations

import argparse
import json

import nibabel
import numpy as np
import pytest
from runner_brainunet import files, nifti, nnunet
from runner_brainunet.config import BrainDataConfig
from runner_core import BadInput
from runner_core.cli import main

LPS = np.diag([-5.0, -5.0, 5.0, 1.0])


def export(*words: object) -> int:
    return nnunet.export_nnunet(argparse.ArgumentParser(), [str(word) for word in words])


def test_what_is_written_is_read_again(write_head, tmp_path, capsys) -> None:
    for name in ("sub-01/sub-01_ses-1_T1w", "sub-01/sub-01_ses-2_T1w", "sub-02/sub-02_ses-1_T1w"):
        root = write_head(name, affine=LPS).parents[1]
    out = tmp_path / "Dataset001_Brains"
    assert export("--data", root, "--out", out) == 0
    assert "3 scans of 2 persons" in capsys.readouterr().out
    data = BrainDataConfig()
    before = files.find_records(root, data)
    for after in (
        files.find_records(out, data),
        files.find_records(out, BrainDataConfig(manifest=str(out / "persons.csv"))),
    ):
        assert [record.group for record in after] == [record.group for record in before]
        for one, other in zip(before, after, strict=True):
            image, scan = nifti.read_scan(one.files["image"])
            written, again = nifti.read_scan(other.files["image"])
            assert np.array_equal(scan, again)
            assert np.allclose(image.affine, written.affine)
            assert written.get_data_dtype() == np.int16
            truth = nifti.read_mask(one.files["mask"], image, one.files["image"])
            label = nibabel.load(other.files["mask"])
            assert np.array_equal(truth, np.asarray(label.dataobj))
            assert np.array_equal(label.affine, written.affine)
    about = json.loads((out / "dataset.json").read_text())
    assert (about["numTraining"], about["labels"]) == (3, {"background": 0, "brain": 1})
    assert sorted(path.name for path in (out / "labelsTr").iterdir()) == [f"{r.key}.nii.gz" for r in before]
    for split in json.loads((out / "splits_final.json").read_text()):
        assert not {key[:6] for key in split["train"]} & {key[:6] for key in split["val"]}
    with pytest.raises(BadInput, match="is not an empty folder; name another --out"):
        export("--data", root, "--out", out)


def test_nothing_is_left_of_a_dataset_with_a_bad_scan(write_head, tmp_path) -> None:
    root = write_head().parents[1]
    write_head("sub-02/sub-02_ses-1_T1w", mask=np.zeros((40, 48, 36), np.uint8))
    with pytest.raises(BadInput, match=r"sub-02_ses-1_T1w_brainmask\.nii\.gz: the mask is empty"):
        export("--data", root, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_values_that_int16_cannot_hold_stay(write_head, tmp_path) -> None:
    rng = np.random.default_rng(0)
    for number, scan in enumerate((rng.random((40, 48, 36)) * 9, rng.integers(0, 70_000, (40, 48, 36)))):
        path = write_head(f"s{number}", scan=scan.astype(np.float32))
        image, data = nifti.read_scan(path)
        written = nifti.write_plain(image, data, tmp_path / f"{number}.nii.gz")
        assert np.array_equal(np.asarray(nibabel.load(written).dataobj), data)


def test_predictions_lie_as_nnunets_do(write_head, untrained, tmp_path, capsys) -> None:
    for case in ("BRAIN_001", "BRAIN_002"):
        scans = write_head(f"imagesTs/{case}_0000", affine=LPS, mask=None).parent
    out = tmp_path / "predicted"
    line = ["brainunet", "predict", str(untrained), str(scans), "--out", str(out), "--nnunet"]
    assert main(line) == 0
    assert {path.name for path in out.iterdir()} == {"BRAIN_001.nii.gz", "BRAIN_002.nii.gz", "dataset.json"}
    assert json.loads((out / "dataset.json").read_text()) == {
        "labels": {"background": 0, "brain": 1},
        "file_ending": ".nii.gz",
    }
    mask = nibabel.load(out / "BRAIN_001.nii.gz")
    assert mask.get_data_dtype() == np.uint8
    assert np.array_equal(mask.affine, LPS)
    assert {*np.unique(np.asarray(mask.dataobj))} <= {0, 1}
    capsys.readouterr()
    assert main([*line[:-2], str(tmp_path / "other"), "--nnunet", "--qc", "--brain"]) == 2
    assert "leave out --brain and --qc" in capsys.readouterr().err
    assert not (tmp_path / "other").exists() or not any((tmp_path / "other").iterdir())
