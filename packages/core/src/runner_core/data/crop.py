"""Croppers: choose the box of a record that is worth caching."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from runner_core.base.errors import BadInput
from runner_core.contract import Array, Box, Cropper, Json

if TYPE_CHECKING:
    from runner_core.config import RunConfig
    from runner_core.contract.project import Project

_LABEL_GRID = 128
"""Largest number of points per axis of the grid on which connected objects are searched."""


@dataclass(frozen=True)
class NoCrop:
    """Keeps the whole grid."""

    @property
    def settings(self) -> Mapping[str, Json]:
        return {"name": "none"}

    def box(self, guide: Array, spacing: Sequence[float]) -> Box:
        return _whole(guide.shape[: len(spacing)])


@dataclass(frozen=True)
class CentreCrop:
    """A box of `size` voxels in the middle, or the whole axis if the grid is smaller."""

    size: tuple[int, ...]

    @property
    def settings(self) -> Mapping[str, Json]:
        return {"name": "centre", "version": 1, **asdict(self)}

    def box(self, guide: Array, spacing: Sequence[float]) -> Box:
        shape = guide.shape[: len(spacing)]
        if len(self.size) != len(shape):
            raise BadInput(f"crop.size has {len(self.size)} numbers, but the records have {len(shape)} axes: {shape}")
        start = tuple(max(0, (n - s) // 2) for n, s in zip(shape, self.size, strict=True))
        stop = tuple(min(n, a + s) for n, a, s in zip(shape, start, self.size, strict=True))
        return Box(start, stop, shape)


@dataclass(frozen=True)
class ForegroundCrop:
    """Box around all voxels above `threshold`, plus `margin` voxels."""

    threshold: float = 0.0
    margin: int = 4

    @property
    def settings(self) -> Mapping[str, Json]:
        return {"name": "foreground", "version": 1, **asdict(self)}

    def box(self, guide: Array, spacing: Sequence[float]) -> Box:
        mask = _grid_only(guide, len(spacing)) > self.threshold
        return _bounding_box(mask, mask.shape, 1, self.margin)


@dataclass(frozen=True)
class BodyCrop:
    """Box of the largest connected object above Otsu's threshold, plus `margin` voxels.

    Objects are connected through faces. A grid too fine for speed is searched at every n-th voxel; the box then grows
    by n − 1 voxels, so nothing of the object seen on the coarse grid is cut.
    """

    margin: int = 4

    @property
    def settings(self) -> Mapping[str, Json]:
        return {"name": "body", "version": 1, **asdict(self)}

    def box(self, guide: Array, spacing: Sequence[float]) -> Box:
        grid = _grid_only(guide, len(spacing))
        stride = max(1, -(-max(grid.shape) // _LABEL_GRID))
        coarse = grid[(slice(None, None, stride),) * grid.ndim]
        body = largest_object(coarse > otsu_threshold(coarse))
        return _bounding_box(body, grid.shape, stride, self.margin)


def default_cropper(project: Project, config: RunConfig) -> Cropper:
    """Return the cropper that `crop.mode` names; auto means the project's recommendation."""
    crop = config.crop
    mode = project.dataset.crop if crop.mode == "auto" else crop.mode
    if mode == "centre":
        if crop.size is None:
            raise BadInput("crop.mode centre needs crop.size: the box in voxels, one number per axis")
        return CentreCrop(tuple(crop.size))
    if mode == "foreground":
        return ForegroundCrop(crop.threshold, crop.margin)
    if mode == "body":
        return BodyCrop(crop.margin)
    return NoCrop()


def otsu_threshold(values: Array, bins: int = 256) -> float:
    """Return the threshold that separates `values` (any shape) into two classes of greatest between-class variance.

    Values greater than it are foreground. Otsu, "A threshold selection method from gray-level histograms", 1979.
    """
    counts, edges = np.histogram(values, bins=bins)
    centres = (edges[:-1] + edges[1:]) / 2
    below = np.cumsum(counts)[:-1].astype(np.float64)
    above = values.size - below
    moment = np.cumsum(counts * centres)
    with np.errstate(divide="ignore", invalid="ignore"):
        difference = moment[:-1] / below - (moment[-1] - moment[:-1]) / above
        variance = np.nan_to_num(below * above * difference**2, nan=-1.0, posinf=-1.0)
    return float(edges[1 + int(np.argmax(variance))])


def largest_object(mask: Array) -> Array:
    """Return the mask of the largest object in a boolean grid whose voxels touch through faces (same shape).

    Every voxel starts with its own number. Sweeps along each axis, both ways, carry the larger number on until nothing
    changes. Each object then has one number.
    """
    kind = np.int32 if mask.size < np.iinfo(np.int32).max else np.int64
    labels = np.arange(1, mask.size + 1, dtype=kind).reshape(mask.shape) * mask
    inside = [np.ascontiguousarray(np.moveaxis(mask, axis, 0)).astype(kind) for axis in range(mask.ndim)]
    previous = -1
    while (total := int(labels.sum(dtype=np.int64))) != previous:  # labels only ever grow: an equal sum is no change
        previous = total
        for axis, within in enumerate(inside):
            planes = np.ascontiguousarray(np.moveaxis(labels, axis, 0))
            for sweep in (range(1, len(planes)), range(len(planes) - 2, -1, -1)):
                for i in sweep:
                    plane = planes[i, ...]
                    np.maximum(plane, planes[i - sweep.step, ...], out=plane)
                    np.multiply(plane, within[i, ...], out=plane)
            labels = np.moveaxis(planes, 0, axis)
    sizes = np.bincount(labels.ravel())
    sizes[0] = 0
    return mask & (labels == int(np.argmax(sizes)))


def _grid_only(guide: Array, axes: int) -> Array:
    """Return the maximum over the channels, which follow the grid's axes."""
    return guide.max(axis=tuple(range(axes, guide.ndim))) if guide.ndim > axes else guide


def _whole(shape: tuple[int, ...]) -> Box:
    return Box((0,) * len(shape), shape, shape)


def _bounding_box(mask: Array, shape: tuple[int, ...], stride: int, margin: int) -> Box:
    """Return the box around `mask` in a grid of `shape`, or the whole grid if `mask` is empty.

    `mask` holds every `stride`-th voxel of that grid.
    """
    start, stop = [], []
    for axis, length in enumerate(shape):
        hits = np.flatnonzero(mask.any(axis=tuple(a for a in range(mask.ndim) if a != axis)))
        if not hits.size:
            return _whole(shape)
        grow = margin + stride - 1
        start.append(max(0, int(hits[0]) * stride - grow))
        stop.append(min(length, int(hits[-1]) * stride + 1 + grow))
    return Box(tuple(start), tuple(stop), shape)
