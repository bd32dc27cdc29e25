"""Find what limits a run, and why, from the facts of a profile.

A roofline for each operation says what it waits for: it computes, it moves memory, and it must be started. Whichever of
these takes longest limits it (Williams et al., "Roofline: an insightful visual performance model", CACM 2009).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner_core.contract.phases import (
    BANDWIDTH,
    CHECKPOINT,
    COMPUTE,
    DATA,
    LATENCY,
    LOGGING,
    METRICS,
    MOVE,
    PICTURES,
    WAIT,
    Limits,
    Operation,
)


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


_OVERLAPPED, _SERIAL = 0.1, 1 / 3
"""Shares of a step spent waiting for data above which data limit it.

If batches are filled beside the steps, any wait means that filling is slower. If a step starts with filling, it is one
part among others.
"""
_LAUNCHING = 0.8
"""Share of a step in which the host starts operations above which a GPU waits for the host."""
_IDLE = 0.05
"""Share of the time needed at the machine's limits below which operations are not what takes the time."""
_SMALL, _LITTLE = 50e-6, 0.25
"""Mean seconds of a small operation, and the share of time in small ones that suffices to name them as the limit.

The overhead around each small operation takes the most.
"""
_HALF = 0.5
"""Share of the time needed below which the report says how many times as long operations take."""


def bound(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return `bound` (data, compute, bandwidth or latency) and `reason`, one sentence."""
    found, reason = _bound(facts)
    between = sum(facts["parts"].get(part, 0.0) for part in (METRICS, LOGGING, CHECKPOINT, PICTURES))
    if between > 0.25 * facts["seconds"]:
        reason += f"; {between / facts['seconds']:.0%} of the time goes into what happens between steps"
    return {"bound": found, "reason": reason}


def _bound(facts: Mapping[str, Any]) -> tuple[str, str]:
    parts, step = facts["parts"], sum(facts["parts"].values())
    step -= sum(event["seconds"] / event["every"] for event in facts["events"].values())
    data = parts[WAIT] / step
    overlapped = facts["workers"] > 0 or facts["device"]["kind"] != "cpu"
    rate = f"the loader alone gives {facts['loader']:,.4g} samples/s"
    if data > (_OVERLAPPED if overlapped else _SERIAL):
        return DATA, f"{data:.0%} of a step is waiting for its batch, {rate}"
    if parts[MOVE] / step > _SERIAL:
        return DATA, f"{parts[MOVE] / step:.0%} of a step is bringing its batch to the device"
    computing = step - parts[WAIT] - parts[MOVE]
    host, lines, work = facts["host"], facts["roofline"], facts["work"]
    if host is not None and host > _LAUNCHING * step:
        return (
            LATENCY,
            f"the host takes {_ms(host)} of a step's {_ms(step)} to start its work, and the GPU waits for it",
        )
    if not lines:
        return COMPUTE, f"{computing / step:.0%} of a step is the network's and the loss's computation"
    return _by_lines(lines, work, computing)


def _by_lines(lines: Mapping[str, float], work: Mapping[str, Any], computing: float) -> tuple[str, str]:
    """Return what most operations of a step wait for.

    If that explains little of the `computing` seconds, it is the overhead around them.
    """
    each, explained = computing / work["operations"], sum(lines.values()) / computing
    needs = (
        f"at what this machine reaches, those that compute take {_ms(lines[COMPUTE])}, those that move memory "
        f"{_ms(lines[BANDWIDTH])}, those too small for either {_ms(lines[LATENCY])}, of the {_ms(computing)} of a "
        "step's computation"
    )
    many = f"{work['operations']:,} operations of {each * 1e6:.0f} µs on average"
    longer = f"operations take {_number(1 / explained)} times what this machine needs for them"
    limit = max((COMPUTE, BANDWIDTH, LATENCY), key=lambda name: lines[name])
    if explained < (_LITTLE if each < _SMALL else _IDLE):
        return LATENCY, f"a step is {many}; {needs}: {longer}"
    if limit == LATENCY:
        reason = f"a step is {many}, most too small to compute or move much; {needs}"
    else:
        traffic = f"{work['flops'] / 1e9:,.4g} GFLOP and {work['bytes'] / 1e9:,.4g} GB of memory traffic"
        reason = f"a step's {work['operations']:,} operations are {traffic}; {needs}"
    return limit, f"{reason}; {longer}" if explained < _HALF else reason


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:,.4g} ms"


def _number(times: float) -> str:
    return f"{times:,.0f}" if times >= 10 else f"{times:.2g}"
