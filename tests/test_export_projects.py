"""Exports of the real projects: their script writes what `predict` writes, where runner cannot be imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import runner_core

pytest.importorskip("runner_export")

_BLOCKED = (
    "runner_core",
    "runner_export",
    "runner_brainunet",
    "runner_vesuvius",
    "torch",
    "scipy",
    "nibabel",
    "skimage",
)


def alone(folder: Path, *words: str | Path) -> str:
    """Run an export's predict.py where nothing but NumPy and the network's runtime can be imported."""
    block = folder.parent / "block"
    block.mkdir(exist_ok=True)
    lines = "".join(f"sys.modules[{name!r}] = None\n" for name in _BLOCKED)
    (block / "sitecustomize.py").write_text(f"import sys\n{lines}")
    environment = {**os.environ, "PYTHONPATH": str(block), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(folder / "predict.py"), *map(str, words)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def about(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "export.json").read_text())
    return found


def small_head(folder: Path, dtype: type, axes: str) -> Path:
    """A bright head with a dark rim around its brain, 2 mm, in the given axes, and its mask; the folder of both."""
    folder.mkdir()
    x, y, z = np.meshgrid(*(np.arange(n) - n / 2 for n in (44, 52, 40)), indexing="ij")
    radius = np.sqrt((x / 17) ** 2 + (y / 21) ** 2 + (z / 15) ** 2)
    rng = np.random.default_rng(3)
    voxels = np.select([radius < 0.75, radius < 0.9, radius < 1.1], [700, 150, 900], 20) + rng.normal(0, 25, x.shape)
    affine = np.diag([2.0, 2.0, 2.0, 1.0])
    affine[:3, 3] = (-44, -52, -40)
    turn = nibabel.orientations.axcodes2ornt(axes)
    for name, values in (
        ("s1_T1w", voxels.clip(0).astype(dtype)),
        ("s1_T1w_brainmask", (radius < 0.8).astype(np.uint8)),
    ):
        image = nibabel.as_closest_canonical(nibabel.Nifti1Image(values, affine)).as_reoriented(
            nibabel.orientations.ornt_transform(nibabel.orientations.axcodes2ornt("RAS"), turn)
        )
        nibabel.save(image, folder / f"{name}.nii.gz")
    return folder


@pytest.mark.parametrize("settings", [
    {},
    pytest.param({"views": ("none",), "margin": 3.0, "fill_holes": False}, marks=pytest.mark.slow),
])  # fmt: skip
def test_brainunets_script_finds_the_same_voxels(settings: dict[str, Any], tmp_path: Path) -> None:
    data, run = small_head(tmp_path / "data", np.int16, "PIL"), runner_core.open("builtin", "brainunet")
    given = {f"predict.{name}": value for name, value in settings.items()}
    folder = tmp_path / "away"
    run.export(folder, to="onnx", data=data, **given)
    (scan,) = data.glob("*_T1w.nii.gz")
    alone(folder, scan, "--out", tmp_path / "masks")
    mask: Any = nibabel.load(tmp_path / "masks" / "s1_T1w_brainmask.nii.gz")
    expected = run.predict(scan, **given)
    assert expected.array.sum() > 1000
    np.testing.assert_array_equal(np.asarray(mask.dataobj), expected.array)
    np.testing.assert_array_equal(mask.affine, nibabel.load(scan).affine)
    written = about(folder)
    assert written["parity"]["records"] == 1
    (image,) = written["networks"][0]["inputs"]
    assert image["multiple"] == [1, None, 8, 8]
