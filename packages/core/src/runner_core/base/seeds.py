"""Seeds of random streams: pure functions of (seed, step, rank), so that there is nothing to save or resume."""

from __future__ import annotations

_MASK = (1 << 64) - 1


def stream_seed(seed: int, step: int, rank: int = 0) -> int:
    """Return the 64-bit seed of the device's random numbers in one step of one rank.

    Three rounds of SplitMix64 (Steele, Lea & Flood, OOPSLA 2014): neighbouring steps get unrelated seeds.

    >>> stream_seed(0, 1) == stream_seed(0, 1), stream_seed(0, 1) == stream_seed(1, 0)
    (True, False)
    """
    value = 0
    for part in (seed, step, rank):
        value = (value + part + 0x9E3779B97F4A7C15) & _MASK
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
        value ^= value >> 31
    return value
