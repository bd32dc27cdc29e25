"""Measure how long the smallest and largest operations take on this machine, for any engine."""

from __future__ import annotations

import time
from collections.abc import Callable


def chunks(work: Callable[[], object], wait: Callable[[], object], block: int, seconds: float) -> list[float]:
    """Return the seconds of one `work`, from runs of several (multiples of `block`) that end with a `wait`.

    `wait` waits for the device. All runs together take about `seconds`.
    """
    end = time.perf_counter() + seconds
    times: list[float] = []
    count = block
    while not times or time.perf_counter() < end:
        begun = time.perf_counter()
        for _ in range(count):
            work()
        wait()
        taken = time.perf_counter() - begun
        times.append(taken / count)
        if taken < seconds / 40 and count < 64 * block:  # short runs would measure the waiting
            count, times = 2 * count, []
    return times
