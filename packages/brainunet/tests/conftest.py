"""Fixtures: small heads written as NIfTI, and the project with its pipeline."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import nibabel
import numpy as np
import pytest
import runner_core
import torch
from runner_brainunet.config import BrainConfig, small
from runner_brainunet.network import UNet
from runner_brainunet.project import BrainUNet
from runner_core import Arrays


def ball(shape: tuple[int, ...], spacing: tuple[float, ...], centre: tuple[float, ...], radius: float) -> np.ndarray:
    """Bool (x, y, z): voxels within `radius` mm of `centre` mm (from the first voxel's centre)."""
    axes = np.meshgrid(*[np.arange(n) * s for n, s in zip(shape, spacing, strict=True)], indexing="ij")
    return sum((a - c) ** 2 for a, c in zip(axes, centre, strict=True)) < radius**2


@pytest.fixture(scope="session")
def untrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network that was never trained: what it finds does not matter here."""
    folder = tmp_path_factory.mktemp("run") / "untrained"
    settings = {
        "data.spacing": 8.0, "data.size": 32, "data.views": ["axial"], "data.neighbours": 1, "model.features": [4, 8],
        "predict.threshold": 0.5,
    }  # fmt: skip
    torch.manual_seed(0)
    weights = UNet(1, (4, 8), "batch").state_dict()
    run_of = {"weights": weights, "statistics": {}, "preset": "demo", "settings": settings, "run_dir": folder}
    runner_core.write_run("brainunet", source=folder / "weights", **run_of)
    return folder


@pytest.fixture
def config() -> BrainConfig:
    config = small()
    config.data.size = 64
    config.data.spacing = 4.0
    config.predict.threshold = 0.5
    config.model.features = (4, 8)
    return config


@pytest.fixture
def project(config: BrainConfig) -> BrainUNet:
    return BrainUNet(config)


@pytest.fixture
def write_head(tmp_path: Path) -> Callable[..., Path]:
    """write_head(name, …) → path of a scan below tmp_path/data, with its mask beside it unless mask=None."""

    def write(
        name: str = "sub-01/sub-01_ses-1_T1w",
        affine: np.ndarray | None = None,
        shape: tuple[int, int, int] = (40, 48, 36),
        spacing: tuple[float, float, float] = (5.0, 5.0, 5.0),
        scan: np.ndarray | None = None,
        mask: np.ndarray | bool | None = True,
        mask_affine: np.ndarray | None = None,
    ) -> Path:
        middle = tuple((n - 1) * s / 2 for n, s in zip(shape, spacing, strict=True))
        head, brain = ball(shape, spacing, middle, 82), ball(shape, spacing, middle, 62)
        if scan is None:
            rng = np.random.default_rng(0)
            scan = (head * 300 + brain * 300 + rng.integers(0, 30, shape)).astype(np.int16)
        if mask is True:
            mask = brain.astype(np.uint8)
        affine = np.diag([*spacing, 1.0]) if affine is None else affine
        path = tmp_path / "data" / f"{name}.nii.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        nibabel.save(nibabel.Nifti1Image(scan, affine), path)
        if mask is not None and mask is not False:
            place = affine if mask_affine is None else mask_affine
            nibabel.save(nibabel.Nifti1Image(mask, place), path.with_name(path.name.replace(".nii", "_brainmask.nii")))
        return path

    return write


@pytest.fixture
def bright_is_brain() -> Callable[[Arrays], Arrays]:
    """Stands in for a trained network: a voxel of the middle slice is brain where it is bright."""

    def infer(arrays: Arrays) -> Arrays:
        middle = arrays["image"].shape[1] // 2
        return {"prediction": (arrays["image"][:, middle : middle + 1].astype(np.float32) - 150) / 10}

    return infer
