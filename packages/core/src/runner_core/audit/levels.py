"""Grey values of an array, at a glance: what they reach, how many there are, how many of them are the brightest."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import xxhash

from runner_core.protocols import Array

_SAMPLE = 1 << 17
"""Values looked at, at least, of a larger array: enough to tell 256 grey values from thousands within milliseconds."""
GREY = 32
"""Different values below which an array is a mask or a map of labels, which has much of its highest value."""


@dataclass(frozen=True)
class Levels:
    """`low` and `high` are exact; the rest is of a sample of `seen` values, evenly spread over the array.

    Those that are NaN or infinite count as nothing but `bad`, the share of the sample that is. An array of such values
    alone, and an empty one, has NaN for both ends.
    """

    low: float
    high: float
    distinct: int
    seen: int
    highest: float
    """Share of the sample that is `high`."""
    bad: float = 0.0

    @property
    def constant(self) -> bool:
        """Does it hold one value, or none?"""
        return not self.low < self.high

    @property
    def spread(self) -> float:
        return self.high - self.low


def levels(array: Array) -> Levels | None:
    """Of numbers and booleans; None of what has no grey values (text, complex numbers)."""
    if array.dtype.kind == "b":
        array = array.view(np.uint8)
    if array.dtype.kind not in "iuf":
        return None
    some = _sample(array)
    if not some.size:
        return Levels(math.nan, math.nan, 0, 0, 0.0)
    low, high, bad = float(array.min()), float(array.max()), 0.0
    if not (math.isfinite(low) and math.isfinite(high)):  # rare: then the sample alone says what the ends are
        sound = some[np.isfinite(some)]
        bad = 1 - sound.size / some.size
        if not sound.size:
            return Levels(math.nan, math.nan, 0, some.size, 0.0, bad)
        some, low, high = sound, float(sound.min()), float(sound.max())
    return Levels(low, high, len(np.unique(some)), some.size, float(np.mean(some == high)), bad)


def digest(array: Array) -> str:
    """Of the array's values, the same for equal arrays that were read alike."""
    state = xxhash.xxh3_128(f"{array.dtype.str} {array.shape} ".encode())
    flat = array.ravel(order="K")
    state.update(flat.view(np.uint8).data if flat.size else b"")
    return state.hexdigest()


def _sample(array: Array) -> Array:
    """Every so many-th value, in the order in memory (a view where that is free), so that every column and channel is
    among them: the step has no factor in common with any axis."""
    step = max(1, array.size // _SAMPLE)
    while step > 1 and any(math.gcd(step, n) > 1 for n in array.shape if n > 1):
        step += 1
    return array.ravel(order="K")[::step]
