"""Every fault of a file: one message that names the file and what is wrong, from decode and from nothing later."""

from __future__ import annotations

import gzip
import os
import struct
import tracemalloc
from pathlib import Path

import nibabel
import numpy as np
import pytest
from runner_brainunet import nifti
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
    refuse(project, scan, "1 voxel NaN or infinite: replace")


def test_nan_in_the_mask(project, write_head) -> None:
    scan = write_head()
    data = nibabel.load(mask_of(scan)).get_fdata(dtype=np.float32)
    data[3, 4, 5] = np.nan
    rewrite(mask_of(scan), data)
    refuse(project, scan, "1 voxel NaN", mask_of(scan))


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
    [("size", 65, "not a multiple of 2; use 66"), ("neighbours", 2, "1, 3 or 5"),
     ("spacing", 0.0, "must be more than 0"), ("views", (), "views is empty"), ("views", ("axial", "axial"), "twice")],
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


# ---------------------------------------------------------------- sizes, before memory is taken for them


def header_says(scan: Path, offset: int, code: str, *values: float) -> None:
    """Write numbers into a .nii.gz's header, whatever nibabel thinks of them."""
    content = bytearray(gzip.decompress(scan.read_bytes()))
    struct.pack_into(code, content, offset, *values)
    scan.write_bytes(gzip.compress(bytes(content), 1))


def test_a_bomb_behind_the_voxels_is_refused_before_it_unpacks(project, write_head) -> None:
    scan = write_head()
    member = gzip.compress(bytes(1 << 24), 9)
    scan.write_bytes(scan.read_bytes() + member * 200)  # 3.4 GB
    tracemalloc.start()
    refuse(project, scan, "unpacks to far more than the .* that its header promises")
    assert tracemalloc.get_traced_memory()[1] < 1 << 28
    tracemalloc.stop()


@pytest.mark.parametrize(
    "offset, code, values, message",
    [
        (40, "<4h", (3, 32000, 32000, 32000), "32000 × 32000 × 32000 voxels by its header"),
        (40, "<4h", (3, 600, 600, 700), "its header promises .*, which the .* cannot hold"),
        (
            280,
            "<12f",
            (1000, 0, 0, 0, 0, 1000, 0, 0, 0, 0, 1000, 0),
            "of 1000 × 1000 × 1000 mm: metres of",
        ),
        (280, "<12f", (0.01, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0), "of 0.01 × 1 × 1 mm: less than 5 mm of"),
        (123, "<B", (7,), "unit of length is 7"),
        (108, "<f", (np.inf,), "not a readable NIfTI"),
    ],
)
def test_what_a_header_cannot_mean(project, write_head, offset: int, code: str, values: tuple, message: str) -> None:
    scan = write_head()
    header_says(scan, offset, code, *values)
    refuse(project, scan, message)


def shrink(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    monkeypatch.setattr("runner_core.base.files.available_ram", lambda: free)


def header(shape: tuple[int, ...], pixdim: float = 5.0, offset: float = 352) -> bytes:
    """Return the header of a little-endian NIfTI-1 file of int16."""
    made = nibabel.Nifti1Header(endianness="<")
    made.set_data_dtype(np.int16)
    made["dim"][:] = 1
    made["dim"][0], made["dim"][1 : len(shape) + 1] = len(shape), shape
    made["pixdim"][1:4], made["vox_offset"] = pixdim, offset
    made["srow_x"], made["srow_y"], made["srow_z"] = np.diag([pixdim, pixdim, pixdim, 1])[:3]
    made["sform_code"], made["magic"] = 1, b"n+1"
    return bytes(made.binaryblock)


@pytest.mark.parametrize("offset, extension", [(2e9, b""), (1024, b"\1\0\0\0" + (2_000_000_000).to_bytes(4, "little"))])
def test_a_header_with_huge_extensions(project, tmp_path: Path, offset: float, extension: bytes) -> None:
    scan = tmp_path / "sub-1_T1w.nii"
    scan.write_bytes(header((40, 48, 36), offset=offset) + extension + b"\0" * 2000)
    refuse(project, scan, "voxels begin at byte 2e|an extension of 2,000,000,000 bytes in a header of 1,024")


def test_a_grid_that_resampling_makes_too_large(project, config, write_head, monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch, 20_000_000)
    scan = write_head()
    project.decode(project.records(scan.parent)[0])
    config.data.spacing = 1.0
    refuse(project, scan, r"200 × 240 × 180 voxels at data\.spacing 1 mm take 138\.2 MB of memory")


# ---------------------------------------------------------------- grids, formats, things that are no files


@pytest.mark.parametrize("code", ["LPI", "ASL", "PIR"])
def test_a_mask_whose_axes_run_otherwise_is_turned(project, write_head, code: str) -> None:
    """fMRIPrep writes such masks: the same voxels, stored as RAS whatever the scan was."""
    scan = write_head()
    expected = project.decode(project.records(scan.parent)[0]).arrays["mask"]
    mask = nibabel.load(mask_of(scan))
    turn = nibabel.orientations.ornt_transform(
        nibabel.io_orientation(mask.affine), nibabel.orientations.axcodes2ornt(tuple(code))
    )
    nibabel.save(mask.as_reoriented(turn), mask_of(scan))
    np.testing.assert_array_equal(project.decode(project.records(scan.parent)[0]).arrays["mask"], expected)


def test_analyze_files_are_read_and_predictions_are_nifti(project, write_head, tmp_path: Path) -> None:
    scan = write_head()
    for path in (scan, mask_of(scan)):
        image = nibabel.load(path)
        data = np.asarray(image.dataobj)
        nibabel.save(
            nibabel.AnalyzeImage(data, np.diag([-5.0, 5.0, 5.0, 1.0])),
            path.with_name(path.name.replace(".nii.gz", ".img")),
        )
        path.unlink()
    (record,) = project.records(scan.parent)
    assert set(record.files) == {"image", "image header", "mask", "mask header"}
    assert project.decode(record).arrays["mask"].any()
    assert any("Analyze file" in finding.message for finding in project.checks().record(record))
    image = nifti.open_image(record.files["image"])
    out = nifti.write_like(image, np.zeros(image.shape[:3], np.uint8), tmp_path / "out.nii.gz")
    np.testing.assert_allclose(nibabel.load(out).affine, image.affine)
    assert nifti.spacing(image) == (5.0, 5.0, 5.0)
    out = nifti.write_masked(image, np.ones(image.shape[:3], bool), tmp_path / "brain.nii.gz")
    np.testing.assert_array_equal(nibabel.load(out).dataobj, image.dataobj)


def test_what_is_no_file_is_refused_at_once(project, write_head) -> None:
    scan = write_head()
    scan.unlink()
    os.mkfifo(scan)
    refuse(project, scan, "a named pipe")
    scan.unlink()
    scan.mkdir()
    refuse(project, scan, "no such file")


def test_suffixes_in_capitals(project, write_head) -> None:
    scan = write_head()
    expected = project.decode(project.records(scan.parent)[0]).arrays
    for path in (scan, mask_of(scan)):
        path.rename(path.with_name(path.name.replace(".nii.gz", ".NII.GZ")))
    (record,) = project.records(scan.parent)
    np.testing.assert_array_equal(project.decode(record).arrays["mask"], expected["mask"])


def test_a_header_of_a_pair_that_is_gone(project, write_head) -> None:
    scan = write_head()
    (scan.parent / "x.img").write_bytes(b"1")
    with pytest.raises(BadInput, match=r"x.hdr: no such file"):
        nifti.open_image(scan.parent / "x.img")
