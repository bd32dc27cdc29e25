"""The axis of a core, cut, binned and resampled, in matrices; and the band of amide I.

Needs NumPy alone: exports carry this file along.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from runner_ssmunet.config import SpectraConfig

Array = np.ndarray[Any, np.dtype[Any]]

AMIDE1 = (1600.0, 1700.0)
"""The amide-I band (cm⁻¹): C=O stretching of proteins, in every tissue."""
HOLE = 1.5
"""A spacing of more than this many times the median is a hole in the axis."""
_EXACT = 0.01
"""A wavenumber may miss an end of the range or of the gap by this much (cm⁻¹): files round, some to float32."""
UNEVEN = 0.05
"""Spacings of a filtered segment may differ from their median by this share of it."""
_NEAR = 10.0
"""One of `data.wavenumbers` may be this far (cm⁻¹) from the nearest that was measured: bands are no narrower."""
CONTRAST = 1e-2
"""Least difference of amide-I area (absorbance · cm⁻¹) between tissue and glass."""
FAINT = 0.02
"""Lowest amide-I area of tissue, as a share of the strongest tissue's."""
SAME = 0.1
"""Two axes are equal if no wavenumber differs by more than this share of the spacing."""
THINNEST = 0.01
"""Lowest mean absorbance of amide I that a spectrum is divided by.

It keeps noise small in places with hardly any protein."""


@dataclass(frozen=True)
class Segment:
    """A part of the axis: `columns` of the core's axis become `points` of the kept one.

    `combine` (columns, points) float64 bins and resamples; None: each column is a point. `derive` (points, points)
    float64 is the filter that follows; None: there is no filter.
    """

    columns: slice
    points: slice
    combine: Array | None
    derive: Array | None


@dataclass(frozen=True)
class Axis:
    """The kept axis: `wavenumbers` (L,) float64, cm⁻¹, ascending, and its `segments` in order."""

    wavenumbers: Array
    segments: tuple[Segment, ...]


def segments(wavenumbers: Array, data: SpectraConfig) -> list[slice]:
    """Return the stretches of the axis within `data.low` and `data.high`, cut at the gap and at every hole.

    With `data.step` or `data.wavenumbers`, whose points cut the axis themselves, each end keeps two more bins and half
    a step or width: neighbours to interpolate from, or to average over.
    """
    steps = np.diff(wavenumbers)
    margin = _EXACT
    if data.step is not None or data.wavenumbers:
        margin = 2 * data.bin * float(np.median(steps)) + (data.step or data.band_width) / 2
    inside = (wavenumbers >= data.low - margin) & (wavenumbers <= data.high + margin)
    if not inside.any():
        return []
    cut = steps > HOLE * np.median(steps[inside[1:] & inside[:-1]]) if inside.sum() > 1 else np.zeros(steps.shape, bool)
    if data.gap is not None:
        low, high = data.gap[0] - _EXACT, data.gap[1] + _EXACT
        inside &= (wavenumbers < low) | (wavenumbers > high)
        cut |= (wavenumbers[:-1] < low) & (wavenumbers[1:] > high)
    joined = inside[1:] & inside[:-1] & ~cut
    starts = np.flatnonzero(inside & ~np.concatenate([[False], joined]))
    stops = np.flatnonzero(inside & ~np.concatenate([joined, [False]])) + 1
    return [slice(int(a), int(b)) for a, b in zip(starts, stops, strict=True)]


def binned(wavenumbers: Array, size: int) -> tuple[Array, Array | None]:
    """Return the centres of bins of `size` columns, and the matrix that averages them.

    Columns left over at the end are dropped.
    """
    if size == 1:
        return wavenumbers, None
    count = len(wavenumbers) // size
    matrix = np.zeros((len(wavenumbers), count))
    for i in range(count):
        matrix[i * size : (i + 1) * size, i] = 1 / size
    return wavenumbers @ matrix, matrix


class Unreached(ValueError):
    """A `point` (cm⁻¹) that is too far from `part` (lowest, highest), the nearest part of a core's axis."""

    def __init__(self, point: float, part: tuple[float, float]) -> None:
        super().__init__(
            f"nothing was measured at {point:g} cm⁻¹: its nearest part runs from {part[0]:g} to {part[1]:g}"
        )
        self.point, self.part = point, part


def resampled(
    combined: Sequence[tuple[slice, Array, Array | None]], wanted: Array, data: SpectraConfig
) -> Iterator[tuple[slice, Array, Array | None]]:
    """Yield the segments on the points `wanted`, those of `data.step` or `data.wavenumbers`.

    Resampling is linear interpolation. Onto a coarser axis, or with a `data.band_width`, it is the mean of the
    interpolated spectrum over each point's width, so that no measured wavenumber is lost. The points depend on the
    settings alone, so that cores of any instrument get the same ones. At its ends a segment holds its last value for at
    most 1.5 of its own spacings.

    Raises Unreached for a point that is too far from every segment.
    """
    width = float(data.step or data.band_width)
    if data.wavenumbers:
        distance = np.stack([np.abs(c[:, None] - wanted).min(0) for _, c, _ in combined])
    else:
        distance = np.stack([np.maximum(c[0] - wanted, wanted - c[-1]).clip(0) for _, c, _ in combined])
    nearest = distance.argmin(0)
    for i, (own, centres, matrix) in enumerate(combined):
        points = wanted[nearest == i]
        reach = HOLE * float(np.diff(centres).mean()) if len(centres) > 1 else width
        reach = _NEAR if data.wavenumbers else reach
        far = points[distance[i, nearest == i] > reach]
        if far.size:
            raise Unreached(float(far[0]), (float(centres[0]), float(centres[-1])))
        if points.size:
            weights = means(points, centres, width)
            yield own, points, weights if matrix is None else matrix @ weights


def means(points: Array, centres: Array, width: float) -> Array:
    """Return a matrix (centres, points) of means over `width` around each point.

    The mean is that of the straight lines between the centres. At the ends of a segment the width shrinks, so that it
    stays centred and a straight line stays one. If the width is no more than the centres' own spacing, the result is
    the value at the point.
    """
    usual = float(np.median(np.diff(centres))) if len(centres) > 1 else width
    coarser = width > (1 + UNEVEN) * usual
    half = (
        np.minimum(width / 2, np.minimum(points - centres[0], centres[-1] - points).clip(0)) if coarser else 0 * points
    )
    places = np.unique(np.concatenate([centres, points - half, points + half]))
    hats = np.stack([np.interp(places, centres, row) for row in np.eye(len(centres))])
    areas = np.zeros(hats.shape)  # below each hat, from the first place on
    areas[:, 1:] = np.cumsum((hats[:, 1:] + hats[:, :-1]) / 2 * np.diff(places), axis=1)
    low, here, high = (np.searchsorted(places, at) for at in (points - half, points, points + half))
    return np.where(
        half > 0,
        (areas[:, high] - areas[:, low]) / np.where(half > 0, 2 * half, 1),
        hats[:, here.clip(max=len(places) - 1)],
    )


def amide1_weights(wavenumbers: Array) -> Array | None:
    """Return weights (C,) float64 so that `spectra @ weights` is the area of amide I (absorbance · cm⁻¹).

    The area lies above the chord between the band's ends, by the trapezoid rule. Returns None if the axis has fewer
    than three points of the band.
    """
    band = np.flatnonzero((wavenumbers >= AMIDE1[0]) & (wavenumbers <= AMIDE1[1]))
    if band.size < 3:
        return None
    inside = wavenumbers[band]
    weights = np.zeros(len(wavenumbers))
    weights[band[:-1]] += np.diff(inside) / 2
    weights[band[1:]] += np.diff(inside) / 2
    weights[band[[0, -1]]] -= (inside[-1] - inside[0]) / 2
    return weights


def on_axis(pixels: Array, axis: Axis) -> Array:
    """Return spectra (P, C) on the kept axis: (P, L) float32, averaged and resampled."""
    out = np.empty((len(pixels), len(axis.wavenumbers)), np.float32)
    for segment in axis.segments:
        own = pixels[:, segment.columns].astype(np.float32, copy=False)
        out[:, segment.points] = own if segment.combine is None else own @ segment.combine.astype(np.float32)
    return out


def heights(spectra: Array, axis: Axis) -> Array | None:
    """Return the mean height (P,) of amide I above the chord between its ends (absorbance); None without the band."""
    weights = amide1_weights(axis.wavenumbers)
    return None if weights is None else np.asarray(spectra @ (weights / (AMIDE1[1] - AMIDE1[0])).astype(np.float32))


def normalised(spectra: Array, amide1: Array | None, how: str) -> Array:
    """Return spectra (P, L) divided in place, by `data.normalise`: by their length, by amide I's `heights`, or not."""
    if how == "vector":
        length = np.sqrt(np.einsum("pl,pl->p", spectra, spectra)) / np.float32(np.sqrt(spectra.shape[1]))
        spectra /= np.where(length > 0, length, 1)[:, None]
    elif amide1 is not None:
        spectra /= np.maximum(amide1, np.float32(THINNEST))[:, None]
    return spectra
