"""A made-up data set in the real formats: discs and rings of some colour, in uneven light.

change this: `train` without --data, the tests and the CI use it, so let it look like your images.
"""

import csv
from pathlib import Path
from zlib import crc32

import numpy as np
from PIL import Image

from runner_newproject import labels

# phantoms are kept: another number, another phantom. Raise the 1 when this file changes.
VERSION = crc32(f"1 {labels.SETTINGS}".encode())


def write(folder: Path, rng: np.random.Generator) -> None:
    """Write five groups of twelve images of differing size, and labels.csv; the last group's are TIFF."""
    (folder / "images").mkdir()
    rows: list[tuple[str | float, ...]] = [("image", "group", labels.COLUMN)]
    for group in "abcde":
        for number in range(12):
            rings, radius, label = labels.phantom(number, rng)
            name = f"{group}_{number}.{'tif' if group == 'e' else 'png'}"
            Image.fromarray(draw(rings, radius, rng)).save(folder / "images" / name)
            rows.append((name, group, label))
    with (folder / "labels.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)


def draw(rings: int, radius: float, rng: np.random.Generator) -> np.ndarray:
    """Return an image (H, W, 3) uint8 of a disc, hollowed by as many rings."""
    side = int(rng.integers(48, 72))
    rows, columns = np.mgrid[:side, :side] / side
    y, x = rng.uniform(radius, 1 - radius, 2)
    distance = np.hypot(rows - y, columns - x) / radius
    hit = (distance < 1) & ((distance * (2 * rings + 1)).astype(int) % 2 == 0)
    light = 0.2 + 0.2 * columns + rng.normal(0, 0.03, (side, side))
    colour = rng.uniform(0.2, 0.4, 3)
    image = light[..., None] + hit[..., None] * colour
    return (np.clip(image, 0, 1) * 255).astype(np.uint8)
