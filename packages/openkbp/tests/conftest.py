"""Fixtures: small made-up patients in the challenge's files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runner_openkbp.csvfiles import write_indices, write_values, write_voxels
from runner_openkbp.rois import GRID

BOXES = {  # role → corners, first index back, second left, third down
    "possible_dose_mask": (40, 90, 40, 90, 20, 110),
    "Brainstem": (62, 68, 61, 67, 24, 38),
    "SpinalCord": (68, 71, 62, 66, 40, 100),
    "RightParotid": (58, 64, 46, 52, 40, 50),
    "LeftParotid": (58, 64, 76, 82, 40, 50),
    "Mandible": (44, 50, 54, 74, 44, 52),
    "PTV56": (56, 66, 66, 74, 50, 80),
    "PTV70": (52, 62, 56, 66, 52, 74),
}
"""A plausible patient of boxes: nothing of it overlaps, and every region lies where it belongs."""


def box(*corners: int) -> np.ndarray:
    """Bool 128³, true from corner to corner (first and last of each axis, half open)."""
    mask = np.zeros(GRID, bool)
    mask[corners[0] : corners[1], corners[2] : corners[3], corners[4] : corners[5]] = True
    return mask


@pytest.fixture
def write_boxes(tmp_path: Path) -> Callable[..., Path]:
    """write_boxes(name, without=(), …) → folder of a patient below tmp_path/data; `boxes` replaces or adds regions."""

    def write(
        name: str = "pt_1", without: tuple[str, ...] = (), boxes: dict[str, tuple[int, ...]] | None = None
    ) -> Path:
        folder = tmp_path / "data" / name
        folder.mkdir(parents=True)
        masks = {role: box(*corners) for role, corners in (BOXES | (boxes or {})).items() if role not in without}
        body = masks.get("possible_dose_mask", box(*BOXES["possible_dose_mask"]))
        dose = body * 12.5
        for target in ("PTV56", "PTV63", "PTV70"):
            if target in masks:
                dose[masks[target]] = float(target[3:]) + 1.25
        if "dose" not in without:
            write_values(folder / "dose.csv", dose, body)
        if "ct" not in without:
            write_values(folder / "ct.csv", (body * 1050).astype(np.int16))
        if "voxels" not in without:
            write_voxels(folder / "voxel_dimensions.csv", np.array([4.0, 4.0, 2.5]))
        for role, mask in masks.items():
            write_indices(folder / f"{role}.csv", mask)
        return folder

    return write


@pytest.fixture
def gradient() -> Callable[[Callable[[Any], Any], np.ndarray], np.ndarray]:
    """gradient(function, at) → d function / d at, of a function to a 0-d tensor; under either of Keras' backends."""
    import keras

    def with_jax(function: Callable[[Any], Any], at: np.ndarray) -> np.ndarray:
        import jax

        return np.asarray(jax.grad(function)(at))

    def with_tensorflow(function: Callable[[Any], Any], at: np.ndarray) -> np.ndarray:
        import tensorflow as tf

        point = tf.constant(at)
        with tf.GradientTape() as tape:
            tape.watch(point)
            value = function(point)
        return tape.gradient(value, point).numpy()

    return with_jax if keras.backend.backend() == "jax" else with_tensorflow
