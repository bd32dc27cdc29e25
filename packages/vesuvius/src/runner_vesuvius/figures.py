"""Picture of a volume: three slices, bare and with the outlines of prediction and truth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from PIL import Image, ImageDraw
from runner_core import Array, Label, Layer
from scipy import ndimage

from runner_vesuvius.labels import IGNORE, SURFACE
from runner_vesuvius.outputs import Detected

Colour = tuple[int, int, int]

PREDICTION: Colour = (213, 94, 0)
TRUTH: Colour = (86, 180, 233)
BOTH: Colour = (255, 255, 255)
"""Colours that the colour-blind can tell apart (Okabe and Ito, 2008), and white, which the slices do not reach."""
LABELS = (Label(SURFACE, "surface", PREDICTION),)
"""What a mask holds."""
_ANNOTATED = (Label(SURFACE, "annotated surface", TRUTH), Label(IGNORE, "not annotated", (90, 90, 90)))
BRIGHTEST = 170
DIM = 0.4
"""Brightness of voxels that nobody annotated."""
SIZE = 1600
"""Largest width in pixels, and largest height without the legend."""
_LARGEST = 6
"""Most pixels per side of a voxel."""
_LINE = 18
_GAP = 4
_PAPER, _INK = 20, (225, 225, 225)


def figure(image: Array, prediction: Array, truth: Array | None) -> Array:
    """Draw slices across z, y and x, bare above and outlined below: (H', W', 3) uint8, at most `SIZE` wide.

    All three arrays are (D, H, W): `image` uint8, `prediction` (non-zero is surface), `truth` 0, 1, 2 (not annotated:
    dimmed). Each slice is the one with most true surface or, without truth, most predicted surface; the middle one if
    there is no surface.
    """
    surface = prediction > 0 if truth is None else truth == SURFACE
    places = [_fullest(surface, axis) for axis in range(3)]
    zoom, shades = _zoom(image.shape), _shades(image)
    columns = []
    for axis, (name, place) in enumerate(zip("zyx", places, strict=True)):
        known = None if truth is None else np.take(truth, place, axis)
        bare, outlined = _panels(shades[np.take(image, place, axis)], np.take(prediction, place, axis), known, zoom)
        columns.append([_text({f"{name} = {place}": None}, bare.shape[1], _LINE), bare, outlined])
    rows = [_beside([column[row] for column in columns]) for row in range(3)]
    colours = {"prediction": PREDICTION}
    if truth is not None:
        colours |= {"truth": TRUTH, "both": BOTH}
        if (truth == IGNORE).any():
            colours["not annotated"] = (round(BRIGHTEST * DIM),) * 3
    return np.concatenate([rows[0], rows[1], np.full((_GAP, *rows[1].shape[1:]), _PAPER, np.uint8), rows[2],
                           _text(colours, rows[1].shape[1])])  # fmt: skip


def layers(image: Array, found: Detected | None, truth: Array | None) -> list[Layer]:
    """Return what a viewer shows of a volume, (D, H, W). Files of the challenge do not say how large a voxel is."""
    spacing = (1.0, 1.0, 1.0)
    shown = [Layer("scan", image, spacing, "pixel")]
    if truth is not None:
        shown.append(Layer("annotated", truth, spacing, "pixel", _ANNOTATED))
    if found is not None:
        if found.probability is not None:
            shown.append(Layer("probability", found.probability, spacing, "pixel", colours="magma", visible=False))
        shown.append(Layer("prediction", found.mask, spacing, "pixel", LABELS))
    return shown


def _fullest(surface: Array, axis: int) -> int:
    counts = np.count_nonzero(surface, axis=tuple({0, 1, 2} - {axis}))
    return int(counts.argmax()) if counts.any() else surface.shape[axis] // 2


def _zoom(shape: Sequence[int]) -> float:
    """Return the pixels per voxel: a whole number, or less than 1 if the slices do not fit."""
    depth, height, width = shape
    fits = min((SIZE - 2 * _GAP) / (2 * width + height), (SIZE - _GAP - _LINE) / (2 * max(height, depth)))
    return min(_LARGEST, int(fits)) if fits >= 1 else fits


def _shades(image: Array) -> Array:
    """Return the brightness of each intensity, (256,) float32.

    It runs from 0 to `BRIGHTEST` for all but the darkest and brightest voxels.
    """
    some = image.reshape(-1)[:: max(1, image.size // 1_000_000)]
    low, high = np.percentile(some, (0.5, 99.8))
    low, high = (low, high) if high > low else (0.0, 255.0)
    return ((np.arange(256, dtype=np.float32) - low) * (BRIGHTEST / (high - low))).clip(0, BRIGHTEST).astype(np.float32)


def _panels(grey: Array, prediction: Array, truth: Array | None, zoom: float) -> tuple[Array, Array]:
    """Draw one slice bare and with outlines: (h, w, 3) uint8 each."""
    bare = np.repeat(_scaled(grey, zoom).astype(np.uint8)[..., None], 3, axis=2)
    outlined = bare.copy()
    found = _outline(prediction > 0, zoom)
    true = np.zeros_like(found) if truth is None else _outline(truth == SURFACE, zoom)
    if truth is not None:
        unknown = _scaled((truth == IGNORE).astype(np.float32), zoom) > 0.5
        outlined[unknown] = (outlined[unknown] * DIM).astype(np.uint8)
    for where, colour in ((found & ~true, PREDICTION), (true & ~found, TRUTH), (found & true, BOTH)):
        outlined[where] = colour
    return bare, outlined


def _outline(mask: Array, zoom: float) -> Array:
    """Return the rim inside the mask, one pixel wide.

    If the mask is made smaller, every pixel that contains some of it belongs to it.
    """
    large = _scaled(mask.astype(np.float32), zoom) > 0
    return large & ~np.asarray(ndimage.binary_erosion(large))


def _scaled(plane: Array, zoom: float) -> Array:
    """Scale `plane` (float32) to `zoom` pixels per voxel; if it is made smaller, each pixel is a mean."""
    if zoom >= 1:
        return np.kron(plane, np.ones((int(zoom), int(zoom)), np.float32))
    size = [max(1, int(n * zoom)) for n in plane.shape]
    return np.asarray(Image.fromarray(plane).resize((size[1], size[0]), Image.Resampling.BOX))


def _beside(panels: Sequence[Array]) -> Array:
    """Put panels side by side on paper as high as the highest."""
    height = max(panel.shape[0] for panel in panels)
    padded = [
        np.pad(panel, ((0, height - panel.shape[0]), (0, _GAP if number < len(panels) - 1 else 0), (0, 0)),
               constant_values=_PAPER)
        for number, panel in enumerate(panels)
    ]  # fmt: skip
    return np.concatenate(padded, axis=1)


def _text(entries: Mapping[str, Colour | None], width: int, height: int | None = None) -> Array:
    """Write words, behind squares of their colours if they have any, in as many lines as needed.

    Returns (h, width, 3) uint8.
    """
    pen = ImageDraw.Draw(Image.new("RGB", (1, 1)))
    places, x, y = [], 4, 3
    for text, colour in entries.items():
        wide = (16 if colour else 0) + round(pen.textlength(text)) + 14
        if x + wide > width and x > 4:
            x, y = 4, y + _LINE
        places.append((x, y))
        x += wide
    picture = Image.new("RGB", (width, height or y + _LINE), (_PAPER,) * 3)
    draw = ImageDraw.Draw(picture)
    for (text, colour), (left, top) in zip(entries.items(), places, strict=True):
        if colour:
            draw.rectangle((left, top + 1, left + 10, top + 11), fill=colour)
        draw.text((left + (16 if colour else 0), top), text, fill=_INK)
    return np.asarray(picture)
