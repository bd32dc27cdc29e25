"""Map of embeddings: fields on the two principal axes, coloured by label, plate and the like."""

from __future__ import annotations

import colorsys
from collections.abc import Mapping, Sequence

import numpy as np
from PIL import Image, ImageDraw
from runner_core import Array

Colour = tuple[int, int, int]

PAPER: Colour = (255, 255, 255)
INK: Colour = (40, 40, 40)
PALE: Colour = (170, 170, 170)
_DISTINCT: tuple[Colour, ...] = (
    (0, 114, 178), (213, 94, 0), (0, 158, 115), (204, 121, 167), (230, 159, 0), (86, 180, 233), (148, 103, 189),
    (120, 94, 50),
)  # fmt: skip
"""Colours that the colour-blind can tell apart (Okabe and Ito, 2008), and two more."""
SIDE = 440
"""Side of the map's square (pixels)."""
_EDGE = 16
_LINE = 16
_LEGEND = 20
"""Most names that are written out."""


def principal(features: Array) -> tuple[Array, Array]:
    """Return features (N, D) on their first two principal axes, (N, 2), and the axes' shares of the variance, (2,).

    An axis points to its largest coordinate, which is positive. A missing second axis gives zeros.
    """
    centred = features.astype(np.float64) - features.mean(0, dtype=np.float64)
    left, spread, _ = np.linalg.svd(centred, full_matrices=False)
    shares = spread**2 / max(float((spread**2).sum()), 1e-300)
    points = (left * spread)[:, :2]
    points *= np.where(points[np.abs(points).argmax(0), np.arange(points.shape[1])] < 0, -1, 1)
    missing = 2 - points.shape[1]
    return np.pad(points, ((0, 0), (0, missing))), np.pad(shares[:2], (0, missing))


def embedding_map(features: Array, kinds: Mapping[str, Sequence[str]]) -> Array:
    """Draw features (N, D) as points, once for each of `kinds`, side by side: (H, W, 3) uint8.

    `kinds` maps a kind to each field's name; "" is not known.
    """
    points, shares = principal(features)
    panels = [_panel(points, shares, kind, names) for kind, names in kinds.items()]
    height = max(panel.shape[0] for panel in panels)
    return np.concatenate(
        [np.pad(p, ((0, height - len(p)), (0, 0), (0, 0)), constant_values=PAPER[0]) for p in panels], axis=1
    )


def _panel(points: Array, shares: Array, kind: str, names: Sequence[str]) -> Array:
    known = sorted({name for name in names if name})
    colours = dict(zip(known, _palette(len(known)), strict=True)) | {"": PALE}
    listed = known if len(known) <= _LEGEND else []
    picture = Image.new("RGB", (SIDE + 2 * _EDGE, SIDE + (3 + (len(listed) + 1) // 2) * _LINE + 2 * _EDGE), PAPER)
    draw = ImageDraw.Draw(picture)
    what = f"by {kind}" + ("" if listed or not known else f" ({len(known)})")
    draw.text((_EDGE, 4), f"fields {what}; principal axes: {shares[0]:.0%}, {shares[1]:.0%} of variance", fill=INK)
    top = _LINE + 6
    draw.rectangle((_EDGE, top, _EDGE + SIDE, top + SIDE), outline=PALE)
    low, high = points.min(0), points.max(0)
    places = (points - low) / np.where(high > low, high - low, 1) * (SIDE - 2 * _EDGE) + _EDGE
    for number in np.random.default_rng(0).permutation(len(points)):  # so that no kind covers another
        x, y = _EDGE + places[number, 0], top + SIDE - places[number, 1]
        draw.ellipse((x - 3, y - 3, x + 3, y + 3), fill=colours[names[number]])
    for number, name in enumerate(listed):
        x, y = _EDGE + number % 2 * SIDE // 2, top + SIDE + 6 + number // 2 * _LINE
        draw.ellipse((x, y + 2, x + 8, y + 10), fill=colours[name])
        draw.text((x + 14, y), name[:32], fill=INK)
    return np.asarray(picture)


def _palette(count: int) -> list[Colour]:
    more = [colorsys.hsv_to_rgb(0.61803 * i % 1, 0.65, 0.8) for i in range(max(0, count - len(_DISTINCT)))]
    return [*_DISTINCT[:count], *((round(255 * r), round(255 * g), round(255 * b)) for r, g, b in more)]
