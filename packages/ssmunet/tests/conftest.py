"""Fixtures: small cores written as npz, with every fault a test asks for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runner_ssmunet.config import SpectraConfig

WAVENUMBERS = np.linspace(900.0, 1800.0, 101)


def tissue_disc(height: int, width: int) -> np.ndarray:
    """Bool (H, W): a disc in the middle."""
    y, x = np.mgrid[:height, :width]
    return (y - (height - 1) / 2) ** 2 + (x - (width - 1) / 2) ** 2 < (0.4 * min(height, width)) ** 2


def core_arrays(
    height: int = 12, width: int = 14, wavenumbers: np.ndarray = WAVENUMBERS, seed: int = 0
) -> dict[str, np.ndarray]:
    """The arrays of core_*.npz: amide I and II in a disc of tissue, three classes annotated on a few pixels of it."""
    rng = np.random.default_rng(seed)
    tissue = tissue_disc(height, width)
    bands = np.exp(-(((wavenumbers - 1655) / 22) ** 2)) + 0.6 * np.exp(-(((wavenumbers - 1545) / 22) ** 2))
    height_of = np.where(tissue, rng.uniform(0.5, 1.0, tissue.shape), 0.0)
    spectra = height_of[..., None] * bands + rng.normal(0, 0.003, (*tissue.shape, len(wavenumbers)))
    labels = np.where(tissue & (rng.random(tissue.shape) < 0.3), rng.integers(1, 4, tissue.shape), 0)
    return {
        "X": spectra.astype(np.float32),
        "y": labels.astype(np.uint8),
        "wn": wavenumbers,
        "tissue_mask": tissue,
        "delta_cm1": np.float64(np.median(np.diff(wavenumbers))),
    }


@pytest.fixture
def make_core() -> Callable[..., dict[str, np.ndarray]]:
    """make_core(height, width, wavenumbers, seed) → the arrays of a core, as `write_core` writes them."""
    return core_arrays


@pytest.fixture
def core() -> dict[str, np.ndarray]:
    """The arrays of a core of 5 × 7 pixels."""
    return core_arrays(5, 7)


@pytest.fixture
def data() -> SpectraConfig:
    return SpectraConfig(classes=("red", "green", "blue"))


@pytest.fixture
def write_core(tmp_path: Path) -> Callable[..., Path]:
    """write_core(name, meta=…, y=…, X=None …) → path below tmp_path/data; a value of None leaves the key out."""

    def write(name: str = "core_1", meta: Any = "default", seed: int = 0, **changed: Any) -> Path:
        arrays: dict[str, Any] = core_arrays(seed=seed) | changed
        if isinstance(meta, str) and meta == "default":
            meta = {"core_id": name.rpartition("/")[2], "patient_id": "P1", "slide_id": "S1"}
        arrays["meta"] = json.dumps(meta) if isinstance(meta, dict) else meta
        path = tmp_path / "data" / f"{name}.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, **{key: value for key, value in arrays.items() if value is not None})
        return path

    return write
