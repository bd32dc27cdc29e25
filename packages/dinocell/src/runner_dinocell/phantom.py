"""Generated plates in the layout and the names of JUMP-CP, with a treatment hidden in them.

There are 4 plates of 24 wells with 2 sites each, 3 channels, 128² pixels of 16 bits; labels.csv has each well's
treatment. A treatment changes the shape and the texture of the cells (`cells`), and nothing that statistics of grey
values show: before the plates' own effects, every channel of every field has the same histogram, so mean and variance
too. Each plate then has gains, offsets, shading and background of its own. Treatments are spread at random over the
wells, equally many on every plate. Two files are damaged, as some always are. This is version 1: if you change the
files, raise `phantom_version` of the project.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tifffile
from runner_core import Array
from scipy import ndimage

from runner_dinocell.cells import CHANNELS, Style, Treatment, draw, haze, style

TREATMENTS = (
    Treatment("control", 1.1, 3, 0.05, (1.0, 1.0), 0.0),
    Treatment("elongating", 3.5, 2, 0.05, (6.0, 1.0), 0.0),
    Treatment("vacuolising", 1.2, 3, 0.15, (3.0, 3.0), -0.7),
    Treatment("fragmenting", 1.3, 6, 0.35, (1.6, 1.6), 1.0),
)
PLATES = ("BR0101", "BR0102", "BR0201", "BR0202")
ROWS, COLUMNS = 4, 6
SITES = 2
SIDE = 128
COVER = 0.4
"""Share of a field that cells cover."""
ROUNDS = 3
"""Rounds of making fields alike; the remaining differences of correlations are hidden by the plates' effects and noise.
"""
FOCUS = (0.6, 0.9)
"""Range of the point spread's standard deviation (pixels), drawn for each field."""


def write_phantom(
    folder: Path,
    rng: np.random.Generator,
    plates: Sequence[str] = PLATES,
    wells: tuple[int, int] = (ROWS, COLUMNS),
    side: int = SIDE,
) -> None:
    """Write 576 images of 192 fields, 13 MB in all, and labels.csv; or other numbers of plates, wells and pixels."""
    styles = [style(treatment, rng) for treatment in TREATMENTS]
    medium = haze(4 * side, side / 10, rng)
    places = [(row, column) for row in range(1, wells[0] + 1) for column in range(1, wells[1] + 1)]
    given = [(plate, place, t) for plate in plates for place, t in zip(places, _spread(len(places), rng), strict=True)]
    fields = np.stack([_field(styles[t], medium, side, rng) for _, _, t in given for _ in range(SITES)])
    fields = equalised(fields).reshape(len(plates), len(places), SITES, CHANNELS, side, side)
    for plate, own in zip(plates, fields, strict=True):
        images = photographed(own, rng)
        above = folder / "source_1" / "images" / f"Batch{plate[2:4]}" / "images" / f"{plate}__Measurement1" / "Images"
        above.mkdir(parents=True)
        for (row, column), sites in zip(places, images, strict=True):
            for (site, channel), image in ((at, sites[at]) for at in np.ndindex(SITES, CHANNELS)):
                name = f"r{row:02d}c{column:02d}f{site + 1:02d}p01-ch{channel + 1}sk1fk1fl1.tiff"
                tifffile.imwrite(above / name, image, photometric="minisblack", compression="zlib", metadata=None)
    _damage(folder, rng)
    with (folder / "labels.csv").open("w", newline="") as file:
        rows = [(plate, f"{chr(64 + row)}{column:02d}", TREATMENTS[t].name) for plate, (row, column), t in given]
        csv.writer(file, lineterminator="\n").writerows([("plate", "well", "treatment"), *rows])


def _spread(wells: int, rng: np.random.Generator) -> list[int]:
    """Return the treatments of a plate's wells, equally many of each at random places."""
    return [int(t) for t in rng.permutation(np.arange(wells) % len(TREATMENTS))]


def _field(own: Style, medium: Array, side: int, rng: np.random.Generator) -> Array:
    """Return cells as the optics show them, (channels, side, side) float32."""
    field = draw(own, side, COVER, rng)
    for channel in field:
        y, x = rng.integers(0, medium.shape[0] - side, 2)
        channel += 0.05 * medium[y : y + side, x : x + side]
    focus = rng.uniform(*FOCUS)
    return ndimage.gaussian_filter(field, (0, focus, focus))


def equalised(fields: Array) -> Array:
    """Give fields (n, C, H, W) one histogram per channel and nearly one correlation between each two channels.

    The histogram is the mean of all. In turn, values are moved to the common covariance and replaced by their rank's.
    """
    flat = fields.reshape(*fields.shape[:2], -1)
    for _ in range(ROUNDS):
        flat = _ranked(_correlated(flat))
    return flat.reshape(fields.shape)


def _ranked(flat: Array) -> Array:
    """Give (n, C, pixels) the mean histogram: each value is replaced by its rank's."""
    order = flat.argsort(axis=2)
    usual = np.sort(flat, axis=2).mean(0, keepdims=True)
    out = np.empty_like(flat)
    np.put_along_axis(out, order, np.broadcast_to(usual, flat.shape), axis=2)
    return out


def _correlated(flat: Array) -> Array:
    """Give (n, C, pixels) the mean covariance by the linear map that moves values least.

    That map is the optimal transport between Gaussians.
    """
    means = flat.mean(2, keepdims=True)
    own = np.stack([np.cov(field) for field in flat])
    root, inverse = _power(own, 0.5), _power(own, -0.5)
    maps = inverse @ _power(root @ own.mean(0) @ root, 0.5) @ inverse
    return means.mean(0) + maps.astype(flat.dtype) @ (flat - means)


def _power(matrices: Array, exponent: float) -> Array:
    """Return a power of symmetric positive matrices (n, C, C)."""
    values, vectors = np.linalg.eigh(matrices)
    return (vectors * values[:, None, :] ** exponent) @ vectors.swapaxes(1, 2)


def photographed(fields: Array, rng: np.random.Generator) -> Array:
    """Return fields of one plate (…, C, H, W) as its microscope sees them, uint16, with the camera's noise.

    Gain, offset, shading and background are the plate's; exposure and background also vary a little from field to
    field.
    """
    *many, channels, side, _ = fields.shape
    gain = np.exp(rng.uniform(np.log(500), np.log(2500), (channels, 1, 1)))
    offset = rng.uniform(100, 400, (channels, 1, 1))
    y, x = np.mgrid[-1 : 1 : side * 1j, -1 : 1 : side * 1j]
    middle = rng.uniform(-0.3, 0.3, (2, channels, 1, 1))
    shading = 1 - rng.uniform(0.1, 0.3, (channels, 1, 1)) * ((y - middle[0]) ** 2 + (x - middle[1]) ** 2) / 2
    background = gain * rng.uniform(0.1, 0.3, (channels, 1, 1)) * rng.uniform(0.7, 1.3, (*many, channels, 1, 1))
    light = (gain * rng.uniform(0.85, 1.15, (*many, channels, 1, 1)) * fields + background) * shading
    noise = np.sqrt(4**2 + rng.uniform(0.5, 1.5, (channels, 1, 1)) * np.maximum(light, 0))
    return np.clip(np.rint(offset + light + noise * rng.standard_normal(fields.shape)), 0, 65535).astype(np.uint16)


def _damage(folder: Path, rng: np.random.Generator) -> None:
    """Cut one image short and empty another, of two plates and neither of the first field."""
    files = sorted(folder.rglob("*.tiff"))
    half = len(files) // 2
    cut, emptied = (files[start + int(rng.integers(CHANNELS, half))] for start in (0, len(files) - half))
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size // 2])
    emptied.write_bytes(b"")
