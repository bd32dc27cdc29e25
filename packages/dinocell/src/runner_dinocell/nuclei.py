"""A finder of nuclei, good enough to cut crops around cells: where they are, not their outlines.

The image is smoothed and cut at Otsu's threshold (1979) above its local background. Nuclei that touch are parted where
the distance to the background has several maxima (as in CellProfiler's IdentifyPrimaryObjects). Sizes are relative to
the typical nucleus of the image, which is measured first.
"""

from __future__ import annotations

import numpy as np
from runner_core import Array
from scipy import ndimage

SMALLEST = 6.0
"""Diameter (pixels) below which nothing is a nucleus."""
SPECK = 0.5
"""Objects of a smaller diameter, relative to the typical nucleus, are debris."""
STRUCTURE = 8.0
"""Least variance of a smoothed image, relative to white noise that is as strong between neighbouring pixels: noise has
1, fields of cells hundreds. In an empty field, Otsu's threshold would divide the noise."""
_REACH = 10
"""Blocks of half a nucleus to each side of which the background is computed."""
_CLASSES = 256


def find_nuclei(image: Array) -> Array:
    """Return the centres (n, 2) float32, y and x in pixels, of the nuclei in an image (H, W), row by row.

    The image shows nuclei bright on dark, in any unit. Nothing is found in an image without contrast.
    """
    return _found(image)[1]


def outlined(image: Array) -> Array:
    """Return the nuclei in an image (H, W) as labels 1 … n, 0 elsewhere; pixels belong to the nearest centre."""
    inside, centres = _found(image)
    if not len(centres):
        return np.zeros(image.shape, np.int32)
    marks = np.ones(image.shape, bool)
    marks[tuple(centres.round().astype(int).T)] = False
    y, x = ndimage.distance_transform_edt(marks, return_distances=False, return_indices=True)
    numbers = np.zeros(image.shape, np.int32)
    numbers[~marks] = np.arange(1, np.count_nonzero(~marks) + 1)
    labels = np.where(inside, numbers[y, x], 0)
    return np.asarray(np.unique(labels, return_inverse=True)[1].reshape(image.shape) + (labels.min() > 0), np.int32)


def _found(image: Array) -> tuple[Array, Array]:
    """Return where nuclei are (H, W) bool, and their centres (n, 2)."""
    nothing = np.zeros(image.shape, bool), np.empty((0, 2), np.float32)
    if _is_noise(image.astype(np.float32)):
        return nothing
    light = np.log1p(np.maximum(image.astype(np.float32) - float(np.percentile(image, 0.1)), 0))
    inside = _inside(ndimage.gaussian_filter(light, SMALLEST / 4), SMALLEST)
    typical = _typical_diameter(inside)
    if typical < SMALLEST:
        return nothing
    inside = _inside(ndimage.gaussian_filter(light, typical / 12), typical)
    inside = np.asarray(ndimage.binary_fill_holes(inside))
    return inside, _centres(inside, typical)


def _is_noise(image: Array) -> bool:
    """Return whether smoothing leaves no more than of white noise; true of images too small for a nucleus."""
    if min(image.shape) < SMALLEST:
        return True
    width = SMALLEST / 4
    noise = float(np.median(np.abs(np.diff(image, axis=1))) / 0.6745) ** 2 / 2  # of normal noise, from its median
    left = float(ndimage.gaussian_filter(image, width).var())
    return left <= STRUCTURE * noise / (4 * np.pi * width**2)


def _inside(smooth: Array, diameter: float) -> Array:
    """Return what is brighter above its background than Otsu's threshold: bool."""
    above = smooth - _background(smooth, diameter)
    threshold = otsu(above)
    return np.asarray(above > threshold)


def _background(smooth: Array, diameter: float) -> Array:
    """Return the low values around each pixel, within about five nuclei: it follows shading, not crowding."""
    block = max(1, round(diameter / 2))
    height, width = (length // block for length in smooth.shape)
    if not height or not width:
        return np.full(smooth.shape, smooth.min())
    low = smooth[: height * block, : width * block].reshape(height, block, width, block).min((1, 3))
    low = ndimage.gaussian_filter(ndimage.percentile_filter(low, 10, size=2 * _REACH + 1), _REACH / 2)
    places = [(np.arange(length) + 0.5) / block - 0.5 for length in smooth.shape]
    return ndimage.map_coordinates(low, np.meshgrid(*places, indexing="ij"), order=1, mode="nearest")


def otsu(values: Array) -> float:
    """Return the threshold with the largest variance between the values above and below (Otsu 1979)."""
    counts, edges = np.histogram(values, _CLASSES)
    middles, below = (edges[1:] + edges[:-1]) / 2, counts.cumsum()
    above = below[-1] - below
    sums = (counts * middles).cumsum()
    with np.errstate(divide="ignore", invalid="ignore"):
        between = below * above * (sums / below - (sums[-1] - sums) / above) ** 2
    return float(edges[1:][np.nanargmax(np.where(np.isfinite(between), between, -1))])


def _typical_diameter(inside: Array) -> float:
    """Return the diameter (pixels) that half of the area of all objects has at least, so that specks do not count."""
    labels, count = ndimage.label(inside)
    areas = np.sort(np.bincount(labels.ravel(), minlength=count + 1)[1:])
    if not count:
        return 0.0
    typical = areas[np.searchsorted(areas.cumsum(), areas.sum() / 2)]
    return min(float(2 * np.sqrt(typical / np.pi)), min(inside.shape) / 3)


def _centres(inside: Array, diameter: float) -> Array:
    """Return the centre of each maximum of the distance to the background, and of objects that have only one."""
    labels, _ = ndimage.label(inside)
    areas = np.bincount(labels.ravel())
    areas[0] = 0
    labels[areas[labels] < np.pi * (SPECK * diameter / 2) ** 2] = 0
    distance = ndimage.gaussian_filter(ndimage.distance_transform_edt(np.pad(labels > 0, 1))[1:-1, 1:-1], diameter / 14)
    reach = max(1, round(0.25 * diameter))
    highest = ndimage.maximum_filter(distance, 2 * reach + 1)
    peaks, count = ndimage.label((distance == highest) & (labels > 0), np.ones((3, 3)))
    if not count:
        return np.empty((0, 2), np.float32)
    places = np.array(ndimage.center_of_mass(peaks > 0, peaks, np.arange(1, count + 1)))
    own = labels[tuple(places.round().astype(int).T)]
    single = np.bincount(own, minlength=len(areas))[own] == 1
    if single.any():
        places[single] = ndimage.center_of_mass(labels > 0, labels, own[single])
    return places.astype(np.float32)
