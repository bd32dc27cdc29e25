"""The time that runtimes take for the same window: in turns, so that what else the machine does meets all of them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from statistics import median

from runner_core import Arrays, Infer

_ROUNDS = 15
_SECONDS = 20.0
"""Longest time for all rounds; three are always measured."""


def latencies(runtimes: Mapping[str, Infer], example: Arrays) -> dict[str, float]:
    """Return the median milliseconds of one call of each runtime, by name."""
    for infer in runtimes.values():
        infer(example)
    measured: dict[str, list[float]] = {name: [] for name in runtimes}
    begin = time.perf_counter()
    for done in range(_ROUNDS):
        if done >= 3 and time.perf_counter() - begin > _SECONDS:
            break
        for name, infer in runtimes.items():
            start = time.perf_counter()
            infer(example)
            measured[name].append(1e3 * (time.perf_counter() - start))
    return {name: median(times) for name, times in measured.items()}
