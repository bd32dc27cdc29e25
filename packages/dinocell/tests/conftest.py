"""Fixtures: small plates in JUMP's names, the phantom in small, real images, and what else several tests need."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import tifffile
from runner_dinocell import phantom
from runner_dinocell.config import CellConfig, demo

REAL = Path(os.environ.get("RUNNER_TEST_DATA", Path(__file__).resolve().parents[4] / "shared" / "data")) / "dinocell"


@pytest.fixture
def config() -> CellConfig:
    return demo()


@pytest.fixture(scope="session")
def real_plate() -> Path:
    """3 wells × 2 sites × 5 channels of Cell Painting, 520 × 696 uint16."""
    if not (REAL / "plate1").is_dir():
        pytest.skip(f"no real images in {REAL}")
    return REAL / "plate1"


@pytest.fixture(scope="session")
def small_phantom(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two plates of 2 × 4 wells, two sites each, 64² pixels; two files are damaged."""
    folder = tmp_path_factory.mktemp("phantom") / "small"
    phantom.write_phantom(folder, np.random.default_rng(0), phantom.PLATES[:2], (2, 4), 64)
    return folder


@pytest.fixture(scope="session")
def grey() -> Callable[..., np.ndarray]:
    """grey(shape, seed) → an image (H, W) uint16 of a bright blob on a background, with noise."""
    return _grey


def _grey(shape: tuple[int, int] = (40, 48), seed: int = 0, top: int = 3000) -> np.ndarray:
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[-1 : 1 : shape[0] * 1j, -1 : 1 : shape[1] * 1j]
    blob = np.exp(-4 * ((x - rng.uniform(-0.3, 0.3)) ** 2 + y**2)) * (1 + 0.3 * np.sin(20 * x) * np.sin(20 * y))
    return np.clip(200 + top * blob + rng.normal(0, 20, shape), 0, 65535).astype(np.uint16)


@pytest.fixture
def write_image() -> Callable[..., Path]:
    """write_image(path, image=…, **tifffile's) → the path; folders are made."""

    def write(path: Path, image: np.ndarray | None = None, **settings: object) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        tifffile.imwrite(path, _grey() if image is None else image, photometric="minisblack", **settings)
        return path

    return write


@pytest.fixture
def write_plates(tmp_path: Path, write_image: Callable[..., Path]) -> Callable[..., Path]:
    """write_plates({plate: number of wells}, channels=2, shape=…) → a folder with PLATE/PLATE_A01_site1_Ch1.tif …"""

    def write(plates: dict[str, int], channels: int = 2, shape: tuple[int, int] = (40, 48)) -> Path:
        root = tmp_path / "data"
        for p, (plate, wells) in enumerate(plates.items()):
            for well in range(1, wells + 1):
                for channel in range(1, channels + 1):
                    image = _grey(shape, seed=1000 * p + 10 * well + channel)
                    write_image(root / plate / f"{plate}_A{well:02d}_site1_Ch{channel}.tif", image)
        return root

    return write


@pytest.fixture(scope="module")
def s3() -> Iterator[object]:
    """An S3 server on this machine (`tests/s3server.py`)."""
    pytest.importorskip("moto")
    from s3server import S3

    with S3() as server:
        yield server
