"""Features of cells as CellProfiler measures them, averaged over a field, to stand beside the network.

Shape of nuclei, intensities in them, texture and granularity of each channel, correlation between channels: measured by
scikit-image (the extra `classical`) and scipy. They are like CellProfiler's modules MeasureObjectSizeShape,
MeasureObjectIntensity, MeasureTexture, MeasureGranularity and MeasureColocalization, not equal to them.
"""

from __future__ import annotations

from importlib.util import find_spec
from itertools import combinations

import numpy as np
from runner_core import Array
from scipy import ndimage

from runner_dinocell.nuclei import outlined

SHAPE = ("area", "perimeter", "eccentricity", "solidity", "extent", "axis_major_length", "axis_minor_length")
TEXTURE = ("contrast", "dissimilarity", "homogeneity", "energy", "correlation")
DISTANCES = (1, 3, 5)
LEVELS = 32
"""Grey levels of the co-occurrence matrices."""
GRAINS = 6
"""Openings of growing size."""


def available() -> bool:
    """Return whether scikit-image is installed."""
    return find_spec("skimage") is not None


def count(channels: int) -> int:
    """Return the number of `classical` features of a field with so many channels."""
    per_channel = 6 + len(TEXTURE) * len(DISTANCES) + GRAINS
    return 1 + 2 * len(SHAPE) + channels * per_channel + 2 * (channels * (channels - 1) // 2)


def classical(image: Array, levels: Array, nuclei: int) -> Array:
    """Return the features (`count`,) float32 of image (C, H, W) with levels (C, 2), which become 0 and 1.

    `nuclei` is the channel of the nuclei. Means and standard deviations are over the nuclei; without any they are 0.
    """
    low, high = levels.astype(np.float32).T[..., None, None]
    pixels = ((image - low) / np.maximum(high - low, 1e-6)).clip(0, 1)
    labels = outlined(image[nuclei])
    found = [float(labels.max()), *_shapes(labels)]
    for channel in pixels:
        found += [*_intensities(channel, labels), *_textures(channel), *_granularity(channel)]
    inside = labels > 0
    for one, other in combinations(pixels, 2):
        found += [_correlation(one.ravel(), other.ravel()), _correlation(one[inside], other[inside])]
    return np.array(found, np.float32)


def _shapes(labels: Array) -> list[float]:
    """Return mean and standard deviation over the nuclei of each of `SHAPE`."""
    from skimage.measure import regionprops_table

    if not labels.any():
        return [0.0] * (2 * len(SHAPE))
    table = regionprops_table(labels, properties=SHAPE)
    return [float(value) for name in SHAPE for value in (table[name].mean(), table[name].std())]


def _intensities(channel: Array, labels: Array) -> list[float]:
    """Return mean and deviation over the nuclei of their mean, and of their own deviation; and of what is outside."""
    outside = channel[labels == 0]
    rest = [float(outside.mean()), float(outside.std())] if outside.size else [0.0, 0.0]
    if not labels.any():
        return [0.0] * 4 + rest
    numbers = np.arange(1, int(labels.max()) + 1)
    means = np.asarray(ndimage.mean(channel, labels, numbers))
    spreads = np.asarray(ndimage.standard_deviation(channel, labels, numbers))
    return [*(float(v) for own in (means, spreads) for v in (own.mean(), own.std())), *rest]


def _textures(channel: Array) -> list[float]:
    """Return Haralick's measures of the co-occurrence matrices, means over four directions, for each distance."""
    from skimage.feature import graycomatrix, graycoprops

    grey = (channel * (LEVELS - 1)).round().astype(np.uint8)
    angles = [0, np.pi / 4, np.pi / 2, 3 * np.pi / 4]
    matrices = graycomatrix(grey, DISTANCES, angles, LEVELS, symmetric=True, normed=True)
    return [float(value) for name in TEXTURE for value in graycoprops(matrices, name).mean(1)]


def _granularity(channel: Array) -> list[float]:
    """Return the share of the light that each larger opening takes away, on half of the pixels of each side."""
    half = channel[::2, ::2]
    total = max(float(half.sum()), 1e-6)
    left, found = half, []
    for size in range(1, GRAINS + 1):
        opened = ndimage.grey_opening(half, size=(2 * size + 1, 2 * size + 1))
        found.append(float((left - opened).sum()) / total)
        left = opened
    return found


def _correlation(one: Array, other: Array) -> float:
    if len(one) < 2 or min(one.std(), other.std()) < 1e-6:
        return 0.0
    return float(np.corrcoef(one, other)[0, 1])
