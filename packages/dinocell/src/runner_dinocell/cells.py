"""Drawn cells: a nucleus, a textured body and a rim; a treatment decides their shape and texture.

A cell is a star-shaped outline r(θ) in a frame of its own, stretched and turned. Its texture is cut, at a random place
and along its long axis, out of a plane of noise that is the same for all cells of a treatment. Treatments change
neither a cell's area nor (see `phantom`) the grey values of the field.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from runner_core import Array
from scipy import ndimage

CHANNELS = 3
"""DNA, body, rim."""
_PLANE = 384
"""Side (pixels) of a plane of texture."""
CONTRAST = 0.45
"""Standard deviation of a texture; a nucleus has brightness 1."""


@dataclass(frozen=True)
class Treatment:
    """Effect of a treatment on cells; lengths in pixels."""

    name: str
    aspect: float
    """Long side divided by short side."""
    lobes: int
    lobe_depth: float
    """Size of the lobes, as a share of the radius."""
    grain: tuple[float, float]
    """Standard deviations of the Gaussian that smooths the texture's noise: along the cell and across."""
    sparse: float
    """0: the texture is as often bright as dark; above 0: a few bright spots; below 0: a few dark ones (vacuoles)."""


@dataclass(frozen=True)
class Style:
    """A treatment with its planes of texture, (channels, side, side), of mean 0 and standard deviation 1."""

    treatment: Treatment
    planes: Array


def style(treatment: Treatment, rng: np.random.Generator) -> Style:
    along, across = treatment.grain
    planes = []
    for _ in range(CHANNELS):
        noise = rng.standard_normal((_PLANE, _PLANE), np.float32)
        plane = _standard(ndimage.gaussian_filter(noise, (across, along), mode="wrap"))
        plane -= ndimage.gaussian_filter(plane, (4 * across, 4 * along), mode="wrap")
        if treatment.sparse:
            plane = np.sign(treatment.sparse) * np.maximum(np.sign(treatment.sparse) * plane - abs(treatment.sparse), 0)
        planes.append(_standard(plane))
    return Style(treatment, np.stack(planes))


def draw(style: Style, side: int, cover: float, rng: np.random.Generator) -> Array:
    """Draw a field (channels, side, side) float32 of nine to eleven cells; some reach out of it.

    The cells cover about a share `cover` of the field.
    """
    count = int(rng.integers(9, 12))
    radius = side * np.sqrt(cover / (np.pi * count))
    field = np.zeros((CHANNELS, side, side), np.float32)
    for y, x in _places(count, side, radius, rng):
        _add(field, style, y, x, float(radius * rng.uniform(0.9, 1.1)), rng)
    return field


def _places(count: int, side: int, radius: float, rng: np.random.Generator) -> Sequence[tuple[float, float]]:
    """Return centres that keep apart if possible: the one of eight random places farthest from those before."""
    chosen = [rng.uniform(0, side, 2)]
    while len(chosen) < count:
        tried = rng.uniform(0, side, (8, 2))
        apart = np.linalg.norm(tried[:, None] - np.array(chosen)[None], axis=2).min(1)
        chosen.append(tried[int(apart.argmax())])
    return [(float(y), float(x)) for y, x in chosen]


def _add(field: Array, style: Style, y: float, x: float, radius: float, rng: np.random.Generator) -> None:
    """Draw one cell into `field`; where cells meet, the brighter one shows."""
    own = style.treatment
    reach = int(1.4 * radius * np.sqrt(own.aspect)) + 2
    top, left = max(0, int(y) - reach), max(0, int(x) - reach)
    window = field[:, top : int(y) + reach, left : int(x) + reach]
    rows, columns = np.ogrid[top : top + window.shape[1], left : left + window.shape[2]]
    angle, phase = rng.uniform(0, 2 * np.pi, 2)
    aspect = own.aspect ** rng.uniform(0.8, 1.2)
    along = (columns - x) * np.cos(angle) + (rows - y) * np.sin(angle)
    across = (rows - y) * np.cos(angle) - (columns - x) * np.sin(angle)
    theta = np.arctan2(across * np.sqrt(aspect), along / np.sqrt(aspect))
    distance = np.hypot(across * np.sqrt(aspect), along / np.sqrt(aspect)) / radius
    depth = own.lobe_depth
    outline = (1 + depth * np.cos(own.lobes * theta + phase)) / np.sqrt(1 + depth**2 / 2)  # keeps the area
    inside = _soft(outline - distance, 1.0 / radius)
    nucleus = _soft(0.45 * (1 + (outline - 1) / 2) - distance, 1.0 / radius)
    rim = inside * np.exp(-0.5 * ((outline - distance - 0.1) / 0.1) ** 2)
    texture = _textures(style, along, across, rng)
    bright = rng.uniform(0.8, 1.2)
    layers = (
        nucleus * (1 + CONTRAST * texture[0]),
        (inside - 0.6 * nucleus) * (0.6 + CONTRAST * texture[1]),
        rim * 0.8 + (inside - 0.8 * nucleus) * (0.35 + CONTRAST * texture[2]),
    )
    for own_channel, layer in zip(window, layers, strict=True):
        np.maximum(own_channel, bright * layer, out=own_channel)


def _textures(style: Style, along: Array, across: Array, rng: np.random.Generator) -> Array:
    """Return each channel's texture in the cell's own frame, from a random place of its plane."""
    at = rng.uniform(0, _PLANE, (CHANNELS, 2))
    return np.stack(
        [
            ndimage.map_coordinates(plane, (across + a, along + b), order=1, mode="grid-wrap")
            for plane, (a, b) in zip(style.planes, at, strict=True)
        ]
    )


def _soft(inside: Array, width: float) -> Array:
    """Return 1 where `inside` is above 0, 0 elsewhere, with a transition of `width` between."""
    return np.clip(inside / width + 0.5, 0, 1)


def _standard(plane: Array) -> Array:
    return (plane - plane.mean()) / plane.std()


def haze(side: int, width: float, rng: np.random.Generator) -> Array:
    """Return smooth noise (side, side) float32 of mean 0 and standard deviation 1.

    `width` is the standard deviation of its Gaussian in pixels.
    """
    return _standard(ndimage.gaussian_filter(rng.standard_normal((side, side), np.float32), width, mode="wrap"))
