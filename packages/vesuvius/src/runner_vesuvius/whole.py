"""Prediction of a whole volume: overlapping windows, blended, in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
from runner_core import Array, Infer

from runner_vesuvius.samples import SCALE

SIGMA = 1 / 8
"""Width of the Gaussian that weights a window, as a share of its side (nnU-Net, Isensee et al. 2021)."""
_UP = 0.501
"""Added before rounding down, so that halves go up, also a probability of 0.5, whatever its last digit."""


def predict(image: Any, infer: Infer, patch: Sequence[int], overlap: float, batch: int) -> Array:
    """Return the probability (D, H, W) uint8, 0 to 255, of `image` (D, H, W) uint8.

    The image is in memory, or anything that slices to an array. `infer` receives {"image": uint8 (B, *patch)}, B ≤
    `batch`, and returns {"prediction": probability (B, 1, *patch) in 0 to 1}. Windows are spaced evenly, and neighbours
    share at least `overlap` of their side. Each is weighted by a Gaussian of `SIGMA`, so that its middle counts more
    than its rim. Along an axis shorter than the patch the image is mirrored.

    Memory beside the image: the result (1 byte per voxel), the planes that windows still reach, 4·d·H·W bytes for a
    patch of depth d, and `batch` windows. A volume of 1,000³ takes 1 GB and, with d = 72, 0.3 GB; its float32
    probabilities would take 4 GB. The weights need no volume: the windows form a grid, so their sum is a product over
    the axes.
    """
    axes = [_Axis(n, side, overlap) for n, side in zip(image.shape, patch, strict=True)]
    planes = _OpenPlanes(axes)
    for z, following in zip(axes[0].starts, [*axes[0].starts[1:], image.shape[0]], strict=True):
        places = [(z, y, x) for y, x in product(axes[1].starts, axes[2].starts)]
        for some in _chunks(places, batch):
            windows = np.stack([_window(image, axes, place) for place in some])
            answers = infer({"image": windows})["prediction"][:, 0]
            for place, answer in zip(some, answers, strict=True):
                planes.add(place, answer)
        planes.finish(following)
    return planes.out


def scaled(infer: Infer, scale: Array) -> Infer:
    """Return `infer` for windows of a volume whose intensities have this `scale` (2,)."""
    return lambda arrays: infer({**arrays, SCALE: np.tile(scale, (len(arrays["image"]), 1))})


def calls(shape: Sequence[int], patch: Sequence[int], overlap: float, batch: int) -> int:
    """Return how often `predict` calls `infer` for a volume of this shape."""
    rows, *plane = (len(_Axis(n, side, overlap).starts) for n, side in zip(shape, patch, strict=True))
    return rows * math.ceil(math.prod(plane) / batch)


class _Axis:
    """First voxels of the windows of `side` voxels along an axis of `n`, and the weights of a window's voxels."""

    def __init__(self, n: int, side: int, overlap: float) -> None:
        self.n, self.side = n, side
        self.kept = min(n, side)
        """Voxels of a window that lie in the volume: it reaches out of it at both ends, or not at all."""
        self.before = (side - self.kept) // 2
        self.after = side - self.kept - self.before
        step = max(1, math.floor(side * (1 - overlap) + 1e-9))
        count = 1 + math.ceil((n - self.kept) / step)
        self.starts = [round(start) for start in np.linspace(0, n - self.kept, count).tolist()]
        distance = np.arange(side) - (side - 1) / 2
        full = np.exp(-0.5 * (distance / (SIGMA * side)) ** 2)
        self.weight = full[self.before : self.before + self.kept]
        self.sum = np.zeros(n)
        for start in self.starts:
            self.sum[start : start + self.kept] += self.weight


class _OpenPlanes:
    """Weighted sums of the planes (z) that windows still reach, as a ring: plane z lies at z modulo its length."""

    def __init__(self, axes: Sequence[_Axis]) -> None:
        depth, rows, columns = axes
        self.out = np.empty((depth.n, rows.n, columns.n), np.uint8)
        self._ring = np.zeros((depth.kept, rows.n, columns.n), np.float32)
        weights = np.multiply.outer(np.multiply.outer(depth.weight, rows.weight), columns.weight)
        self._weights = weights.astype(np.float32)
        self._inside = tuple(slice(axis.before, axis.before + axis.kept) for axis in axes)
        self._depth = depth.sum
        self._plane = np.multiply.outer(rows.sum, columns.sum)
        self._finished = 0

    def add(self, place: tuple[int, int, int], answer: Array) -> None:
        z, y, x = place
        weighted = answer[self._inside] * self._weights
        depth, height, width = weighted.shape
        first = z % depth
        ring = self._ring[:, y : y + height, x : x + width]
        ring[first:] += weighted[: depth - first]
        ring[:first] += weighted[depth - first :]

    def finish(self, end: int) -> None:
        """Scale planes before `end`, which get no more windows, to 0…255 and remove them from the ring."""
        for z in range(self._finished, end):
            plane = self._ring[z % len(self._ring)]
            scaled = plane * (255 / (self._depth[z] * self._plane))
            self.out[z] = np.clip(scaled, 0, 255) + _UP  # conversion to uint8 cuts off
            plane[...] = 0
        self._finished = end


def _window(image: Any, axes: Sequence[_Axis], place: Sequence[int]) -> Array:
    region = tuple(slice(start, start + axis.kept) for axis, start in zip(axes, place, strict=True))
    window = np.asarray(image[region])
    beyond = [(axis.before, axis.after) for axis in axes]
    return np.pad(window, beyond, mode="reflect") if np.any(beyond) else window


def _chunks(places: Sequence[tuple[int, int, int]], size: int) -> Iterator[Sequence[tuple[int, int, int]]]:
    for first in range(0, len(places), size):
        yield places[first : first + size]
