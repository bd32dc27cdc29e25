"""Compute the time that a step's operations would take at this machine's limits.

This is the roofline of each operation: it computes, it moves memory, and it must be started. It waits for whichever of
these takes longest (Williams et al., "Roofline: an insightful visual performance model", CACM 2009).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runner_core.contract.phases import Limits, Operation


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
    """Return the roofline; `precision` is that of matrix products."""
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
