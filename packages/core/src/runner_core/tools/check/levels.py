"""Summarise the grey values of an array: their range, their number, and the share of the brightest."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import xxhash

from runner_core.contract import Array

_SAMPLE = 1 << 17
"""Least number of values sampled from a larger array.

They suffice to distinguish 256 grey values from thousands within milliseconds.
"""
GREY = 32
"""Number of different values below which an array is a mask or a label map, which often has its highest value."""


@dataclass(frozen=True)
class Levels:
    """Grey values of an array.

    `low` and `high` are exact. The rest comes from a sample of `seen` values, evenly spread over the array. NaN and
    infinite values count only in `bad`, their share of the sample. An array of such values alone, and an empty one, has
    NaN for `low` and `high`.
    """

    low: float
    high: float
    distinct: int
    seen: int
    highest: float
    """Share of the sample that equals `high`."""
    bad: float = 0.0

    @property
    def constant(self) -> bool:
        """True if all values are equal, or there are none."""
        return not self.low < self.high

    @property
    def spread(self) -> float:
        return self.high - self.low


def levels(array: Array) -> Levels | None:
    """Return the grey values of numbers and booleans, or None for other types (text, complex numbers)."""
    if array.dtype.kind == "b":
        array = array.view(np.uint8)
    if array.dtype.kind not in "iuf":
        return None
    some = _sample(array)
    if not some.size:
        return Levels(math.nan, math.nan, 0, 0, 0.0)
    low, high, bad = float(array.min()), float(array.max()), 0.0
    if not (math.isfinite(low) and math.isfinite(high)):  # rare: then the range comes from the sample alone
        sound = some[np.isfinite(some)]
        bad = 1 - sound.size / some.size
        if not sound.size:
            return Levels(math.nan, math.nan, 0, some.size, 0.0, bad)
        some, low, high = sound, float(sound.min()), float(sound.max())
    return Levels(low, high, len(np.unique(some)), some.size, float(np.mean(some == high)), bad)


def digest(array: Array) -> str:
    """Return a digest of the array's values, equal for equal arrays with the same memory order."""
    state = xxhash.xxh3_128(f"{array.dtype.str} {array.shape} ".encode())
    flat = array.ravel(order="K")
    state.update(flat.view(np.uint8).data if flat.size else b"")
    return state.hexdigest()


def _sample(array: Array) -> Array:
    """Return every n-th value in memory order (a view if that is free).

    The step has no factor in common with any axis, so the sample covers every column and channel.
    """
    step = max(1, array.size // _SAMPLE)
    while step > 1 and any(math.gcd(step, n) > 1 for n in array.shape if n > 1):
        step += 1
    return array.ravel(order="K")[::step]
