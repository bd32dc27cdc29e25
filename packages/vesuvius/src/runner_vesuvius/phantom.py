"""Generated scrolls in the challenge's layout: train_images, train_labels and train.csv; test_images and test.csv.

Every scroll was rolled, damaged and scanned in its own way (`papyrus` rolls it): sheets that nearly touch, tears,
layers that came apart, debris between the sheets, inclusions, shading, correlated noise. Papyrus is bright from face to
face and the label is only its recto, so that no threshold finds it. Brightness differs from scroll to scroll, so a
threshold does not carry over either. Over half of each volume is not annotated. This is version 1: if you change the
files, raise `phantom_version` of the project.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from runner_core import Array
from scipy import ndimage

from runner_vesuvius.labels import IGNORE
from runner_vesuvius.papyrus import Piece, Rolling, roll, smooth
from runner_vesuvius.volumes import write_tif

VOLUMES = (3, 2, 3, 2)
"""Volumes of each labelled scroll."""
UNLABELLED = 1
"""Volumes of one more scroll, without labels."""
SHAPE = (96, 96, 96)
KNOWN = (0.3, 0.46)
"""Share of a volume that is annotated."""
RIM = 4
"""Voxels at the faces of a volume that are not annotated."""


@dataclass(frozen=True)
class Scan:
    """Appearance of a scroll in its scan, in grey values of 0 to 255."""

    air: float
    papyrus: float
    noise: float
    blur: float
    """Standard deviation of the point spread (voxels)."""
    shading: float
    """Size of the slow change of brightness, as a share."""
    debris: float
    """Brightness of debris between the sheets, as a share of papyrus."""


def write_phantom(
    folder: Path,
    rng: np.random.Generator,
    volumes: Sequence[int] = VOLUMES,
    unlabelled: int = UNLABELLED,
    shape: tuple[int, int, int] = SHAPE,
) -> None:
    """Write ten labelled volumes of four scrolls and one without labels of a fifth, 12 MB in all.

    The arguments give other numbers of `volumes` for each labelled scroll, of `unlabelled` volumes of one more, and
    another `shape`.
    """
    counts = (*volumes, unlabelled)
    numbers = iter(rng.choice(np.arange(100_000, 1_000_000), sum(counts), replace=False).tolist())
    tables: dict[str, list[tuple[int, str]]] = {"train": [], "test": []}
    for name in ("train_images", "train_labels", "test_images"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for i, (rolling, scan) in enumerate(make_scrolls(len(counts), rng)):
        side = "train" if i < len(volumes) else "test"
        for _ in range(counts[i]):
            number = next(numbers)
            image, label = make_volume(rolling, scan, shape, rng)
            write_tif(folder / f"{side}_images" / f"{number}.tif", image)
            if side == "train":
                write_tif(folder / "train_labels" / f"{number}.tif", label)
            tables[side].append((number, f"PHerc-{chr(ord('A') + i)}"))
    for side, rows in tables.items():
        with (folder / f"{side}.csv").open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([("id", "scroll_id"), *sorted(rows)])


def make_scrolls(count: int, rng: np.random.Generator) -> list[tuple[Rolling, Scan]]:
    """Return scrolls that differ in everything: values cover their whole range, each in another order."""

    def spread(low: float, high: float) -> list[float]:
        places = (np.arange(count) + rng.uniform(0.2, 0.8, count)) / count
        return (low + (high - low) * rng.permutation(places)).tolist()

    pitch, thickness = spread(10.5, 14.5), spread(0.40, 0.48)
    waves, crease, torn = spread(2, 4.5), spread(1, 4), spread(1.6, 2.2)
    air, contrast, noise = spread(20, 110), spread(50, 105), spread(0.13, 0.24)
    blur, shading, debris = spread(0.7, 1.0), spread(0.06, 0.14), spread(0.4, 0.75)
    return [
        (
            Rolling(pitch[i], pitch[i] * thickness[i], waves[i], crease[i], torn[i]),
            Scan(air[i], air[i] + contrast[i], noise[i], blur[i], shading[i], debris[i]),
        )
        for i in range(count)
    ]


def make_volume(
    rolling: Rolling, scan: Scan, shape: tuple[int, int, int], rng: np.random.Generator
) -> tuple[Array, Array]:
    """Return image and label of a piece of the scroll, (D, H, W) uint8."""
    piece = roll(rolling, shape, rng)
    image = scanned(piece, scan, rng)
    known = annotated(piece, rng)
    return image, np.where(known, piece.surface, IGNORE).astype(np.uint8)


def scanned(piece: Piece, scan: Scan, rng: np.random.Generator) -> Array:
    """Return the scan of a piece (uint8)."""
    shape = piece.papyrus.shape
    debris = scan.debris * np.clip(smooth(shape, 5, rng) + 0.5 * smooth(shape, 16, rng) - 0.9, 0, 1)
    pockets = np.clip(smooth(shape, 2.5, rng) - 2.2, 0, 1)
    matter = np.maximum(piece.papyrus * (1 - pockets), debris)
    matter = ndimage.gaussian_filter(matter + _inclusions(shape, rng), scan.blur, truncate=2.5)
    cupping = (piece.radius - piece.radius.mean()) / piece.radius.max()
    shade = 1 + scan.shading * (0.7 * smooth(shape, 40, rng) + cupping)
    noise = ndimage.gaussian_filter(rng.standard_normal(shape, np.float32), 0.6, truncate=2.5)
    contrast = scan.papyrus - scan.air
    grey = (scan.air + contrast * matter) * shade + contrast * scan.noise * noise / noise.std()
    return np.clip(np.rint(grey), 0, 255).astype(np.uint8)


def _inclusions(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Return small dense grains."""
    grains = np.zeros(shape, np.float32)
    count = int(rng.integers(20, 60))
    places = tuple(rng.integers(0, n, count) for n in shape)
    grains[places] = rng.uniform(5, 40, count)
    return ndimage.gaussian_filter(grains, 0.8, truncate=2.5)


def annotated(piece: Piece, rng: np.random.Generator) -> Array:
    """Return the annotated region (bool): a smooth region of some windings, away from the volume's faces."""
    shape = piece.winding.shape
    inner = np.zeros(shape, bool)
    inner[(slice(RIM, -RIM),) * 3] = True
    left_out = rng.choice(np.unique(piece.winding), 1)
    inner &= ~np.isin(piece.winding, left_out)
    field = smooth(shape, 18, rng)
    share = rng.uniform(*KNOWN) * inner.size / np.count_nonzero(inner)
    return inner & (field > np.quantile(field[inner], max(0.2, 1 - share)))
