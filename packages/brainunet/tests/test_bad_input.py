"""Every fault of a file: one message that names the file and what is wrong, from decode and from nothing later."""

from __future__ import annotations

import gzip
from pathlib import Path

import nibabel
import numpy as np
import pytest
from runner_brainunet.project import BrainUNet
from runner_core import BadInput


def mask_of(scan: Path) -> Path:
    return scan.with_name(scan.name.replace(".nii", "_brainmask.nii"))


def refuse(project: BrainUNet, scan: Path, message: str, named: Path | None = None) -> None:
    (record,) = project.records(scan.parent)
    with pytest.raises(BadInput, match=message) as caught:
        project.decode(record)
    assert (named or scan).name in str(caught.value)
    assert "\n" not in str(caught.value)


def rewrite(path: Path, data: np.ndarray) -> None:
    nibabel.save(nibabel.Nifti1Image(data, nibabel.load(path).affine), path)


def test_good_files_are_read(project, write_head) -> None:
    (record,) = project.records(write_head().parent)
    decoded = project.decode(record)
    assert decoded.arrays["image"].dtype == np.float32
    assert decoded.arrays["mask"].any()


@pytest.mark.parametrize("keep", [0.5, 0.02])
def test_truncated_gz(project, write_head, keep: float) -> None:
    scan = write_head()
    whole = scan.read_bytes()
    scan.write_bytes(whole[: int(len(whole) * keep)])
    refuse(project, scan, "truncated or damaged|not a readable NIfTI")


def test_truncated_plain_file(project, write_head) -> None:
    scan = write_head()
    plain = scan.with_suffix("")
    plain.write_bytes(gzip.decompress(scan.read_bytes())[:5000])
    mask_of(scan).rename(mask_of(plain))
    mask_of(plain).write_bytes(gzip.decompress(mask_of(plain).read_bytes()))
    scan.unlink()
    refuse(project, plain, "truncated or damaged")


def test_damaged_inside(project, write_head) -> None:
    scan = write_head()
    data = bytearray(scan.read_bytes())
    data[len(data) // 2] ^= 0xFF
    data[len(data) // 2 + 1] ^= 0xFF
    scan.write_bytes(bytes(data))
    refuse(project, scan, "truncated or damaged|not a readable NIfTI")


@pytest.mark.parametrize("content", [b"", b"not an image" * 100, gzip.compress(b"\0" * 1000, mtime=0)])
def test_not_a_nifti(project, write_head, content: bytes) -> None:
    scan = write_head()
    scan.write_bytes(content)
    refuse(project, scan, "not a readable NIfTI|not a NIfTI")


def test_missing_mask(project, write_head) -> None:
    refuse(project, write_head(mask=None), "its mask .*_brainmask.nii.gz is missing")


def test_missing_scan(project, write_head) -> None:
    scan = write_head()
    scan.unlink()
    refuse(project, scan, "its scan .* is missing", mask_of(scan))


def test_mask_of_another_shape(project, write_head) -> None:
    scan = write_head(mask=np.ones((40, 48, 35), np.uint8))
    refuse(project, scan, r"mask's shape \(40, 48, 35\) is not the scan's \(40, 48, 36\)", mask_of(scan))


def test_mask_with_another_affine(project, write_head) -> None:
    place = np.diag([5.0, 5.0, 5.0, 1.0])
    place[0, 3] = 7
    scan = write_head(mask_affine=place)
    refuse(project, scan, r"up to 7\.0 mm away", mask_of(scan))


@pytest.mark.parametrize("value, message", [(0, "mask is empty"), (1, "covers the whole volume")])
def test_mask_without_a_border(project, write_head, value: int, message: str) -> None:
    scan = write_head(mask=np.full((40, 48, 36), value, np.uint8))
    refuse(project, scan, message, mask_of(scan))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan(project, write_head, value: float) -> None:
    scan = write_head()
    data = nibabel.load(scan).get_fdata(dtype=np.float32)
    data[3, 4, 5] = value
    rewrite(scan, data)
    refuse(project, scan, "1 voxels are NaN or infinite")


def test_nan_in_the_mask(project, write_head) -> None:
    scan = write_head()
    data = nibabel.load(mask_of(scan)).get_fdata(dtype=np.float32)
    data[3, 4, 5] = np.nan
    rewrite(mask_of(scan), data)
    refuse(project, scan, "1 voxels are NaN", mask_of(scan))


def test_4d(project, write_head) -> None:
    scan = write_head()
    rewrite(scan, np.repeat(np.asarray(nibabel.load(scan).dataobj)[..., None], 3, axis=3))
    refuse(project, scan, "4-D file with 3 volumes")


def test_constant_scan(project, write_head) -> None:
    refuse(project, write_head(scan=np.full((40, 48, 36), 7, np.int16)), "every voxel is 7")


def test_colours_and_complex_numbers(project, write_head) -> None:
    scan = write_head()
    rewrite(scan, np.ones((40, 48, 36), np.complex64))
    refuse(project, scan, "grey values")


def test_singular_affine(project, write_head) -> None:
    scan = write_head()
    image = nibabel.load(scan)
    data = np.asarray(image.dataobj)
    broken = nibabel.Nifti1Image(data, None)
    broken.header.set_sform(np.diag([5.0, 0.0, 5.0, 1.0]), 1)
    nibabel.save(broken, scan)
    refuse(project, scan, "affine is singular|not a readable NIfTI")


@pytest.mark.parametrize(
    "setting, value, message",
    [("size", 65, "not a multiple of 2; use 66"), ("neighbours", 2, "1, 3 or 5"), ("spacing", 0.0, "above 0 mm"),
     ("views", (), "views is empty"), ("views", ("axial", "axial"), "twice")],
)  # fmt: skip
def test_impossible_settings(config, setting: str, value: object, message: str) -> None:
    setattr(config.data, setting, value)
    with pytest.raises(BadInput, match=message):
        BrainUNet(config)


@pytest.mark.parametrize("threshold", [0.0, 1.0, 3.0])
def test_a_threshold_that_is_no_probability(config, threshold: float) -> None:
    config.predict.threshold = threshold
    with pytest.raises(BadInput, match="between 0 and 1"):
        BrainUNet(config)
