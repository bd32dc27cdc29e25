"""Picture during training: fields of the probe batch, and the CLS token's attention in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from PIL import Image, ImageDraw
from runner_core import Array

from runner_dinocell.augment import CENTRE, SPREAD

Colour = tuple[int, int, int]

COLOURS: tuple[Colour, ...] = (
    (86, 180, 233), (0, 158, 115), (240, 228, 66), (213, 94, 0), (204, 121, 167), (0, 114, 178), (230, 159, 0),
    (255, 255, 255),
)  # fmt: skip
"""Colours of channels, in their order; the colour-blind can tell them apart (Okabe and Ito, 2008). A ninth has the
first's."""
HEAT: tuple[Colour, ...] = ((0, 34, 78), (53, 69, 108), (124, 123, 120), (188, 175, 111), (254, 232, 56))
"""From none to most: about cividis (Nuñez et al. 2018, 10.1371/journal.pone.0199239), made for the colour-blind."""
PANEL = 224
"""Smaller fields (pixels) are enlarged up to this size."""
_GAP, _LINE = 4, 18
_PAPER, _INK = 20, (225, 225, 225)


def snapshot(images: Array, maps: Array, channels: Sequence[str]) -> Array:
    """Draw fields above and heat maps of attention below: (H', W', 3) uint8.

    A heat map is the mean over heads. Its colours go from 0 to its own highest value, which stands above it as a
    multiple of an even distribution.

    Args:
        images: (N, C, H, W), network inputs.
        maps: (N, heads, h, w), the share of attention of each patch.
        channels: the names of the C channels.
    """
    zoom = max(1, PANEL // max(images.shape[2:]))
    columns = []
    for image, shares in zip(images, maps.mean(1), strict=True):
        field = _enlarged(composite(np.clip(image * SPREAD + CENTRE, 0, 1)), zoom, zoom)
        highest = float(shares.max() / max(shares.mean(), np.finfo(np.float32).tiny))
        words = _text({f"highest {highest:.1f} x even": None}, field.shape[1])
        columns.append((field, words, _enlarged(heat(shares), *np.floor_divide(field.shape[:2], shares.shape))))
    rows = [_beside([column[row] for column in columns]) for row in range(3)]
    legend = {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(channels)}
    return np.concatenate([_text(legend, rows[0].shape[1]), *rows])


def composite(shades: Array) -> Array:
    """Draw shades of 0 to 1 (C, H, W) with each channel in its colour, as lights on one screen: (H, W, 3) uint8.

    Pixels with several channels keep their shape, which a sum would turn white.
    """
    colours = np.array([COLOURS[number % len(COLOURS)] for number in range(len(shades))], np.float32) / 255
    dark = np.prod(1 - shades[..., None] * colours[:, None, None], axis=0)
    return (255 * (1 - dark)).round().astype(np.uint8)


def heat(shares: Array) -> Array:
    """Draw (h, w), none below 0, as (h, w, 3) uint8: 0 in the first colour of `HEAT`, the highest in the last."""
    places = shares / max(float(shares.max()), np.finfo(np.float32).tiny) * (len(HEAT) - 1)
    parts = [np.interp(places, np.arange(len(HEAT)), part) for part in np.array(HEAT).T]
    return np.stack(parts, -1).round().astype(np.uint8)


def _enlarged(picture: Array, high: int, wide: int) -> Array:
    return picture.repeat(high, 0).repeat(wide, 1)


def _beside(panels: Sequence[Array]) -> Array:
    """Put panels of one size side by side, with paper between and below them."""
    padded = [np.pad(panel, ((0, _GAP), (0, _GAP), (0, 0)), constant_values=_PAPER) for panel in panels]
    return np.concatenate(padded, axis=1)[:, :-_GAP]


def _text(entries: Mapping[str, Colour | None], width: int) -> Array:
    """Write words, behind squares of their colours if they have any, up to the end of a line: (h, width, 3) uint8."""
    picture = Image.new("RGB", (width, _LINE), (_PAPER,) * 3)
    draw, left = ImageDraw.Draw(picture), 4
    for text, colour in entries.items():
        if colour:
            draw.rectangle((left, 4, left + 10, 14), fill=colour)
            left += 16
        draw.text((left, 3), text, fill=_INK)
        left += round(draw.textlength(text)) + 14
    return np.asarray(picture)
