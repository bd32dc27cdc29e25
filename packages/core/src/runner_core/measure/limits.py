"""How long something takes, and what a step's operations would take where each reached what this machine can do.

The roofline of each operation: it computes, it moves memory, and it must be started; whichever of these takes longest
is what it waits for (Williams et al., "Roofline: an insightful visual performance model", CACM 2009).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from runner_core.engines.phases import Limits, Operation


@dataclass(frozen=True)
class Roofline:
    """Seconds of a step's operations, by what each of them waits for."""

    compute: float
    bandwidth: float
    latency: float

    @property
    def seconds(self) -> float:
        return self.compute + self.bandwidth + self.latency


def roofline(operations: Sequence[Operation], limits: Limits, precision: str) -> Roofline:
    """`precision`: that in which matrix products are computed."""
    rate = limits.flops.get(precision) or max(limits.flops.values())
    compute = bandwidth = latency = 0.0
    for flops, size in operations:
        computing, moving = flops / rate, size / limits.bytes
        if limits.operation >= max(computing, moving):
            latency += limits.operation
        elif computing >= moving:
            compute += computing
        else:
            bandwidth += moving
    return Roofline(compute, bandwidth, latency)


def chunks(work: Callable[[], object], wait: Callable[[], object], block: int, seconds: float) -> list[float]:
    """Seconds of one `work`, from runs of some of them (multiples of `block`) with a `wait` for the device at the end;
    for about `seconds` in all."""
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
