"""A made-up data set in the real formats: discs to be found among equally bright rings, in uneven light.

Discs of the first class are plain; each further class has stripes of its own width.

change this: `train` without --data, the tests and the CI use it, so let it look like your images.
"""

from pathlib import Path
from zlib import crc32

import numpy as np
from PIL import Image

from runner_newproject.config import CLASSES

# phantoms are kept: another number, another phantom. Raise the 2 when this file changes.
VERSION = crc32(f"2 {list(CLASSES.values())}".encode())


def write(folder: Path, rng: np.random.Generator) -> None:
    """Five groups of three images of differing size; the last group's are TIFF."""
    (folder / "images").mkdir()
    (folder / "masks").mkdir()
    for group in "abcde":
        for number in range(3):
            height, width = rng.integers(90, 150, 2)
            image, mask = draw(height, width, rng)
            file = folder / "images" / f"{group}_{number}.{'tif' if group == 'e' else 'png'}"
            Image.fromarray((image * 255).astype(np.uint8)).save(file)
            grey = np.array(list(CLASSES.values()), np.uint8)[mask]
            Image.fromarray(grey).save(folder / "masks" / f"{group}_{number}.png")


def draw(height: int, width: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Image (H, W) in 0…1 and class numbers (H, W)."""
    rows, columns = np.mgrid[:height, :width]
    image = 0.2 + 0.3 * columns / width + rng.normal(0, 0.05, (height, width))
    mask = np.zeros((height, width), np.uint8)
    discs = max(4, 2 * (len(CLASSES) - 1))
    for number in range(2 * discs):
        inner = 0.6 * (number % 2)  # share of the radius that is hollow: every other one is a ring
        y, x, radius = rng.uniform(0, height), rng.uniform(0, width), rng.uniform(7, 15)
        distance = np.hypot(rows - y, columns - x) / radius
        hit = (distance < 1) & (distance >= inner)
        kind = 1 + number // 2 % (len(CLASSES) - 1)  # a class, but the first
        image[hit & (2 * (rows % kind) < kind)] += 0.25  # every row of 1, every second of 2, two of four of 4
        mask[hit] = 0 if inner else kind
    return np.clip(image, 0, 1), mask
