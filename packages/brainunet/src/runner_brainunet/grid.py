"""Resampling from a scanner's grid to the network's (canonical RAS, isotropic) and back.

Needs NumPy alone: exports carry this file along.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

SAME = 0.01
"""Spacings that differ by less than this share are not resampled: that would only blur."""


@dataclass(frozen=True)
class Grid:
    """A scanner's grid and the network's grid on the same centre.

    `shape` is the scanner's grid (voxels), `orientation` the (axis, direction) pairs that make it RAS, `spacing` the mm
    per axis of the RAS grid. `model_shape` and `model_spacing` are the network's grid (RAS).
    """

    shape: tuple[int, ...]
    orientation: tuple[tuple[int, int], ...]
    spacing: tuple[float, ...]
    model_shape: tuple[int, ...]
    model_spacing: tuple[float, ...]

    @classmethod
    def of(cls, shape: Sequence[int], affine: Array, spacing: float, unit: float = 1.0) -> Grid:
        """Return the grids of a scan.

        `affine` (4, 4) maps voxel to world and may be oblique. `unit` is mm per unit of the affine. `spacing` (mm) is
        the network's.
        """
        orientation = orientation_of(affine)
        order = np.argsort([axis for axis, _ in orientation])
        ras_shape = [int(n) for n in np.asarray(shape)[order]]
        size = np.sqrt((np.asarray(affine, float)[:3, :3] ** 2).sum(0))[order] * unit
        close = [abs(s / spacing - 1) < SAME for s in size]
        return cls(
            shape=tuple(int(n) for n in shape),
            orientation=orientation,
            spacing=tuple(float(s) for s in size),
            model_shape=tuple(
                n if same else max(1, round(n * s / spacing)) for n, s, same in zip(ras_shape, size, close, strict=True)
            ),
            model_spacing=tuple(float(s) if same else spacing for s, same in zip(size, close, strict=True)),
        )

    @property
    def ras_shape(self) -> tuple[int, ...]:
        shape = [0, 0, 0]
        for n, (axis, _) in zip(self.shape, self.orientation, strict=True):
            shape[axis] = n
        return tuple(shape)

    @property
    def scanner_spacing(self) -> tuple[float, ...]:
        """The mm per axis of the scanner's grid."""
        return tuple(self.spacing[axis] for axis, _ in self.orientation)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Grid:
        """Return the grid that `dataclasses.asdict` turned into JSON."""
        values = {name: tuple(value) for name, value in values.items()}
        values["orientation"] = tuple(tuple(pair) for pair in values["orientation"])
        return cls(**values)

    def to_ras(self, volume: Array) -> Array:
        """Return the scanner's voxels in the order right, anterior, superior (a view)."""
        return _flipped(volume, self.orientation).transpose(np.argsort([axis for axis, _ in self.orientation]))

    def to_model(self, volume: Array) -> Array:
        """Resample from the scanner's grid to the network's: float32, linear with anti-aliasing."""
        return _resample(self.to_ras(volume), self.model_shape, self.spacing, self.model_spacing)

    def to_scanner(self, volume: Array) -> Array:
        """Resample from the network's grid to the scanner's: float32, linear."""
        ras = _resample(volume, self.ras_shape, self.model_spacing, self.spacing)
        return np.ascontiguousarray(_flipped(ras.transpose([axis for axis, _ in self.orientation]), self.orientation))


def orientation_of(affine: Array) -> tuple[tuple[int, int], ...]:
    """Return for each axis of the voxels the axis of RAS that it is nearest to, and 1, or −1 if it runs against it.

    Oblique and sheared axes are first replaced by the nearest right-angled ones (polar decomposition). Then the axes
    choose in turn, the clearest first, so that none is chosen twice.
    """
    columns = np.asarray(affine, float)[:3, :3]
    left, _, right = np.linalg.svd(columns / np.sqrt((columns**2).sum(0)))
    rotation = left @ right
    found: dict[int, tuple[int, int]] = {}
    for axis in np.argsort(np.min(-(rotation**2), axis=0)):
        world = int(np.argmax(np.abs(rotation[:, axis])))
        found[int(axis)] = world, 1 if rotation[world, axis] > 0 else -1
        rotation[world] = 0
    return found[0], found[1], found[2]


def _flipped(volume: Array, orientation: Sequence[tuple[int, int]]) -> Array:
    return volume[tuple(slice(None, None, direction) for _, direction in orientation)]


def _resample(volume: Array, shape: Sequence[int], old: Sequence[float], new: Sequence[float]) -> Array:
    """Resample with one small matrix per axis, so that BLAS does the work."""
    out = np.asarray(volume, np.float32)
    for axis, (n, a, b) in enumerate(zip(shape, old, new, strict=True)):
        if n == out.shape[axis] and abs(b / a - 1) < 1e-6:
            continue
        matrix = _weights(out.shape[axis], n, b / a)
        out = np.moveaxis(np.tensordot(matrix, out, axes=(1, axis)), 0, axis)
    return np.ascontiguousarray(out)


@lru_cache(maxsize=64)
def _weights(old: int, new: int, step: float) -> Array:
    """Return weights (new, old) float32 of a triangle filter: linear interpolation, widened to `step` to shrink.

    `step` is old voxels per new voxel. The grids share their centres. Beyond the border the last voxel repeats.
    """
    centres = (np.arange(new) - (new - 1) / 2) * step + (old - 1) / 2
    width = max(1.0, step)
    reach = int(np.ceil(width))
    taps = np.floor(centres)[:, None].astype(int) + np.arange(-reach, reach + 2)
    weight = np.maximum(0.0, 1 - np.abs(taps - centres[:, None]) / width)
    weight /= weight.sum(1, keepdims=True)
    # a sampled triangle leans to one side by up to 0.07 voxels; tilted back, its mean is its centre
    offset = taps - centres[:, None]
    mean = (weight * offset).sum(1, keepdims=True)
    spread = (weight * (offset - mean) ** 2).sum(1, keepdims=True)
    weight *= 1 - (offset - mean) * np.divide(mean, spread, out=np.zeros_like(mean), where=spread > 1e-9)
    matrix = np.zeros((new, old))
    np.add.at(matrix, (np.arange(new)[:, None], np.clip(taps, 0, old - 1)), weight)
    return matrix.astype(np.float32)
