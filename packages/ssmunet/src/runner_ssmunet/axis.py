"""The wavenumber axis of a core, and the axis that is kept: crop, gap, bins, resampling, derivative.

Everything linear along the axis is one matrix per segment. A segment is a stretch of the axis without a hole. Columns
outside a segment do not enter its matrix, so no bin, filter or resampling reaches across the paraffin gap or across a
hole that an instrument left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from runner_core import BadInput, counted

from runner_ssmunet.config import POLYNOMIAL, SpectraConfig

Array = np.ndarray[Any, np.dtype[Any]]

HOLE = 1.5
"""A spacing of more than this many times the median is a hole in the axis."""
PER = 10.0
"""Unit of the derivative is per (10 cm⁻¹)²: amide I then has values around 0.1, which float16 holds well."""
_EXACT = 0.01
"""A wavenumber may miss an end of the range or of the gap by this much (cm⁻¹): files round, some to float32."""
_NEAR = 10.0
"""One of `data.wavenumbers` may be this far (cm⁻¹) from the nearest that was measured: bands are no narrower."""
_UNEVEN = 0.05
"""Spacings of a filtered segment may differ from their median by this share of it."""


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


def gaps(wavenumbers: Sequence[float]) -> list[tuple[float, float]]:
    """Return the gaps of a kept axis (cm⁻¹, ascending): (last before, first after) each.

    A gap is a spacing of more than three median steps.
    """
    axis = np.asarray(wavenumbers, np.float64)
    steps = np.diff(axis)
    wide = np.flatnonzero(steps > 3 * np.median(steps)).tolist() if len(steps) else []
    return [(float(axis[i]), float(axis[i + 1])) for i in wide]


def plan(wavenumbers: Array, data: SpectraConfig, name: str) -> Axis:
    """Return how spectra on `wavenumbers` (C,), ascending, become cached spectra.

    `name` is the core or file, for messages. Raises BadInput if nothing is left between `data.low` and `data.high`, if
    `data.bin` takes more wavenumbers than there are, if `data.step` or `data.wavenumbers` asks for points at which the
    core has none, and if a segment is too short or too uneven for the derivative.
    """
    found = segments(wavenumbers, data)
    stretches = [own for own in found if own.stop - own.start >= data.bin]
    if found and not stretches:
        longest = max(own.stop - own.start for own in found)
        raise BadInput(
            f"{name}: data.bin is {data.bin}, but no stretch of its axis that is kept has more than "
            f"{counted(longest, 'wavenumber')} to average. Set data.bin to less."
        )
    if not stretches:
        raise BadInput(
            f"{name}: nothing is left of its axis, {wavenumbers[0]:g} to {wavenumbers[-1]:g} cm⁻¹, between data.low "
            f"{data.low:g} and data.high {data.high:g} outside the gap. Set them to what it has."
        )
    combined = [(own, *_binned(wavenumbers[own], data.bin)) for own in stretches]
    if data.step is not None or data.wavenumbers:
        combined = list(_resampled(combined, data, name))
    kept: list[Segment] = []
    first = 0
    for own, centres, matrix in combined:
        filtered = _derivative(centres, data.window, name) if data.derivative == "second" else None
        kept.append(Segment(own, slice(first, first + len(centres)), matrix, filtered))
        first += len(centres)
    return Axis(np.concatenate([centres for _, centres, _ in combined]), tuple(kept))


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


def _binned(wavenumbers: Array, size: int) -> tuple[Array, Array | None]:
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


def _resampled(
    combined: list[tuple[slice, Array, Array | None]], data: SpectraConfig, name: str
) -> Iterator[tuple[slice, Array, Array | None]]:
    """Yield the segments on multiples of `data.step`, or on `data.wavenumbers`.

    Resampling is linear interpolation. Onto a coarser axis, or with a `data.band_width`, it is the mean of the
    interpolated spectrum over each point's width, so that no measured wavenumber is lost. The points depend on the
    settings alone, so that cores of any instrument get the same ones. At its ends a segment holds its last value for at
    most 1.5 of its own spacings.
    """
    wanted, setting = _wanted(data)
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
            raise BadInput(
                f"{name}: {setting} wants a point at {far[0]:g} cm⁻¹, but the nearest part of its axis runs from "
                f"{centres[0]:g} to {centres[-1]:g}. "
                + (
                    "Leave it out of data.wavenumbers."
                    if data.wavenumbers
                    else "Set data.low, data.high and data.gap to what all cores have."
                )
            )
        if points.size:
            weights = _means(points, centres, width)
            yield own, points, weights if matrix is None else matrix @ weights


def _wanted(data: SpectraConfig) -> tuple[Array, str]:
    """Return the points to resample onto, ascending, and the setting that asks for them."""
    if data.wavenumbers:
        return np.sort(np.array(data.wavenumbers, np.float64)), "data.wavenumbers"
    step = float(data.step or 0)
    wanted = np.arange(np.ceil(data.low / step - 1e-9), np.floor(data.high / step + 1e-9) + 1) * step
    if data.gap is not None:
        wanted = wanted[(wanted < data.gap[0]) | (wanted > data.gap[1])]
    if not wanted.size:
        raise BadInput(f"data.step {step:g} leaves no point between data.low {data.low:g} and data.high {data.high:g}")
    return wanted, f"data.step {step:g}"


def _means(points: Array, centres: Array, width: float) -> Array:
    """Return a matrix (centres, points) of means over `width` around each point.

    The mean is that of the straight lines between the centres. At the ends of a segment the width shrinks, so that it
    stays centred and a straight line stays one. If the width is no more than the centres' own spacing, the result is
    the value at the point.
    """
    usual = float(np.median(np.diff(centres))) if len(centres) > 1 else width
    coarser = width > (1 + _UNEVEN) * usual
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


def _derivative(centres: Array, window: int, name: str) -> Array:
    """Return the matrix of the negative second derivative of row vectors, per (10 cm⁻¹)²: positive at a band's peak."""
    return -savgol(centres, window, POLYNOMIAL, 2, name, "data.window")


def savgol(centres: Array, window: int, order: int, derivative: int, name: str, setting: str) -> Array:
    """Return the matrix that smooths or differentiates row vectors, per (10 cm⁻¹) to the power of `derivative`.

    A polynomial is fitted in each window (Savitzky and Golay, Analytical Chemistry 36, 1964). The ends use the
    polynomial of the last whole window. Raises BadInput naming `setting` if there are fewer points than the window has,
    or if the axis is uneven.
    """
    from scipy import signal  # two seconds, which workers and `--help` need not wait for

    where = f"{name}: from {centres[0]:g} to {centres[-1]:g} cm⁻¹"
    if len(centres) < window:
        raise BadInput(
            f"{where} it has {counted(len(centres), 'point')} only; {setting} is {window}. Lower {setting} or "
            "data.bin, or leave these wavenumbers out (data.low, data.high, data.gap)."
        )
    steps = np.diff(centres)
    spacing = float(np.median(steps))
    if np.abs(steps - spacing).max() > _UNEVEN * spacing:
        raise BadInput(
            f"{where} the spacing varies from {steps.min():.3g} to {steps.max():.3g}; a derivative needs an even axis: "
            f"set data.step {spacing:.3g}."
        )
    delta = float(steps.mean()) / PER
    weights = signal.savgol_filter(np.eye(len(centres)), window, order, deriv=derivative, delta=delta, axis=0)
    return np.asarray(weights.T)
