"""A scan from Python: as an array with its affine, or with its spacing."""

from __future__ import annotations

from pathlib import Path

import nibabel
import numpy as np
import pytest
from runner_brainunet.config import BrainConfig
from runner_brainunet.project import BrainUNet
from runner_core import BadInput

SCAN = np.random.default_rng(0).integers(0, 900, (20, 24, 28)).astype(np.int16)
AFFINE = np.array([[0, -1.5, 0, 10], [1.2, 0, 0, -20], [0, 0, 2.0, 5], [0, 0, 0, 1]])


def decoded(path: Path) -> np.ndarray:
    project = BrainUNet(BrainConfig())
    (record,) = project.inputs(path)
    return project.decode(record).arrays["image"]


def test_with_its_affine_it_is_the_file(tmp_path: Path) -> None:
    nibabel.save(nibabel.Nifti1Image(SCAN, AFFINE), tmp_path / "scan.nii.gz")
    written = BrainUNet(BrainConfig()).write_input({"image": SCAN, "affine": AFFINE}, None, tmp_path)
    np.testing.assert_array_equal(decoded(written), decoded(tmp_path / "scan.nii.gz"))


@pytest.mark.parametrize("kind", [np.int64, np.float16, np.float64, np.uint16])
def test_with_its_spacing_its_axes_are_ras(kind: type, tmp_path: Path) -> None:
    image = SCAN.astype(kind)
    path = BrainUNet(BrainConfig()).write_input({"image": image}, (1.2, 1.5, 2.0), tmp_path)
    written = nibabel.load(path)
    assert nibabel.aff2axcodes(written.affine) == ("R", "A", "S")
    np.testing.assert_allclose(written.header.get_zooms(), (1.2, 1.5, 2.0), rtol=1e-6)
    np.testing.assert_array_equal(np.asarray(written.dataobj), image)


@pytest.mark.parametrize(
    ("arrays", "spacing", "message"),
    [
        ({"image": SCAN}, None, "size of a voxel"),
        ({"image": SCAN}, (1.0, 1.0), r"spacing has 2 numbers: a scan needs 3"),
        ({"image": SCAN > 450}, (1.0,), "true and false, as a mask is"),
        ({"image": SCAN[0]}, (1.0,), r"a scan is \(X, Y, Z\)"),
        ({"image": SCAN, "affine": np.eye(3)}, None, r"it is \(4, 4\)"),
        ({"scan": SCAN}, (1.0,), "scan: a scan is given as"),
        ({}, (1.0,), "no image"),
    ],
)
def test_what_is_needed_is_said(arrays: dict, spacing: tuple | None, message: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=message):
        BrainUNet(BrainConfig()).write_input(arrays, spacing, tmp_path)
    assert not list(tmp_path.iterdir())
