"""The command line of a BIDS App, and what it writes against the schema of BIDS itself."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path

import nibabel
import numpy as np
import pytest
from bidsschematools.rules import regexify_filename_rules
from bidsschematools.schema import load_schema
from bidsschematools.types import Namespace
from runner_brainunet import derivatives
from runner_core import BadInput, Record
from runner_core.cli import main


@pytest.fixture
def dataset(write_head: Callable[..., Path]) -> Path:
    """Three scans of two people in BIDS, one with sessions; T2w, a bold mask and derivatives beside them."""
    names = ("sub-01/anat/sub-01_acq-a_run-1_T1w", "sub-02/ses-1/anat/sub-02_ses-1_T1w",
             "sub-02/ses-2/anat/sub-02_ses-2_T1w")  # fmt: skip
    for name in (*names, "sub-01/anat/sub-01_T2w", "sub-01/func/sub-01_task-x_T1w"):
        root = write_head(name, mask=None).parents[len(Path(name).parts) - 1]
    (root / "dataset_description.json").write_text(json.dumps({"Name": "heads", "BIDSVersion": "1.10.0"}))
    return root


def read(path: Path) -> dict:
    return json.loads(path.read_text())


def is_valid(name: str, schema: Namespace) -> bool:
    """Return whether the schema of BIDS has a rule for a derivative's path."""
    rules = regexify_filename_rules(schema.rules.files.deriv, schema, level=2)
    return any(re.fullmatch(rule["regex"], name) for rule in rules)


def test_a_dataset_becomes_valid_derivatives(untrained, dataset, tmp_path, capsys) -> None:
    """Names by the rules of BIDS's own schema, and the fields of descriptions that it requires or recommends."""
    out = tmp_path / "out"
    line = ["brainunet", "predict", str(dataset), str(out), "participant"]
    assert main([*line, "--run", str(untrained), "--brain", "--margin", "8"]) == 0
    stem = out / "sub-02/ses-1/anat/sub-02_ses-1_desc-brain"
    names = {path.relative_to(out).as_posix() for path in out.rglob("*.nii.gz")}
    assert names == {
        f"{folder}/{scan}_desc-brain_{suffix}.nii.gz"
        for folder, scan in (("sub-01/anat", "sub-01_acq-a_run-1"), ("sub-02/ses-1/anat", "sub-02_ses-1"),
                             ("sub-02/ses-2/anat", "sub-02_ses-2"))
        for suffix in ("mask", "T1w")
    }  # fmt: skip
    scan = nibabel.load(dataset / "sub-02/ses-1/anat/sub-02_ses-1_T1w.nii.gz")
    mask = nibabel.load(f"{stem}_mask.nii.gz")
    assert np.array_equal(scan.affine, mask.affine)

    assert main(["brainunet", "predict", str(dataset), str(out), "group"]) == 0
    rows = list(csv.DictReader((out / "volumes.tsv").open(), delimiter="\t"))
    assert [row["record"] for row in rows] == ["sub-01_acq-a_run-1_T1w", "sub-02_ses-1_T1w", "sub-02_ses-2_T1w"]
    assert (out / "qc.html").read_text().count("data:image/jpeg") == 3

    schema = load_schema()
    images = {path.relative_to(out).as_posix() for path in out.rglob("anat/*")}
    assert len(images) == 3 * 4
    assert not [name for name in images if not is_valid(name, schema)]
    assert not is_valid("sub-02/ses-1/anat/sub-02_ses-1_brainmask.nii.gz", schema)
    assert not is_valid("sub-02/ses-1/anat/sub-02_ses-2_desc-brain_mask.nii.gz", schema)
    others = {path.relative_to(out).parts[-1] for path in out.rglob("*") if path.is_file()} - {
        Path(name).name for name in images
    }
    ignored = (out / ".bidsignore").read_text().split()
    kept = {name for name in others if not any(fnmatch(name, pattern) for pattern in ignored)}
    assert kept == {"dataset_description.json", "README.md", ".bidsignore"}
    rules = schema.rules.sidecars.derivatives.common_derivatives
    wanted = {*rules.MaskDerivatives.fields, *rules.SegmentationCommon.fields, *rules.CommonDerivativeFields.fields}
    about = read(Path(f"{stem}_mask.json"))
    assert {"Type", "Sources", "SpatialReference", "Description"} <= wanted & about.keys()
    assert about["Type"] in schema.objects.metadata.Type.enum
    assert about["Sources"] == ["bids:raw:sub-02/ses-1/anat/sub-02_ses-1_T1w.nii.gz"]
    assert about["Margin"] == 8
    stripped = read(Path(f"{stem}_T1w.json"))
    assert {name for name, level in rules.ImageDerivatives.fields.items() if level == "required"} <= stripped.keys()
    described = read(out / "dataset_description.json")
    assert described["DatasetType"] == "derivative"
    assert described["GeneratedBy"][0]["Name"] == "runner-brainunet"
    assert re.fullmatch(
        r"network untrained, step 0 \([0-9a-f]{12}\), margin 8 mm", described["GeneratedBy"][0]["Description"]
    )
    assert described["SourceDatasets"] == [{"URL": dataset.as_uri()}]
    assert described["DatasetLinks"] == {"raw": dataset.as_uri()}


def test_it_goes_on_where_it_stopped_and_one_bad_scan_stops_no_other(untrained, dataset, tmp_path, capsys) -> None:
    out = tmp_path / "out"
    line = ["brainunet", "predict", str(dataset), str(out), "participant", "--run", str(untrained)]
    bad = dataset / "sub-02/ses-1/anat/sub-02_ses-1_T1w.nii.gz"
    whole = bad.read_bytes()
    bad.write_bytes(whole[: len(whole) // 2])
    assert main(line) == 2
    assert "sub-02_ses-1_T1w.nii.gz: truncated or damaged" in capsys.readouterr().err
    masks = {path: path.stat().st_mtime_ns for path in out.rglob("*_mask.nii.gz")}
    assert len(masks) == 2
    bad.write_bytes(whole)
    next(iter(sorted(masks))).with_suffix("").with_suffix(".json").unlink()  # as a kill would leave it
    assert main(line) == 0
    assert "1 scan left out: done before" in capsys.readouterr().out
    again = {path: path.stat().st_mtime_ns for path in out.rglob("*_mask.nii.gz")}
    assert sorted(path in masks and again[path] == masks[path] for path in again) == [False, False, True]
    assert main([*line, "--participant-label", "02", "--session-label", "ses-2", "--overwrite"]) == 0
    newest = {path.name for path in again if path.stat().st_mtime_ns != again[path]}
    assert newest == {"sub-02_ses-2_desc-brain_mask.nii.gz"}


def test_what_is_wrong_is_named(untrained, dataset, tmp_path, capsys) -> None:
    out = tmp_path / "out"

    def refusal(*words: object) -> str:
        assert main(["brainunet", "predict", *map(str, words)]) == 2
        return capsys.readouterr().err

    ours = ("--run", untrained)
    assert "--participant-label sub-03: not in" in refusal(
        dataset, out, "participant", "--participant-label", "03", *ours
    )
    assert "no T1 scan" in refusal(dataset, out, "participant", "--session-label", "7", *ours)
    assert "there is no such folder" in refusal(tmp_path / "nowhere", out, "participant")
    assert "is the BIDS dataset itself" in refusal(dataset, dataset, "participant", *ours)
    assert "holds no brain masks yet" in refusal(dataset, out, "group")
    assert not out.exists()
    out.mkdir()
    (out / "dataset_description.json").write_text(json.dumps({"GeneratedBy": [{"Name": "fMRIPrep"}]}))
    assert "holds derivatives of fMRIPrep" in refusal(dataset, out, "participant", *ours)
    (dataset / "dataset_description.json").unlink()
    assert "--skip-bids-validator goes on" in refusal(dataset, out, "participant", *ours)


@pytest.mark.parametrize("name", ["sub-1_space-MNI_T1w", "sub-1_T2w", "head", "sub-1_T1w_x", "ses-1_T1w", "sub-_T1w"])
def test_only_raw_t1_scans_have_derivatives(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadInput, match="not the name of a raw T1 scan"):
        derivatives.places(Record(name, "", {"image": tmp_path / f"{name}.nii.gz"}), tmp_path)
    with pytest.raises(BadInput, match="other: there is no such folder; --bids names"):
        derivatives.places(Record(name, "", {"image": tmp_path / "sub-1_T1w.nii"}), tmp_path / "other")
    (tmp_path / "other").mkdir()
    with pytest.raises(BadInput, match="does not lie below"):
        derivatives.places(Record(name, "", {"image": tmp_path / "sub-1_T1w.nii"}), tmp_path / "other")


def test_a_folder_named_group_is_still_an_input(untrained, write_head, tmp_path) -> None:
    """With --out, as `predict` needs it, the words are no BIDS App's."""
    scan = write_head("group/head", mask=None)
    out = tmp_path / "masks"
    assert main(["brainunet", "predict", str(untrained), str(scan.parent), "--out", str(out), "--qc"]) == 0
    assert {path.name for path in out.iterdir()} == {
        "head_brainmask.nii.gz", "head_brainmask.json", "head_qc.jpg", "volumes.csv", "qc.html",
    }  # fmt: skip
