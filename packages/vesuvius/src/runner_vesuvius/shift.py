"""Does a label lie where its image has the surface, or beside it?

Papyrus is brighter than what is around it. Where a label is moved across the sheets, its voxels are no brighter than
background, and are again when it is moved back. A label that lies at the face of its sheet becomes somewhat brighter
too when it is moved inwards, so that only a difference of several times is told. Movements along the sheets, and those
much smaller than their distance, are not seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
from runner_core.protocols import Array

from runner_vesuvius.labels import SURFACE

REACH, STEP = 8, 2
"""Voxels along each axis by which a label is moved, at most and between two places."""
LEAST = 4
"""Voxels below which it is not said that a label is moved."""
TIMES = 4.0
"""How much better the other place must be: correct labels of generated scrolls reach 2.7."""
CLEAR = 0.2
"""Contrast below which nothing is told."""
ALIKE = 0.95
"""Share of the best contrast from which a place fits as well as the best."""
_PLACES, _OF_EACH, _ENOUGH = 1_000_000, 8000, 500
"""Voxels looked at, of which so many of surface and of background are taken at most, and at least."""


@dataclass(frozen=True)
class Shift:
    """By how many voxels (z, y, x) a label is better moved, and the contrast of surface and background here and there:
    difference of the means in standard deviations."""

    by: tuple[int, int, int]
    here: float
    there: float


def find(image: Array, label: Array) -> Shift | None:
    """Where a label (D, H, W) uint8 fits its image much better, if anywhere; the same for the same arrays."""
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
    moves = sorted(product(along, along, along), key=lambda move: sum(n * n for n in move))  # the first is none
    steps = np.array(moves) @ (image.shape[1] * image.shape[2], image.shape[2], 1)
    contrasts = np.array([_contrast(grey[surface + step], grey[background + step]) for step in steps])
    best = int(np.argmax(contrasts >= ALIKE * contrasts.max()))  # the least movement of those that fit as well
    here, there = float(contrasts[0]), float(contrasts[best])
    if max(map(abs, moves[best])) < LEAST or there < CLEAR or there < TIMES * here:
        return None
    return Shift(moves[best], here, there)


def _some(places: Array) -> Array:
    return np.random.default_rng(0).choice(places, min(len(places), _OF_EACH), replace=False, shuffle=False)


def _contrast(surface: Array, background: Array) -> float:
    spread = (surface.var() + background.var()) / 2
    return float((surface.mean() - background.mean()) / max(spread, 1.0) ** 0.5)
