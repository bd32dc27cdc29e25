"""Detection of labels that are shifted against their image.

Papyrus is brighter than its surroundings. If a label is moved across the sheets, its voxels are no brighter than
background, and become brighter when it is moved back. A label at the face of its sheet becomes somewhat brighter too
when it is moved inwards, so only a difference of several times is reported. Movements along the sheets, and movements
much smaller than the distance between sheets, are not detected.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
from runner_core import Array

from runner_vesuvius.labels import SURFACE

REACH, STEP = 8, 2
"""Voxels by which a label is moved along each axis: at most, and between two places."""
LEAST = 4
"""Smallest shift (voxels) that is reported."""
TIMES = 4.0
"""Factor by which the other place must be better; correct labels of generated scrolls reach 2.7."""
CLEAR = 0.2
"""Smallest contrast for a report."""
ALIKE = 0.95
"""A place with at least this share of the best contrast fits as well as the best."""
_PLACES, _OF_EACH, _ENOUGH = 1_000_000, 8000, 500
"""Voxels looked at; most and fewest of them that are taken from surface and from background."""


@dataclass(frozen=True)
class Shift:
    """The better shift of a label in voxels (z, y, x), and the contrast of surface and background here and there.

    Contrast is the difference of the means in standard deviations.
    """

    by: tuple[int, int, int]
    here: float
    there: float


def find(image: Array, label: Array) -> Shift | None:
    """Return the shift at which a label (D, H, W) uint8 fits its image much better, or None.

    The same arrays give the same answer.
    """
    sides = tuple(n - 2 * REACH for n in image.shape)
    if min(sides) < 1:
        return None
    size = int(np.prod(sides))
    inner = np.arange(size) if size <= _PLACES else np.random.default_rng(0).integers(0, size, _PLACES)
    at = np.ravel_multi_index([c + REACH for c in np.unravel_index(inner, sides)], image.shape)
    grey, kinds = image.ravel(), label.ravel()[at]
    surface, background = (_some(at[kinds == value]) for value in (SURFACE, 0))
    if min(len(surface), len(background)) < _ENOUGH:
        return None
    along = range(-REACH, REACH + 1, STEP)
    moves = sorted(product(along, along, along), key=lambda move: sum(n * n for n in move))  # the first move is zero
    steps = np.array(moves) @ (image.shape[1] * image.shape[2], image.shape[2], 1)
    contrasts = np.array([_contrast(grey[surface + step], grey[background + step]) for step in steps])
    best = int(np.argmax(contrasts >= ALIKE * contrasts.max()))  # the smallest of the moves that fit as well
    here, there = float(contrasts[0]), float(contrasts[best])
    if max(map(abs, moves[best])) < LEAST or there < CLEAR or there < TIMES * here:
        return None
    return Shift(moves[best], here, there)


def _some(places: Array) -> Array:
    return np.random.default_rng(0).choice(places, min(len(places), _OF_EACH), replace=False, shuffle=False)


def _contrast(surface: Array, background: Array) -> float:
    spread = (surface.var() + background.var()) / 2
    return float((surface.mean() - background.mean()) / max(spread, 1.0) ** 0.5)
