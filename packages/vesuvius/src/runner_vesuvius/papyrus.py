"""A generated piece of a rolled scroll: the position of its papyrus and of its recto.

The scroll is one strip, rolled into a spiral. A place on the strip is (length along it, height z). Fibres, tears and
everything else that belongs to the papyrus are drawn on the unrolled strip and turn with it. Distances are in voxels;
axes are (z, y, x); the scroll's axis is roughly along z.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from runner_core import Array
from scipy import ndimage

STRIP = 2048
"""Length (voxels) after which the strip's features repeat. Windings are shorter, so that neighbours differ."""
SURFACE = (-0.9, 2.2)
"""Extent of the labelled surface: from before the recto's face to inside the sheet (voxels)."""


@dataclass(frozen=True)
class Rolling:
    """Shape and damage of one scroll."""

    pitch: float
    """Distance between windings (voxels)."""
    thickness: float
    """Thickness of the papyrus: half of it is the recto layer, half the verso."""
    waves: float
    """Size of the deformation that neighbouring windings share."""
    crease: float
    """Size of the sharp folds."""
    torn: float
    """Amount of missing strip, as a level of a field of standard deviation 1: a higher level removes less."""


@dataclass(frozen=True)
class Piece:
    """Content of a volume (D, H, W) of the scroll."""

    papyrus: Array
    """float32: density of papyrus, about 1 within a sheet, 0 between sheets."""
    surface: Array
    """bool: the recto's surface, 3 voxels thick."""
    winding: Array
    """int16: number of the nearest winding, from the axis outwards."""
    radius: Array
    """float32: distance from the axis (voxels)."""


def roll(rolling: Rolling, shape: tuple[int, int, int], rng: np.random.Generator) -> Piece:
    """Return a piece of such a scroll; its axis lies inside the volume or up to 120 voxels outside."""
    radius, angle = _around_axis(shape, rng)
    folds = np.abs(smooth(shape, 20, rng))
    spiral = radius + rolling.waves * smooth(shape, 14, rng) + rolling.crease * (folds - 0.8)
    steepness = np.clip(np.sqrt(sum(g * g for g in np.gradient(spiral))), 0.7, 1.6)
    turns = spiral / rolling.pitch - angle
    strip = _Strip.draw(rolling, shape[0], rng)
    inner = np.maximum(np.floor(turns), 1)
    papyrus = np.zeros(shape, np.float32)
    surface = np.zeros(shape, bool)
    nearest = np.full(shape, np.inf, np.float32)
    winding = np.zeros(shape, np.int16)
    for number in (inner, inner + 1):  # the windings between which a voxel lies
        place = strip.place(number + angle)
        across = (turns - number) * rolling.pitch / steepness - strip.shift[place]
        density, recto = _sheet(strip, place, across, rolling.thickness)
        papyrus = np.maximum(papyrus, density)
        surface |= recto
        closer = np.abs(across) < nearest
        winding[closer] = number[closer]
        nearest = np.minimum(nearest, np.abs(across))
    return Piece(papyrus, surface, winding, radius)


def _around_axis(shape: tuple[int, int, int], rng: np.random.Generator) -> tuple[Array, Array]:
    """Return the distance from a tilted axis, and the angle about it in turns [0, 1).

    The jump from 1 to 0 lies opposite to the volume.
    """
    z, y, x = np.meshgrid(*(np.arange(n, dtype=np.float32) - n / 2 for n in shape), indexing="ij", sparse=True)
    distance, side = rng.uniform(10, 120), rng.uniform(0, 2 * np.pi)
    tilt = rng.normal(0, 0.1, 2).astype(np.float32)
    y = y - np.float32(distance * np.sin(side)) - tilt[0] * z
    x = x - np.float32(distance * np.cos(side)) - tilt[1] * z
    turned = np.arctan2(y, x) - np.float32(side)
    return np.hypot(y, x), np.mod(turned / np.float32(2 * np.pi), 1).astype(np.float32)


@dataclass(frozen=True)
class _Strip:
    """Fields over the unrolled papyrus, flat arrays of (STRIP, height)."""

    pitch: float
    height: int
    shift: Array
    """Outward displacement of a winding (voxels)."""
    whole: Array
    """1 where there is papyrus, 0 in tears and holes."""
    contrast: Array
    split: Array
    """Gap between the layers where they came apart (voxels)."""
    along: Array
    """Fibres of the recto, along the strip."""
    upward: Array
    """Fibres of the verso, across the strip."""

    @classmethod
    def draw(cls, rolling: Rolling, height: int, rng: np.random.Generator) -> _Strip:
        def field(length: float, rise: float) -> Array:
            return _field(height, length, rise, rng)

        room = (rolling.pitch - rolling.thickness) / 2
        tears = np.maximum(field(5, 12) - rolling.torn, field(9, 8) - rolling.torn - 0.2) + 0.15 * field(1, 2)
        return cls(
            rolling.pitch,
            height,
            shift=room * 1.05 * np.tanh(1.3 * field(28, 24)),
            whole=np.clip(0.5 - 4 * tears, 0, 1),
            contrast=np.clip(1 - 0.35 * np.clip(field(20, 20) - 0.4, 0, None), 0.45, 1),
            split=np.clip(1.8 * (field(24, 16) - 1.1), 0, 2.5),
            along=field(14, 0.9),
            upward=field(0.9, 14),
        )

    def place(self, turns: Array) -> Array:
        """Return each voxel's (D, H, W) position on the strip, as an index into the fields.

        `turns` count from the strip's beginning. An Archimedean spiral has from its centre a length of about π · pitch
        · turns².
        """
        length = (np.pi * self.pitch * turns * turns).astype(np.int64) % STRIP
        return length * self.height + np.arange(self.height)[:, None, None]


def _sheet(strip: _Strip, place: Array, across: Array, thickness: float) -> tuple[Array, Array]:
    """Return density and surface of one winding.

    `across` is the distance from its middle, negative towards the recto, which faces the scroll's axis.
    """
    half = thickness / 2
    gap = strip.split[place]
    recto = _between(across, -half, 0) * (1 + 0.12 * strip.along[place])
    verso = _between(across, gap, gap + half) * (0.62 + 0.12 * strip.upward[place])
    whole = strip.whole[place]
    density = whole * strip.contrast[place] * np.maximum(recto, verso)
    face = across + half
    return density, (whole > 0.5) & (face >= SURFACE[0]) & (face <= SURFACE[1])


def _between(values: Array, low: float | Array, high: float | Array) -> Array:
    """Return 1 within the bounds and 0 outside, with a transition over a voxel's width."""
    return np.clip(values - low + 0.5, 0, 1) * np.clip(high - values + 0.5, 0, 1)


def smooth(shape: tuple[int, ...], scale: float, rng: np.random.Generator) -> Array:
    """Return a Gaussian random field of standard deviation 1, float32, correlated over about `scale` voxels."""
    step = max(1, int(scale / 2.5))
    coarse = rng.normal(size=[-(-n // step) + 3 for n in shape]).astype(np.float32)
    field: Array = ndimage.gaussian_filter(coarse, scale / step, mode="wrap")
    for axis, size in enumerate(shape):  # linear, one axis at a time: 3 numbers per voxel instead of 8
        at = np.arange(size, dtype=np.float32) / step
        low = at.astype(np.int64)
        part = (at % 1).reshape([-1 if a == axis else 1 for a in range(len(shape))])
        field = field.take(low, axis) * (1 - part) + field.take(low + 1, axis) * part
    return (field - field.mean()) / field.std()


def _field(height: int, length: float, rise: float, rng: np.random.Generator) -> Array:
    """Return a Gaussian random field on the strip (flat), which closes on itself.

    It is correlated over `length` along the strip and over `rise` in height.
    """
    noise = rng.normal(size=(STRIP, height)).astype(np.float32)
    noise = ndimage.gaussian_filter(noise, (length, rise), mode="wrap", truncate=3)
    return ((noise - noise.mean()) / noise.std()).ravel()
