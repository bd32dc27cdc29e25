"""The script that predicts without runner: its parts against scipy and nibabel."""

from __future__ import annotations

import gzip
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import nibabel
import numpy as np
import pytest
import runner_brainunet
from nibabel import orientations
from runner_brainunet import grid, nifti, slices, standalone, volume, whole
from runner_brainunet.config import BrainConfig
from scipy import ndimage

SCRIPT = Path(runner_brainunet.__file__).parent / "standalone" / "predict.py"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script as a module, with the modules that lie beside it in an export."""
    for name, module in (("grid", grid), ("slices", slices), ("session", ModuleType("session"))):
        monkeypatch.setitem(sys.modules, name, module)
    spec = spec_from_file_location("standalone_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("seed", range(30))
def test_pieces_and_brains_are_scipys(script: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    noise = rng.random(tuple(rng.integers(1, 24, 3)))
    mask = ndimage.gaussian_filter(noise, rng.choice([0, 0.7, 1.5])) > rng.choice([0.3, 0.5, 0.6])
    labels, count = ndimage.label(mask)
    found = script.pieces(mask)
    assert len({*zip(labels.ravel().tolist(), found.ravel().tolist(), strict=True)}) == count + (not mask.all())
    sizes = np.sort(np.bincount(labels[mask]))[::-1]
    for fill in (False, True):
        if len(sizes) < 2 or sizes[0] > sizes[1]:
            np.testing.assert_array_equal(script.one_brain(mask, fill), whole.one_brain(mask, fill))


@pytest.mark.parametrize("margin", [-2.5, -1.0, 0.0, 0.9, 2.1, 4.0, 40.0])
def test_margins_are_scipys(script: Any, margin: float) -> None:
    rng = np.random.default_rng(7)
    for spacing in ((1.0, 1.0, 1.0), (0.7, 1.0, 2.1)):
        mask = ndimage.gaussian_filter(rng.random((20, 22, 18)), 3) > 0.5
        mask[5:15, 5:15, 5:15] = True
        np.testing.assert_array_equal(
            script.with_margin(mask, margin, spacing), volume.with_margin(mask, margin, spacing)
        )


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float32, np.float64])
@pytest.mark.parametrize("form", ["sform", "qform", "scaled"])
def test_files_are_read_and_written_as_by_nibabel(script: Any, tmp_path: Path, dtype: type, form: str) -> None:
    rng = np.random.default_rng(1)
    voxels = (rng.random((12, 13, 14)) * 200).astype(dtype)
    rotation = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    affine = np.eye(4)
    affine[:3, :3], affine[:3, 3] = rotation * (1.0, 0.7, 2.0), (4.0, -5.0, 6.0)
    image = nibabel.Nifti1Image(voxels, affine)
    image.header.set_xyzt_units("mm")
    if form == "qform":
        image.set_sform(None, 0)
        image.set_qform(affine, 1)
    if form == "scaled":
        image.header.set_slope_inter(0.37, -12)
    path = tmp_path / "scan.nii.gz"
    nibabel.save(image, path)
    scan = script.read(path)
    _, expected = nifti.read_scan(path)
    np.testing.assert_array_equal(scan.voxels, expected)
    np.testing.assert_allclose(scan.affine, nibabel.load(path).affine, atol=1e-6)
    script.write(scan, expected > 50, tmp_path / "mask.nii.gz")
    mask: Any = nibabel.load(tmp_path / "mask.nii.gz")
    np.testing.assert_array_equal(np.asarray(mask.dataobj), expected > 50)
    np.testing.assert_array_equal(mask.affine, nibabel.load(path).affine)
    assert mask.get_data_dtype() == np.uint8


def _scan(unit: int = 2) -> bytes:
    image = nibabel.Nifti1Image(np.arange(60, dtype=np.int16).reshape(3, 4, 5), np.eye(4))
    image.header["xyzt_units"] = unit
    return image.to_bytes()


@pytest.mark.parametrize("content", [
    b"", b"\0" * 400, b"\x1f\x8bdamaged", gzip.compress(_scan())[:-40], _scan()[:-1], _scan(unit=5),
    gzip.compress(_scan())[:12] + b"\xff" * 40,
], ids=["empty", "zeros", "no gzip", "gzip cut short", "cut short", "unit", "gzip of nothing"])  # fmt: skip
def test_what_is_no_scan_is_named(script: Any, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "scan.nii.gz"
    path.write_bytes(_scan())
    script.read(path)
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"single-file NIfTI-1|truncated or damaged|unit of length|buffer is smaller"):
        script.read(path)


def test_orientations_are_nibabels() -> None:
    rng = np.random.default_rng(0)
    for n in range(2000):
        affine = np.eye(4)
        columns = rng.normal(size=(3, 3))
        if n % 3:
            columns = np.linalg.qr(columns)[0] if n % 3 == 1 else np.eye(3)[:, rng.permutation(3)]
        affine[:3, :3] = columns * rng.choice([-1, 1], 3) * rng.uniform(0.3, 5, 3)
        expected = orientations.io_orientation(affine)
        assert grid.orientation_of(affine) == tuple((int(axis), int(direction)) for axis, direction in expected)
        if n % 100 == 0:
            voxels = rng.normal(size=(4, 5, 6))
            ras = grid.Grid.of(voxels.shape, affine, 1.0).to_ras(voxels)
            np.testing.assert_array_equal(ras, orientations.apply_orientation(voxels, expected))


def test_a_crop_that_the_script_does_not_know_is_said() -> None:
    config = BrainConfig()
    assert [path.name for path in standalone.standalone(config).files] == ["predict.py", "grid.py", "slices.py"]
    config.crop.mode, config.crop.size = "centre", (64, 64, 64)
    found = standalone.standalone(config)
    assert not found.files
    assert "not centre" in found.missing
