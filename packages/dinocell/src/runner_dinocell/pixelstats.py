"""The baseline: a field described by statistics of its pixels, without a network."""

from __future__ import annotations

import numpy as np
from runner_core.protocols import Array

PERCENTILES = (1, 5, 25, 50, 75, 95, 99)


def describe(image: Array, levels: Array) -> Array:
    """image (C, H, W), levels (C, 2) → (C · 9 + C(C−1)/2,) float32.

    Of each channel the mean, standard deviation and percentiles, on the scale that the network sees too (levels are 0
    and 1); of each pair of channels the correlation, 0 where one is constant.
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
