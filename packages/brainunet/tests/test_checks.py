"""`check` reports files that can be read and still look wrong."""

from __future__ import annotations

import nibabel
import numpy as np
import pytest


def rules(project, scan) -> dict[str, str]:
    (record,) = project.records(scan.parent)
    return {f.rule: f.message for f in project.checks().record(record)}


def test_a_good_scan_has_no_findings(project, write_head) -> None:
    assert rules(project, write_head()) == {}


def test_a_brain_of_impossible_size(project, write_head) -> None:
    mask = np.zeros((40, 48, 36), np.uint8)
    mask[18:22, 20:28, 14:20] = 1
    assert "0.02 litres" in rules(project, write_head(mask=mask))["volume"]


def test_a_predicted_brain_of_impossible_size_is_remarked(project, write_head) -> None:
    scan = write_head()
    (record,) = project.inputs(scan)
    truth = np.asarray(nibabel.load(scan.with_name(scan.name.replace(".nii", "_brainmask.nii"))).dataobj) > 0
    for mask, said in ((truth & False, "the mask is empty"), (truth | True, "8640 ml (expected 700 to 2200 ml)")):
        finding, *_ = project.checks().prediction(record, mask)
        assert finding.level == "warning"
        assert said in finding.message
    assert not list(project.checks().prediction(record, truth))


def test_a_mask_that_is_cut(project, write_head) -> None:
    mask = np.zeros((40, 48, 36), np.uint8)
    mask[10:30, 10:38, 14:36] = 1
    assert "reaches the last slice of axis 2" in rules(project, write_head(mask=mask))["border"]


def test_a_mask_in_pieces(project, write_head) -> None:
    scan = write_head()
    path = scan.with_name(scan.name.replace(".nii", "_brainmask.nii"))
    image = nibabel.load(path)
    mask = np.asarray(image.dataobj).copy()
    mask[1:7, 1:7, 1:7] = 1
    nibabel.save(nibabel.Nifti1Image(mask, image.affine), path)
    assert "2 separate pieces; the second has 216 voxels" in rules(project, scan)["pieces"]


@pytest.mark.parametrize(
    ("inside", "said"),
    [
        (
            "labels",
            "9 values (0, 1, 2, 3, 4, 5, 6, 7, 8) where a brain mask has two, 0 and another: all above 0 is taken",
        ),
        ("shares", "4 values (0, 0.25, 0.75, 1) where a brain mask has two, 0 and another: all above 0.5 is taken"),
        ("255", ""),
    ],
)
def test_a_mask_of_more_than_two_values(inside: str, said: str, project, write_head) -> None:
    mask = np.zeros((40, 48, 36), np.float32)
    mask[10:30, 10:38, 8:28] = 255 if inside == "255" else 1
    if inside == "labels":
        mask[10:30, 10:38, 8:28] = 1 + np.arange(20) // 3 + (np.arange(20) == 19)
    elif inside == "shares":
        mask[10], mask[29] = mask[10] / 4, mask[29] * 0.75
    scan = write_head(mask=mask)
    found = rules(project, scan)
    assert set(found) == ({"mask"} if said else set())
    if said:
        assert found["mask"].startswith(f"{scan.name.replace('.nii', '_brainmask.nii')}: {said} as brain. ")


def test_a_label_map_instead_of_a_scan(project, write_head) -> None:
    scan = np.zeros((40, 48, 36), np.uint8)
    scan[10:30, 10:38, 8:28] = 3
    assert "only 2 grey values" in rules(project, write_head(scan=scan))["intensity"]


def test_odd_spacing_and_extent(project, write_head) -> None:
    found = rules(project, write_head(affine=np.diag([1.0, 1.0, 9.0, 1.0])))
    assert "1.00 × 1.00 × 9.00 mm" in found["spacing"]
    assert "40 × 48 × 324 mm" in found["extent"]


def test_forms_that_disagree_or_are_missing(project, write_head) -> None:
    scan = write_head()
    image = nibabel.load(scan)
    image.set_qform(np.diag([5.0, 5.0, 5.0, 1.0]), 1)
    moved = np.diag([5.0, 5.0, 5.0, 1.0])
    moved[1, 3] = 12
    image.set_sform(moved, 1)
    mask = scan.with_name(scan.name.replace(".nii", "_brainmask.nii"))
    nibabel.save(nibabel.Nifti1Image(np.asarray(nibabel.load(mask).dataobj), moved), mask)
    nibabel.save(image, scan)
    assert "disagree by up to 12.0 mm" in rules(project, scan)["orientation"]
    image.set_sform(None, 0)
    image.set_qform(None, 0)
    nibabel.save(image, scan)
    mask.unlink()
    (record,) = project.inputs(scan)
    assert any("left and right are a guess" in f.message for f in project.checks().record(record))


def test_check_tells_of_the_file_and_of_the_brain_in_the_networks_grid(project, write_head) -> None:
    scan = write_head(shape=(40, 48, 60), spacing=(5.0, 5.0, 3.0))
    (record,) = project.records(scan.parent)
    decoded = project.decode(record)
    assert decoded.original.dtype == "int16"
    assert decoded.original.spacing == (5.0, 5.0, 3.0)
    image = nibabel.load(scan)
    np.testing.assert_array_equal(decoded.original.array, np.asarray(image.dataobj))
    found = project.checks().annotation(decoded)
    brain = np.count_nonzero(decoded.arrays["mask"])
    assert found.counts == {"other": decoded.arrays["mask"].size - brain, "brain": brain}
    assert found.ignored is None  # every voxel is learned
    del decoded.arrays["mask"]
    assert project.checks().annotation(decoded) is None
