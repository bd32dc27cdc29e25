"""The wavenumber axis of a core, and the axis that is kept: crop, gap, bins, resampling, derivative.

Everything linear along the axis is one matrix per segment. A segment is a stretch of the axis without a hole. Columns
outside a segment do not enter its matrix, so no bin, filter or resampling reaches across the paraffin gap or across a
hole that an instrument left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from runner_core import BadInput, counted

from runner_ssmunet.bands import UNEVEN, Axis, Segment, Unreached, binned, resampled, segments
from runner_ssmunet.config import POLYNOMIAL, SpectraConfig

Array = np.ndarray[Any, np.dtype[Any]]

PER = 10.0
"""Unit of the derivative is per (10 cm⁻¹)²: amide I then has values around 0.1, which float16 holds well."""


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
    combined = [(own, *binned(wavenumbers[own], data.bin)) for own in stretches]
    if data.step is not None or data.wavenumbers:
        combined = list(_resampled(combined, data, name))
    kept: list[Segment] = []
    first = 0
    for own, centres, matrix in combined:
        filtered = _derivative(centres, data.window, name) if data.derivative == "second" else None
        kept.append(Segment(own, slice(first, first + len(centres)), matrix, filtered))
        first += len(centres)
    return Axis(np.concatenate([centres for _, centres, _ in combined]), tuple(kept))


def _resampled(
    combined: list[tuple[slice, Array, Array | None]], data: SpectraConfig, name: str
) -> Iterator[tuple[slice, Array, Array | None]]:
    """Yield the segments on multiples of `data.step`, or on `data.wavenumbers`.

    The points depend on the settings alone, so that cores of any instrument get the same ones.
    """
    wanted, setting = _wanted(data)
    try:
        yield from resampled(combined, wanted, data)
    except Unreached as far:
        raise BadInput(
            f"{name}: {setting} wants a point at {far.point:g} cm⁻¹, but the nearest part of its axis runs from "
            f"{far.part[0]:g} to {far.part[1]:g}. "
            + (
                "Leave it out of data.wavenumbers."
                if data.wavenumbers
                else "Set data.low, data.high and data.gap to what all cores have."
            )
        ) from None


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
    if np.abs(steps - spacing).max() > UNEVEN * spacing:
        raise BadInput(
            f"{where} the spacing varies from {steps.min():.3g} to {steps.max():.3g}; a derivative needs an even axis: "
            f"set data.step {spacing:.3g}."
        )
    delta = float(steps.mean()) / PER
    weights = signal.savgol_filter(np.eye(len(centres)), window, order, deriv=derivative, delta=delta, axis=0)
    return np.asarray(weights.T)
