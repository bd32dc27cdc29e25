"""The picture to judge a prediction by: slices of three views with the outlines of prediction and truth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageDraw
from runner_core import Label, Layer
from scipy import ndimage

Array = np.ndarray[Any, np.dtype[Any]]

PREDICTION = (255, 70, 50)
TRUTH = (60, 220, 90)
BOTH = (255, 225, 60)
LABELS = (Label(1, "brain", PREDICTION),)
"""What a mask holds."""
COLUMNS = 6
_TILE = 176
"""Side of a tile (pixels)."""
_LEGEND = 24
"""Height of the legend (pixels)."""


def figure(scan: Array, prediction: Array, truth: Array | None, spacing: Sequence[float]) -> Array:
    """Return a picture (H, W, 3) uint8 of arrays (x, y, z) in RAS with voxels of `spacing` mm.

    The rows are axial, coronal and sagittal slices, from bottom, back and left. The prediction is red, the truth
    green, both yellow, as the legend below says.
    """
    top = float(np.percentile(scan[:: max(1, scan.shape[0] // 96)], 99.5)) or 1.0
    seen = prediction if truth is None else prediction | truth
    if not seen.any():
        seen = np.ones_like(prediction)
    rows = []
    for axis in (2, 1, 0):
        hits = np.flatnonzero(seen.any(axis=tuple({0, 1, 2} - {axis})))
        places = np.linspace(hits[0], hits[-1], COLUMNS + 2)[1:-1].round().astype(int)
        size = [spacing[i] for i in (0, 1, 2) if i != axis]
        extent = max(n * s for n, s in zip(scan.shape, spacing, strict=True))
        tiles = [
            _tile(
                np.take(scan, place, axis) / top,
                np.take(prediction, place, axis),
                None if truth is None else np.take(truth, place, axis),
                [s * (_TILE - 1) / extent for s in size],
            )
            for place in places
        ]
        rows.append(np.concatenate(tiles, axis=1))
    colours = {"prediction": PREDICTION} | ({} if truth is None else {"truth": TRUTH, "where both agree": BOTH})
    return np.concatenate([*rows, _legend(colours, COLUMNS * _TILE)], axis=0)


def layers(scan: Array, prediction: Array | None, truth: Array | None, spacing: Sequence[float]) -> list[Layer]:
    """Return what a viewer shows of arrays (x, y, z) in RAS with voxels of `spacing` mm.

    The slices are axial and go upwards, with the front above and the patient's right side at the left, as radiologists
    look at them.
    """

    def layer(name: str, values: Array, **how: Any) -> Layer:
        return Layer(name, values.transpose(2, 1, 0)[:, ::-1, ::-1], tuple(spacing)[::-1], **how)

    found = [layer("scan", scan)]
    if truth is not None:
        found.append(layer("annotated", truth.astype(np.uint8), labels=(Label(1, "annotated brain", TRUTH),)))
    if prediction is not None:
        found.append(layer("prediction", np.asarray(prediction, np.uint8), labels=LABELS))
    return found


def snapshot(image: Array, prediction: Array, truth: Array) -> Array:
    """Return one slice, bare and with outlines, and the legend: (H, W, 3) uint8; all three arrays are (H, W)."""
    zoom = [(_TILE - 1) / max(image.shape)] * 2
    grey, found, true = image.T / (float(image.max()) or 1.0), prediction.T, truth.T
    nothing = np.zeros_like(found)
    picture = np.concatenate([_tile(grey, nothing, None, zoom), _tile(grey, found, true, zoom)], axis=1)
    colours = {"prediction": PREDICTION, "truth": TRUTH, "where both agree": BOTH}
    return np.concatenate([picture, _legend(colours, 2 * _TILE)], axis=0)


def _legend(colours: Mapping[str, tuple[int, int, int]], width: int) -> Array:
    """Return the legend (_LEGEND, width, 3) uint8: a square of each colour with its meaning."""
    picture = Image.new("RGB", (width, _LEGEND))
    draw, x = ImageDraw.Draw(picture), 8
    for text, colour in colours.items():
        draw.rectangle((x, 7, x + 9, 16), fill=colour)
        draw.text((x + 16, 6), text, fill=(220, 220, 220))
        x += 16 + round(draw.textlength(text)) + 24
    return np.asarray(picture)


def _tile(scan: Array, prediction: Array, truth: Array | None, zoom: Sequence[float]) -> Array:
    """Return one slice as (_TILE, _TILE, 3) uint8, with the second axis upwards."""
    grey = _enlarge(np.clip(scan, 0, 1).astype(np.float32), zoom)
    picture = np.repeat((grey * 255).clip(0, 255).astype(np.uint8)[..., None], 3, axis=2)
    red = _outline(prediction, zoom)
    green = np.zeros_like(red) if truth is None else _outline(truth, zoom)
    for where, colour in ((red & ~green, PREDICTION), (green & ~red, TRUTH), (red & green, BOTH)):
        picture[where] = colour
    return picture.swapaxes(0, 1)[::-1]


def _outline(mask: Array, zoom: Sequence[float]) -> Array:
    large = _enlarge(mask.astype(np.float32), zoom) > 0.5
    return large & ~np.asarray(ndimage.binary_erosion(large))


def _enlarge(picture: Array, zoom: Sequence[float]) -> Array:
    """Return `picture` zoomed and centred on a tile."""
    centre = [(n - 1) / 2 - (_TILE - 1) / 2 / z for n, z in zip(picture.shape, zoom, strict=True)]
    steps = [1 / z for z in zoom]
    return np.asarray(ndimage.affine_transform(picture, steps, centre, (_TILE, _TILE), order=1, mode="grid-constant"))
