"""Prediction of a whole volume: overlapping windows, blended, in bounded memory.

Needs NumPy alone: exports carry this file along.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, cast

import numpy as np

if TYPE_CHECKING:
    from runner_core import Array, Arrays, Cropped, Infer, View

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
    axes = [Axis(n, side, overlap) for n, side in zip(image.shape, patch, strict=True)]
    planes = OpenPlanes(axes)
    out = np.empty([axis.n for axis in axes], np.uint8)
    for z, following in zip(axes[0].starts, [*axes[0].starts[1:], image.shape[0]], strict=True):
        places = [(z, y, x) for y, x in product(axes[1].starts, axes[2].starts)]
        for some in _chunks(places, batch):
            windows = np.stack([mirrored(image[_region(axes, place)], axes) for place in some])
            answers = infer({"image": windows})["prediction"][:, 0]
            for place, answer in zip(some, answers, strict=True):
                planes.add(place, answer)
        for number, plane in planes.finish(following):
            out[number] = plane
    return out


def scaled(infer: Infer, scale: Array) -> Infer:
    """Return `infer` for windows of a volume whose intensities have this `scale` (2,)."""
    from runner_vesuvius.samples import SCALE

    return lambda arrays: infer({**arrays, SCALE: np.tile(scale, (len(arrays["image"]), 1))})


def calls(shape: Sequence[int], patch: Sequence[int], overlap: float, batch: int) -> int:
    """Return how often `predict` calls `infer` for a volume of this shape."""
    rows, *plane = (len(Axis(n, side, overlap).starts) for n, side in zip(shape, patch, strict=True))
    return rows * math.ceil(math.prod(plane) / batch)


def mean_of(networks: Sequence[Infer], views: Sequence[View]) -> Infer:
    """Return a network that averages what the networks make of windows and of their views."""
    if len(networks) == 1 and not views:
        return networks[0]

    def infer(arrays: Arrays) -> Arrays:
        windows = arrays["image"]
        total = np.zeros((len(windows), 1, *windows.shape[1:]), np.float32)
        for network in networks:
            total += network(arrays)["prediction"]
            for view in views:
                turned = np.stack(
                    [np.ascontiguousarray(view.apply(cast("Cropped", _Alone(image)))["image"]) for image in windows]
                )
                answers = network({"image": turned})["prediction"]
                total += np.stack([view.undo({"surface": answer})["surface"] for answer in answers])
        return {"prediction": total / np.float32(len(networks) * (1 + len(views)))}

    return infer


class _Alone:
    """A window as the views want it."""

    def __init__(self, image: Array) -> None:
        self.prepared = {"image": image}


class Axis:
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

    def touching(self, low: int, high: int) -> list[int]:
        """Return the starts of the windows that reach any of the voxels `low` to `high` − 1."""
        return [start for start in self.starts if start < high and start + self.kept > low]


class OpenPlanes:
    """Weighted sums of the planes (z) that windows still reach, as a ring: plane z lies at z modulo its length.

    Only the part `within` (rows, columns) of each plane is kept, by default all of it. `first` is the first plane that
    a window will reach.
    """

    def __init__(self, axes: Sequence[Axis], within: tuple[slice, slice] | None = None, first: int = 0) -> None:
        depth, rows, columns = axes
        self._within = within or (slice(0, rows.n), slice(0, columns.n))
        own_rows, own_columns = rows.sum[self._within[0]], columns.sum[self._within[1]]
        self._ring = np.zeros((depth.kept, len(own_rows), len(own_columns)), np.float32)
        weights = np.multiply.outer(np.multiply.outer(depth.weight, rows.weight), columns.weight)
        self._weights = weights.astype(np.float32)
        self._inside = tuple(slice(axis.before, axis.before + axis.kept) for axis in axes)
        self._depth = depth.sum
        self._plane = np.multiply.outer(own_rows, own_columns)
        self._finished = first

    def add(self, place: Sequence[int], answer: Array) -> None:
        """Add the answer (*patch) of the window whose first voxel is `place`."""
        z, *corner = place
        here, there = [slice(None)], []
        for start, within, side in zip(corner, self._within, self._weights.shape[1:], strict=True):
            low, high = max(start, within.start), min(start + side, within.stop)
            here.append(slice(low - start, high - start))
            there.append(slice(low - within.start, high - within.start))
        weighted = answer[self._inside][tuple(here)] * self._weights[tuple(here)]
        depth = len(weighted)
        first = z % depth
        ring = self._ring[:, there[0], there[1]]
        ring[first:] += weighted[: depth - first]
        ring[:first] += weighted[depth - first :]

    def finish(self, end: int) -> Iterator[tuple[int, Array]]:
        """Remove the planes before `end`, which get no more windows, and yield their numbers and values, 0…255."""
        for z in range(self._finished, end):
            plane = self._ring[z % len(self._ring)]
            scaled = plane * (255 / (self._depth[z] * self._plane))
            yield z, (np.clip(scaled, 0, 255) + _UP).astype(np.uint8)  # conversion to uint8 cuts off
            plane[...] = 0
        self._finished = max(end, self._finished)


def mirrored(window: Any, axes: Sequence[Axis]) -> Array:
    """Return a window of the volume's voxels, mirrored at its ends along the axes that are shorter than the patch."""
    beyond = [(axis.before, axis.after) for axis in axes]
    return np.pad(window, beyond, mode="reflect") if np.any(beyond) else np.asarray(window)


def _region(axes: Sequence[Axis], place: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(start, start + axis.kept) for axis, start in zip(axes, place, strict=True))


def _chunks(places: Sequence[tuple[int, int, int]], size: int) -> Iterator[Sequence[tuple[int, int, int]]]:
    for first in range(0, len(places), size):
        yield places[first : first + size]
