"""The wavenumber axis of a core and the one that is kept of it: crop, gap, bins, resampling, derivative.

Everything linear that happens along the axis is a matrix for each segment: a stretch of the axis without a hole. What
lies outside a segment's columns does not enter its matrix, so that no bin, filter or resampling reaches across the gap
of the paraffin, nor across a hole that an instrument left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from runner_core._errors import BadInput
from runner_core._text import counted

from runner_ssmunet.config import SpectraConfig

Array = np.ndarray[Any, np.dtype[Any]]

HOLE = 1.5
"""A spacing above so many times the median one is a hole in the axis."""
POLYNOMIAL = 3
"""Order of the Savitzky–Golay polynomial."""
PER = 10.0
"""The derivative is one per (10 cm⁻¹)²: amide I then has values around 0.1, which float16 holds well."""
_EXACT = 0.01
"""By so much (cm⁻¹) a wavenumber may miss an end of the range or of the gap: files round, some to float32."""
_UNEVEN = 0.05
"""Spacings of a segment that is filtered may differ from their median by this share of it."""


@dataclass(frozen=True)
class Segment:
    """`columns` of the core's axis become `points` of the kept one.

    `combine` (columns, points) float64 bins and resamples; None: each column is a point. `derive` (points, points)
    float64 is the filter that follows; None: none does.
    """

    columns: slice
    points: slice
    combine: Array | None
    derive: Array | None


@dataclass(frozen=True)
class Axis:
    """`wavenumbers` (L,) float64, cm⁻¹, ascending: what is kept; `segments` in their order."""

    wavenumbers: Array
    segments: tuple[Segment, ...]


def gaps(wavenumbers: Sequence[float]) -> list[tuple[float, float]]:
    """Where a kept axis (cm⁻¹, ascending) leaves out more than two of its usual steps: (last before, first after)."""
    axis = np.asarray(wavenumbers, np.float64)
    steps = np.diff(axis)
    wide = np.flatnonzero(steps > 3 * np.median(steps)).tolist() if len(steps) else []
    return [(float(axis[i]), float(axis[i + 1])) for i in wide]


def check_settings(data: SpectraConfig) -> str | None:
    """What is wrong with the settings of the axis, or None."""
    if not 0 < data.low < data.high:
        return f"data.low {data.low:g} and data.high {data.high:g} hold no wavenumbers between them"
    if data.gap is not None and not data.gap[0] < data.gap[1]:
        return f"data.gap {data.gap[0]:g} {data.gap[1]:g}: the lower wavenumber comes first"
    if data.bin < 1:
        return f"data.bin is {data.bin}; 1 or more neighbouring wavenumbers are averaged"
    if data.step is not None and not data.step > 0:
        return f"data.step is {data.step:g}; a spacing is above 0 cm⁻¹"
    if data.derivative != "none" and (data.window % 2 == 0 or data.window <= POLYNOMIAL):
        return f"data.window is {data.window}; an odd number of points, {POLYNOMIAL + 2} or more, is needed"
    return None


def plan(wavenumbers: Array, data: SpectraConfig, name: str) -> Axis:
    """How spectra on `wavenumbers` (C,), ascending, become those that are cached.

    `name`: the core or file, for messages. Raises BadInput where nothing is left between `data.low` and `data.high`,
    where `data.bin` takes more than there is, where `data.step` wants points at which the core has none, and where a
    segment is too short or too uneven for the derivative.
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
    if data.step is not None:
        combined = list(_resampled(combined, data, name))
    kept: list[Segment] = []
    first = 0
    for own, centres, matrix in combined:
        filtered = _derivative(centres, data.window, name) if data.derivative == "second" else None
        kept.append(Segment(own, slice(first, first + len(centres)), matrix, filtered))
        first += len(centres)
    return Axis(np.concatenate([centres for _, centres, _ in combined]), tuple(kept))


def segments(wavenumbers: Array, data: SpectraConfig) -> list[slice]:
    """Stretches of the axis within `data.low` and `data.high`, cut at the gap and at every hole.

    With `data.step`, whose points cut the axis themselves, two more bins at either end: neighbours to interpolate from.
    """
    steps = np.diff(wavenumbers)
    margin = _EXACT if data.step is None else 2 * data.bin * float(np.median(steps))
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
    """Centres of bins of `size` columns, and the matrix that averages them; what is left over at the end is dropped."""
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
    """The segments on multiples of `data.step`, by linear interpolation.

    The points depend on the settings alone, so that cores of any instrument get the same ones. At its ends a segment
    holds its last value for at most 1.5 of its own spacings.
    """
    step = float(data.step or 0)
    numbers = np.arange(np.ceil(data.low / step - 1e-9), np.floor(data.high / step + 1e-9) + 1)
    wanted = numbers * step
    if data.gap is not None:
        wanted = wanted[(wanted < data.gap[0]) | (wanted > data.gap[1])]
    distance = np.stack([np.maximum(c[0] - wanted, wanted - c[-1]).clip(0) for _, c, _ in combined])
    nearest = distance.argmin(0) if wanted.size else np.empty(0, int)
    for i, (own, centres, matrix) in enumerate(combined):
        points = wanted[nearest == i]
        reach = HOLE * float(np.diff(centres).mean()) if len(centres) > 1 else step
        far = points[distance[i, nearest == i] > reach]
        if far.size:
            raise BadInput(
                f"{name}: data.step {step:g} wants a point at {far[0]:g} cm⁻¹, but the nearest part of its axis runs "
                f"from {centres[0]:g} to {centres[-1]:g}. Set data.low, data.high and data.gap to what all cores have."
            )
        if points.size:
            hats = np.stack([np.interp(points, centres, row) for row in np.eye(len(centres))])
            yield own, points, hats if matrix is None else matrix @ hats
    if not wanted.size:
        raise BadInput(f"data.step {step:g} leaves no point between data.low {data.low:g} and data.high {data.high:g}")


def _derivative(centres: Array, window: int, name: str) -> Array:
    """Matrix of the negative second derivative (Savitzky and Golay, Analytical Chemistry 36, 1964) of row vectors,
    positive where a band has its peak; per (10 cm⁻¹)². The ends take the polynomial of the last whole window."""
    from scipy import signal  # two seconds, which workers and `--help` need not wait for

    where = f"{name}: from {centres[0]:g} to {centres[-1]:g} cm⁻¹"
    if len(centres) < window:
        raise BadInput(
            f"{where} it has {counted(len(centres), 'point')} only; data.window is {window}. Lower data.window or "
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
    return -signal.savgol_filter(np.eye(len(centres)), window, POLYNOMIAL, deriv=2, delta=delta, axis=0).T
