"""Inference on whole cores: features of every tissue pixel once, then the U-Net over overlapping, blended tiles.

Needs NumPy alone: exports carry this file along.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from runner_core import Infer

Array = np.ndarray[Any, np.dtype[Any]]

PIXELS = 16384
"""Most spectra that the network gets at once."""
LEAST = 1e-3
"""Weight of a window's border, relative to its middle: every pixel has some weight."""


def predict(
    spectra: Array, tissue: Array, infer: Infer, classes: int, patch: int, overlap: float, batch: int,
    space: Callable[..., Array] = np.zeros, release: Callable[[Array], None] = lambda array: None,
) -> tuple[Array, Array]:  # fmt: skip
    """Return probabilities (K, H, W) float32 for K `classes`, and attention (L,).

    `spectra` (H, W, L) are prepared, `tissue` (H, W) is bool. `space(shape, dtype)` returns zeros, and `release` gives
    back memory of `spectra`: an image may be larger than the memory. Both results are 0 if there is no tissue at all.
    """
    if not tissue.any():
        return np.zeros((classes, *tissue.shape), np.float32), np.zeros(spectra.shape[-1], np.float32)
    features, empty, attention = described(spectra, tissue, infer, space, release)

    def classify(tiles: Array) -> Array:
        return infer({"features": tiles})["prediction"]

    return blended(features, tissue, empty, patch, overlap, batch, classify), attention


def described(
    spectra: Array, tissue: Array, infer: Infer,
    space: Callable[..., Array] = np.zeros, release: Callable[[Array], None] = lambda array: None,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Return features (H, W, F), those of a pixel off the tissue (F,), and attention (L,), mean over the tissue."""
    places = np.flatnonzero(tissue)
    flat = spectra.reshape(-1, spectra.shape[-1])
    features, attention = np.empty(0), np.zeros(spectra.shape[-1])
    for first in range(0, len(places), PIXELS):
        part = places[first : first + PIXELS]
        pixels = np.concatenate([np.zeros_like(flat[:1]), flat[part]])[:, None, None]
        inside = np.arange(len(pixels)) > 0  # the first of each batch stands for what is no tissue
        found = infer({"spectra": pixels, "tissue": inside.astype(np.uint8)[:, None, None]})
        if not first:
            features = space((tissue.size, found["features"].shape[-1]), np.float32)
            features[...] = found["features"][0, 0, 0]
        features[part] = found["features"][1:, 0, 0]
        attention += found["attention"][0] * (len(part) / len(places))
        release(spectra)
    empty = found["features"][0, 0, 0]
    return features.reshape(*tissue.shape, -1), empty, attention


def starts(length: int, patch: int, overlap: float) -> list[int]:
    """Return the starts of tiles of `patch` pixels on an axis of `length`.

    The first tile starts at 0, the last one ends at the end. They are evenly spaced, and neighbours overlap by at least
    the share `overlap`.

    >>> starts(100, 128, 0.5), starts(330, 128, 0.5)
    ([0], [0, 50, 101, 151, 202])
    """
    if length <= patch:
        return [0]
    count = 1 + int(np.ceil((length - patch) / max(1.0, patch * (1 - overlap))))
    return [int(place) for place in np.linspace(0, length - patch, count)]


def window(patch: int) -> Array:
    """Return weights (patch, patch) float32 of a tile's pixels: high in the middle, almost 0 at the border."""
    ramp = LEAST + np.sin(np.pi * (np.arange(patch) + 0.5) / patch) ** 2
    return np.outer(ramp, ramp).astype(np.float32)


def blended(
    features: Array, tissue: Array, empty: Array, patch: int, overlap: float, batch: int,
    classify: Callable[[Array], Array],
) -> Array:  # fmt: skip
    """Return probabilities (K, H, W) float32 of a core with `features` (H, W, F).

    `classify` turns tiles (B, patch, patch, F), at most `batch` at a time, into probabilities (B, K, patch, patch). A
    core smaller than a tile is filled up with `empty` (F,), the features of a pixel off the tissue, as in training.
    Tiles without `tissue` (H, W) are skipped: their result is 0.
    """
    shape = tissue.shape
    sides = [max(length, patch) for length in shape]
    padded = features
    if tuple(sides) != tuple(shape):
        padded = np.empty((*sides, features.shape[-1]), np.float32)
        padded[...] = empty
        padded[: shape[0], : shape[1]] = features
    places = [
        (slice(y, y + patch), slice(x, x + patch))
        for y in starts(sides[0], patch, overlap)
        for x in starts(sides[1], patch, overlap)
        if tissue[y : y + patch, x : x + patch].any()
    ]
    weight, total, summed = window(patch), np.zeros(sides, np.float32), None
    for first in range(0, len(places), batch):
        part = places[first : first + batch]
        answers = classify(np.stack([padded[place] for place in part]))
        if summed is None:
            summed = np.zeros((answers.shape[1], *sides), np.float32)
        for place, answer in zip(part, answers, strict=True):
            summed[(slice(None), *place)] += weight * answer
            total[place] += weight
    if summed is None:
        raise ValueError("a core without tissue has no tiles")
    return (summed / np.where(total > 0, total, 1))[:, : shape[0], : shape[1]]
