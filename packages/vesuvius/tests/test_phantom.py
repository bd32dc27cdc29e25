"""The phantom: the challenge's layout, several scrolls, torn and touching sheets that no threshold finds."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import tifffile
from runner_vesuvius import phantom
from runner_vesuvius.papyrus import Rolling, roll
from scipy import ndimage

SMALL = (64, 72, 80)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two volumes of each scroll, the first two of full size."""
    return written(tmp_path_factory.mktemp("phantom"), 0)


def written(folder: Path, seed: int) -> Path:
    phantom.write_phantom(folder, np.random.default_rng(seed), (1, 2, 1, 1), shape=SMALL)
    return folder


def table(folder: Path, side: str = "train") -> dict[str, str]:
    with (folder / f"{side}.csv").open() as file:
        return {row["id"]: row["scroll_id"] for row in csv.DictReader(file)}


def pairs(folder: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    return {
        name: tuple(tifffile.imread(folder / part / f"{name}.tif") for part in ("train_images", "train_labels"))
        for name in table(folder)
    }


def test_the_layout_is_the_challenges(folder: Path) -> None:
    assert Counter(table(folder).values()) == {"PHerc-A": 1, "PHerc-B": 2, "PHerc-C": 1, "PHerc-D": 1}
    for part in ("train_images", "train_labels"):
        assert {p.stem for p in (folder / part).iterdir()} == set(table(folder))
    assert {p.stem for p in (folder / "test_images").iterdir()} == set(table(folder, "test"))
    assert set(table(folder, "test").values()) == {"PHerc-E"}
    for path in folder.rglob("*.tif"):
        with tifffile.TiffFile(path) as tif:
            assert len(tif.pages) == SMALL[0]
            assert {page.compression for page in tif.pages} == {tifffile.COMPRESSION.LZW}


def test_what_is_written_by_default() -> None:
    """Enough volumes and scrolls for a split by scroll, of which the demo is made."""
    assert len(phantom.VOLUMES) >= 4
    assert min(phantom.VOLUMES) >= 2
    assert phantom.SHAPE == (96, 96, 96)


def test_labels(folder: Path) -> None:
    """Surface, background and ignore everywhere; over half is ignored, the rim among it; surfaces are thin."""
    for image, label in pairs(folder).values():
        assert image.shape == label.shape == SMALL
        assert image.dtype == label.dtype == np.uint8
        shares = np.bincount(label.ravel(), minlength=3) / label.size
        assert len(shares) == 3
        assert shares[2] > 0.5
        assert 0.1 < shares[1] / (shares[0] + shares[1]) < 0.4
        assert (label[0] == 2).all()
        assert (label[:, :, -1] == 2).all()
        assert 1.5 < 2 * np.quantile(ndimage.distance_transform_edt(label == 1)[label == 1], 0.95) < 6


def test_a_threshold_is_not_enough(folder: Path) -> None:
    """The best threshold of each scroll, chosen with its own labels; and they differ from scroll to scroll."""
    best = set()
    for image, label in pairs(folder).values():
        curve = dice_of_thresholds(image[label != 2], label[label != 2] == 1)
        assert 0.3 < curve.max() < 0.7
        best.add(int(curve.argmax()))
    assert max(best) - min(best) > 20


def dice_of_thresholds(image: np.ndarray, surface: np.ndarray) -> np.ndarray:
    """Dice of `image >= t` for every t."""
    inside, outside = (np.bincount(image[part], minlength=256)[::-1].cumsum()[::-1] for part in (surface, ~surface))
    return 2 * inside / (inside + outside + surface.sum())


def test_the_recto_is_a_face_of_the_papyrus() -> None:
    """Surface voxels are papyrus or touch it, and most papyrus is no surface."""
    piece = roll(Rolling(pitch=12, thickness=5.5, waves=3, crease=2, torn=2), SMALL, np.random.default_rng(1))
    papyrus = piece.papyrus > 0.3
    near = ndimage.binary_dilation(papyrus, iterations=2)
    assert near[piece.surface].mean() > 0.97
    assert 0.3 < piece.surface[papyrus].mean() < 0.6


def test_sheets_nearly_touch_and_are_torn() -> None:
    rng = np.random.default_rng(2)
    piece = roll(Rolling(pitch=12, thickness=5.5, waves=3, crease=2, torn=1.9), SMALL, rng)
    papyrus = piece.papyrus > 0.3
    touching = [
        papyrus[a] & papyrus[b] & (piece.winding[a] != piece.winding[b])
        for a, b in ((np.s_[:, 2:], np.s_[:, :-2]), (np.s_[:, :, 2:], np.s_[:, :, :-2]))
    ]
    assert sum(int(t.sum()) for t in touching) > 0.005 * papyrus.sum()
    whole = roll(Rolling(pitch=12, thickness=5.5, waves=3, crease=2, torn=9), SMALL, np.random.default_rng(2))
    missing = whole.surface & ~piece.surface
    assert 0.01 < missing.sum() / whole.surface.sum() < 0.4


def test_the_same_seed_gives_the_same_files(folder: Path, tmp_path: Path) -> None:
    written(tmp_path / "again", 0)
    written(tmp_path / "other", 1)
    files = sorted(p.relative_to(folder) for p in folder.rglob("*.*"))
    assert all((folder / f).read_bytes() == (tmp_path / "again" / f).read_bytes() for f in files)
    assert not all((tmp_path / "other" / f).is_file() for f in files)
