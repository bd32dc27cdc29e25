"""Which scans and masks are found, in NFBS folders, BIDS trees and folders of anything."""

from __future__ import annotations

from pathlib import Path

import pytest
from runner_brainunet.files import find_inputs, find_records
from runner_core import BadInput


def touch(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"")


def test_nfbs_pairs_by_name_and_groups_by_person(tmp_path: Path) -> None:
    for scan in ("A01/sub-A01_ses-NFB3_T1w", "A01/sub-A01_ses-NFB4_T1w", "A02/sub-A02_ses-NFB3_T1w"):
        touch(tmp_path, f"{scan}.nii.gz", f"{scan}_brainmask.nii.gz", f"{scan}_brain.nii.gz")
    records = find_records(tmp_path)
    assert [(r.key, r.group) for r in records] == [
        ("sub-A01_ses-NFB3_T1w", "sub-A01"),
        ("sub-A01_ses-NFB4_T1w", "sub-A01"),
        ("sub-A02_ses-NFB3_T1w", "sub-A02"),
    ]
    assert records[0].files["mask"].name == "sub-A01_ses-NFB3_T1w_brainmask.nii.gz"
    assert [r.key for r in find_inputs(tmp_path)] == [r.key for r in records]


def test_bids_masks_beside_the_scan_or_in_derivatives(tmp_path: Path) -> None:
    touch(
        tmp_path,
        "sub-1/anat/sub-1_T1w.nii.gz",
        "derivatives/fmriprep/sub-1/anat/sub-1_desc-brain_mask.nii.gz",
        "derivatives/fmriprep/sub-1/anat/sub-1_space-MNI152_desc-brain_mask.nii.gz",
        "derivatives/fmriprep/sub-1/anat/sub-1_desc-preproc_T1w.nii.gz",
        "sub-2/ses-a/anat/sub-2_ses-a_T1w.nii",
        "sub-2/ses-a/anat/sub-2_ses-a_desc-brain_mask.nii",
        "sub-2/ses-b/anat/sub-2_ses-b_run-2_T1w.nii.gz",
        "derivatives/x/sub-2/ses-b/anat/sub-2_ses-b_run-1_desc-brain_mask.nii.gz",
        "derivatives/x/sub-2/ses-b/anat/sub-2_ses-b_run-2_desc-brain_mask.nii.gz",
    )
    masks = {r.key: r.files["mask"].name for r in find_records(tmp_path)}
    assert masks == {
        "sub-1_T1w": "sub-1_desc-brain_mask.nii.gz",
        "sub-2_ses-a_T1w": "sub-2_ses-a_desc-brain_mask.nii",
        "sub-2_ses-b_run-2_T1w": "sub-2_ses-b_run-2_desc-brain_mask.nii.gz",
    }


def test_two_possible_masks_are_refused_with_both_names(tmp_path: Path) -> None:
    touch(
        tmp_path,
        "sub-1/anat/sub-1_T1w.nii.gz",
        "derivatives/a/sub-1_desc-brain_mask.nii.gz",
        "derivatives/b/sub-1_desc-brain_mask.nii.gz",
    )
    with pytest.raises(BadInput, match=r"2 masks could be its own.*derivatives/a.*derivatives/b"):
        find_records(tmp_path)


def test_the_folders_own_split_is_kept(tmp_path: Path) -> None:
    for part, number in (("train", 1), ("val", 2), ("test", 3)):
        touch(tmp_path, f"{part}/sub-{number}_T1w.nii.gz", f"{part}/sub-{number}_T1w_brainmask.nii.gz")
    assert [r.split for r in find_records(tmp_path)] == ["train", "validation", "test"]


def test_equal_names_get_different_keys(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        touch(tmp_path, f"{folder}/sub-1_T1w.nii.gz", f"{folder}/sub-1_T1w_brainmask.nii.gz")
    assert len({r.key for r in find_records(tmp_path)}) == 2


def test_inputs_take_any_nifti_but_no_masks(tmp_path: Path) -> None:
    touch(tmp_path, "x/head.nii", "x/head_brainmask.nii", "x/notes.txt", "y.nii.gz", "y_brain.nii.gz")
    assert [r.key for r in find_inputs(tmp_path)] == ["head", "y"]
    assert [r.key for r in find_inputs(tmp_path / "x" / "head.nii")] == ["head"]


@pytest.mark.parametrize("find", [find_records, find_inputs])
def test_what_is_not_there_is_named(find, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="nowhere: no such folder"):
        find(tmp_path / "nowhere")
    with pytest.raises(BadInput, match=r"no (T1 scan|NIfTI file) below it"):
        find(tmp_path)
