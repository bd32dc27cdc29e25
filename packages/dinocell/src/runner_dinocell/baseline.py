"""The baseline: statistics of a field's pixels as its embedding, without a network."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from runner_core import Array

PERCENTILES = (1, 5, 25, 50, 75, 95, 99)


def columns(channels: int, kept: Sequence[int]) -> Array:
    """Return the places in `baseline` of `channels` channels that describe the `kept` ones alone."""
    first, second = np.triu_indices(channels, 1)
    own = np.isin(np.tile(np.arange(channels), 2 + len(PERCENTILES)), kept)
    return np.flatnonzero(np.concatenate([own, np.isin(first, kept) & np.isin(second, kept)]))


def count(channels: int) -> int:
    """Return the number of `baseline` features of a field with so many channels."""
    return channels * (2 + len(PERCENTILES)) + channels * (channels - 1) // 2


def baseline(image: Array, levels: Array) -> Array:
    """Describe image (C, H, W) with levels (C, 2): (C · 9 + C(C−1)/2,) float32.

    Each channel gives mean, standard deviation and percentiles, on the network's scale (levels are 0 and 1); each pair
    of channels gives the correlation, 0 if one is constant.
    """
    channels = len(image)
    low, high = levels.astype(np.float64).T
    pixels = (image.reshape(channels, -1) - low[:, None]) / np.where(high > low, high - low, 1)[:, None]
    mean, deviation = pixels.mean(1), pixels.std(1)
    centred = pixels - mean[:, None]
    product = deviation[:, None] * deviation
    covariance = centred @ centred.T / pixels.shape[1]
    correlation = np.divide(covariance, product, out=np.zeros_like(product), where=product > 0)
    marks = np.percentile(pixels, PERCENTILES, axis=1)
    pairs = correlation[np.triu_indices(channels, 1)]
    return np.concatenate([mean, deviation, marks.ravel(), pairs]).astype(np.float32)
