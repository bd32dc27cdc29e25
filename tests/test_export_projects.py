"""Exports of the real projects: their script writes what `predict` writes, where runner cannot be imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nibabel
import numpy as np
import pytest
import runner_core
import tifffile

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


def sheets(folder: Path) -> Path:
    """Two volumes of each of two scrolls, in the challenge's layout: two bright sheets each; the folder of all."""
    rng = np.random.default_rng(0)
    z = np.indices((20, 22, 24))[0]
    label = ((abs(z - 5) <= 1) | (abs(z - 13) <= 1)).astype(np.uint8)
    for key in ("1", "2", "3", "4"):
        image = (60 + 120 * label + rng.normal(0, 8, label.shape)).clip(0, 255).astype(np.uint8)
        for place, array in (("train_images", image), ("train_labels", label)):
            (folder / place).mkdir(parents=True, exist_ok=True)
            tifffile.imwrite(folder / place / f"{key}.tif", array)
    (folder / "train.csv").write_text("id,scroll_id\n1,A\n2,A\n3,B\n4,B\n")
    return folder


@pytest.mark.slow
def test_vesuviuss_script_finds_the_same_voxels(tmp_path: Path) -> None:
    """The whole script: the same mask, but for voxels that lie within a step of 1/255 of the threshold."""
    from runner_vesuvius.postprocess import lowest

    data = sheets(tmp_path / "data")
    settings: dict[str, Any] = {"data.patch": (16, 16, 16), "data.patches": 2, "model.base": 2, "train.epochs": 1}
    settings |= {"model.multipliers": (1, 2), "loss.topology_crop": 12, "health.mode": "off", "train.workers": 0}
    run = runner_core.train("vesuvius", data=data, run_dir=tmp_path / "run", preset="demo", **settings)
    scan, volume = data / "train_images" / "3.tif", tmp_path / "3.npy"
    np.save(volume, tifffile.imread(scan))
    given: dict[str, Any] = {"predict.min_size": 0, "predict.fill_holes": 0, "predict.views": ("mirror-y", "turn-90")}
    soft = run.predict(scan, **given).prediction.probability
    threshold = float(np.median(soft)) / 255
    given |= {"predict.threshold": threshold, "predict.seed_threshold": threshold}
    expected = run.predict(scan, **given).prediction.mask
    run.export(tmp_path / "away", to="onnx", data=data, **given)
    alone(tmp_path / "away", volume, "--out", tmp_path / "masks")
    found = np.load(tmp_path / "masks" / "3.npy")
    near = abs(soft.astype(int) - lowest(threshold)) <= 1
    assert 0.1 < expected.mean() < 0.9
    assert near.mean() < 0.9
    np.testing.assert_array_equal(found[~near], expected[~near])


def test_dinocells_network_takes_any_number_of_windows(tmp_path: Path) -> None:
    """PyTorch wrote it for two windows alone, and ONNX not at all: a bound was a whole number, the other was not."""
    from runner_dinocell.config import demo
    from runner_dinocell.project import DinoCell
    from runner_export import session, write
    from runner_export.axes import multiples
    from runner_export.window import Graph, Window

    config = demo()
    config.model.prototypes = config.model.hidden = config.model.bottleneck = 16
    config.augment.global_size = 32
    rng = np.random.default_rng(0)
    example: dict[str, Any] = {
        "image": rng.integers(0, 4000, (5, 2, 49, 49)).astype(np.uint16),
        "levels": np.tile(np.array([100, 3000], np.float32), (5, 2, 1)),
        "grey": np.ones((5, 2), np.int32),
    }
    project: Any = DinoCell(config)
    project.statistics = {"channels": ("a", "b")}
    job: Any = SimpleNamespace(
        project=project, trained=SimpleNamespace(network=project.model(None).eval(), statistics={})
    )
    graph = Graph(job, tuple(example))
    window = Window(graph, example)
    graph.infer(window.small)
    described = write.write_onnx(window, multiples(graph, window.small), tmp_path / "model.onnx")
    infer = session.load_networks(tmp_path, [described], 1)
    assert described["inputs"][0]["shape"] == ["batch", 2, 49, 49]
    for count in (1, 2, 5):
        some = {name: array[:count] for name, array in example.items()}
        np.testing.assert_allclose(infer(some)["embedding"], graph.infer(some)["embedding"], atol=1e-4)
