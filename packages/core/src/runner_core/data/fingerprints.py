"""Make small pictures of records that stay alike when a scan is stored in another way.

A fingerprint survives another grid, another type of numbers, compression, and other grey values. It does not survive
mirroring, turning and cutting: `near_duplicates`, which compares fingerprints, undoes these.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from runner_core.contract.values import Array

SIDES = {2: 64, 3: 24}
"""Side of a fingerprint by its number of axes."""
_SHORTEST = {2: 32, 3: 12}
"""Least length of an axis: smaller images show too little to tell them apart."""
_CHANNELS = 16
"""Neighbouring channels are averaged until no more are left."""
_FLAT = 0.05
"""Variation of a plane, relative to the most varied one, below which it is margin."""
_DENSE = 4
"""Of a large image so many voxels are read along each axis for every one of the picture that it is first reduced to."""
_BINS = 4096
_FILLER = 1e15
"""Larger numbers, such as -3.4e38, say that a voxel has no value; they count as 0, as NaN does."""


@dataclass(frozen=True)
class Fingerprint:
    """A picture of a record's content, each side as long as the others, without margins.

    `shape` is the content's size in the record's own grid, `low` and `high` its lowest and highest value.
    """

    picture: Array
    shape: tuple[int, ...]
    low: float
    high: float


def fingerprint(image: Array, axes: int) -> Fingerprint | None:
    """Return the fingerprint of an image whose first `axes` axes are its grid; the others are channels.

    A short axis of three counts as channels too. None: too small, of one value, or neither an image nor a volume.
    """
    if image.dtype.kind not in "biuf" or axes not in (2, 3) or image.ndim < axes or not image.size:
        return None
    image, axes = _channels_last(image, axes)
    if axes < 2 or min(image.shape[:axes]) < _SHORTEST[axes]:
        return None
    side = 2 * SIDES[axes]
    shape = image.shape[:axes]
    steps = [max(1, length // (_DENSE * side)) for length in shape]
    image = image[tuple(slice(None, None, step) for step in steps)]
    inner = image[_content(resized(image, (side,) * axes), image.shape[:axes])]
    small = resized(inner, (side,) * axes)
    picture = np.mean([_equalised(small[..., channel]) for channel in range(small.shape[-1])], axis=0)
    if not np.ptp(picture) > 0:
        return None
    picture = resized(picture[..., None], (SIDES[axes],) * axes)[..., 0]
    stored = np.rint((picture - picture.min()) * (255 / np.ptp(picture))).astype(np.uint8)
    size = (min(n * step, length) for n, step, length in zip(inner.shape, steps, shape, strict=False))
    return Fingerprint(stored, tuple(size), float(small.min()), float(small.max()))


def _channels_last(image: Array, axes: int) -> tuple[Array, int]:
    """Return the image as (grid…, channels), and its number of grid axes without short ones."""
    short = [axis for axis in range(axes) if axes == 3 and image.shape[axis] < _SHORTEST[3]]
    grid = [axis for axis in range(axes) if axis not in short]
    image = np.transpose(image, [*grid, *short, *range(axes, image.ndim)])
    return image.reshape(*image.shape[: len(grid)], -1), len(grid)


def resized(image: Array, sides: tuple[int, ...]) -> Array:
    """Return (grid…, channels) at these sides as float32: means of smaller voxels, lines between larger ones.

    Makes no copy of a large image, and uses no library that starts threads: each of many processes calls this.
    """
    places = _part_weights(len(image), sides[0])
    others = [*sides[1:], min(image.shape[-1], _CHANNELS)]
    planes = []
    for weights in places:
        used = np.flatnonzero(weights)
        with np.errstate(over="ignore"):
            slab = image[used[0] : used[-1] + 1].astype(np.float32)
        if image.dtype.kind == "f":
            slab[~(np.abs(slab) < _FILLER)] = 0
        plane = np.einsum("n,n...->...", weights[used[0] : used[-1] + 1], slab)
        for axis, side in enumerate(others):
            plane = _axis_resized(plane, axis, side)
        planes.append(plane)
    return np.stack(planes)


def _part_weights(length: int, side: int) -> Array:
    """Return (side, length) weights of the voxels in each of `side` equal parts, or of the two around its middle."""
    if side >= length:
        places = np.clip((np.arange(side) + 0.5) * length / side - 0.5, 0, length - 1)
        return np.maximum(0, 1 - abs(places[:, None] - np.arange(length))).astype(np.float32)
    ends, voxels = np.linspace(0, length, side + 1)[:, None], np.arange(length)
    shares = np.minimum(ends[1:], voxels + 1) - np.maximum(ends[:-1], voxels)
    return (np.maximum(0, shares) * side / length).astype(np.float32)


def _axis_resized(array: Array, axis: int, side: int) -> Array:
    length = array.shape[axis]
    if side == length:
        return array
    if side > length:
        return interpolated(array, axis, (np.arange(side) + 0.5) * length / side - 0.5)
    sums = np.cumsum(array, axis=axis, dtype=np.float64)
    sums = np.concatenate([np.zeros_like(np.take(sums, [0], axis)), sums], axis=axis)
    means = np.diff(interpolated(sums, axis, np.linspace(0, length, side + 1)), axis=axis) * (side / length)
    return means.astype(np.float32)


def interpolated(array: Array, axis: int, places: Array) -> Array:
    """Return the values at these places of an axis, on straight lines between its voxels."""
    places = np.clip(places, 0, array.shape[axis] - 1)
    below = np.minimum(places.astype(np.intp), max(array.shape[axis] - 2, 0))
    above = np.minimum(below + 1, array.shape[axis] - 1)
    share = (places - below).astype(array.dtype).reshape(-1, *[1] * (array.ndim - axis - 1))
    low = np.take(array, below, axis)
    return np.asarray(low + (np.take(array, above, axis) - low) * share)


def _equalised(channel: Array) -> Array:
    """Return values from 0 to 1 that hardly depend on the image's own grey values.

    The histogram is equalised by the slope at each voxel, not by the number of voxels, so that noise in a large and
    empty background does not count.
    """
    low, span = float(channel.min()), float(np.ptp(channel))
    slope = np.sqrt(sum(np.square(part) for part in np.gradient(channel)))
    if not span > 0 or not slope.any():
        return np.zeros_like(channel)
    bins = np.minimum(((channel - low) * (_BINS / span)).astype(np.intp), _BINS - 1)
    histogram = np.bincount(bins.ravel(), slope.ravel(), _BINS)
    return np.asarray(((np.cumsum(histogram) - histogram / 2) / histogram.sum())[bins], np.float32)


def _content(small: Array, shape: tuple[int, ...]) -> tuple[slice, ...]:
    """Return where the image varies, as slices of its own grid, whose size is `shape`."""
    found = []
    for axis, length in enumerate(shape):
        planes = np.moveaxis(small, axis, 0)
        varied = planes.reshape(len(planes), -1, small.shape[-1]).std(axis=1).mean(axis=1)
        inside = np.flatnonzero(varied > _FLAT * varied.max(initial=0))
        if not inside.size:
            return (slice(None),) * len(shape)
        start, stop = inside[0] * length / len(planes), (inside[-1] + 1) * length / len(planes)
        found.append(slice(int(start), math.ceil(stop)))
    return tuple(found)
