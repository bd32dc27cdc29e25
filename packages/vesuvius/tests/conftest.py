"""Fixtures: small volumes in the challenge's folders, and the project with its pipeline."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runner_vesuvius.config import ScrollConfig, demo

Pair = tuple[np.ndarray, np.ndarray]


def sheets(shape: tuple[int, int, int] = (24, 28, 32), seed: int = 0) -> Pair:
    """Image and label (uint8) of two bright sheets, three voxels thick, that run through it; a rim is ignored."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[: shape[1], : shape[2]]
    label = np.zeros(shape, np.uint8)
    for at in (shape[0] // 4, 3 * shape[0] // 4):
        height = at + np.rint(1.5 * np.sin((x + y + seed) / 6)).astype(int)
        for thick in (-1, 0, 1):
            label[np.clip(height + thick, 0, shape[0] - 1), y, x] = 1
    image = np.clip(60 + 120 * label + rng.normal(0, 8, shape), 0, 255).astype(np.uint8)
    label[:, :4] = 2
    return image, label


@pytest.fixture
def serve() -> Iterator[Callable[[Path], str]]:
    """serve(folder) → the address of a web server of the folder, which lists nothing that zarr could use."""
    servers = []

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *given: Any) -> None:
            pass

    def serve(folder: Path) -> str:
        found = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
        servers.append(found)
        threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return f"http://127.0.0.1:{found.server_address[1]}"

    yield serve
    for each in servers:
        each.shutdown()
        each.server_close()


@pytest.fixture
def make_sheets() -> Callable[..., Pair]:
    return sheets


@pytest.fixture
def config() -> ScrollConfig:
    config = demo()
    config.data.patch = (16, 16, 16)
    config.loss.topology_crop = 12
    config.model.base, config.model.multipliers, config.model.blocks = 2, (1, 2), 1
    config.predict.min_size, config.predict.fill_holes = 0, 0
    return config


@pytest.fixture
def project(config: ScrollConfig) -> Any:
    from runner_vesuvius.project import Vesuvius

    return Vesuvius(config)


@pytest.fixture
def write_volumes(tmp_path: Path) -> Callable[..., Path]:
    """write_volumes({id: scroll}, …) → the folder: train_images, train_labels and train.csv; `labelled=False`: images
    alone."""

    def write(scrolls: dict[str, str], labelled: bool = True, shape: tuple[int, int, int] = (24, 28, 32)) -> Path:
        from runner_vesuvius.volumes import write_tif

        root = tmp_path / "data"
        for name in ("train_images", *(["train_labels"] if labelled else [])):
            (root / name).mkdir(parents=True, exist_ok=True)
        for number, key in enumerate(scrolls):
            image, label = sheets(shape, number)
            write_tif(root / "train_images" / f"{key}.tif", image)
            if labelled:
                write_tif(root / "train_labels" / f"{key}.tif", label)
        rows = [f"{key},{scroll}" for key, scroll in scrolls.items()]
        (root / "train.csv").write_text("\n".join(["id,scroll_id", *rows]) + "\n", encoding="utf-8")
        return root

    return write


@pytest.fixture(scope="session")
def betti_matching_3d() -> Any:
    """The extension module of topolosses by itself: the package around it wants torchvision, and it loads only once."""
    package = importlib.util.find_spec("topolosses")
    if package is None or package.origin is None:
        pytest.skip("topolosses is not installed")
    (file,) = (
        file
        for file in Path(package.origin).parent.glob("losses/betti_matching/src/betti_matching.*")
        if file.suffix in importlib.machinery.all_suffixes()
    )
    spec = importlib.util.spec_from_file_location("betti_matching", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
