"""What limits a run, and why, from the facts of a profile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runner_core.engines.phases import MOVE, WAIT
from runner_core.measure.between import CHECKPOINT, LOGGING, METRICS, PICTURES

DATA, COMPUTE, BANDWIDTH, LATENCY = "data", "compute", "bandwidth", "latency"
_OVERLAPPED, _SERIAL = 0.1, 1 / 3
"""Shares of a step spent on waiting for data above which these limit it: where batches are filled beside the steps, any
wait says that filling is slower; where a step begins with it, it is one part among others."""
_LAUNCHING = 0.8
"""Share of a step in which the host hands out work, above which a GPU waits for the host."""
_IDLE = 0.05
"""Share of the time that operations would need at what the machine reaches, below which they are not what takes it."""
_SMALL = 50e-6
"""Seconds an operation, on average, below which starting them is most of the work."""


def bound(facts: Mapping[str, Any]) -> dict[str, str]:
    """`bound` (data, compute, bandwidth or latency) and `reason`, one sentence."""
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
    each = computing / work["operations"]
    needs = sum(lines.values())
    if lines[LATENCY] >= max(lines[COMPUTE], lines[BANDWIDTH]) or each < _SMALL or needs < _IDLE * computing:
        many = f"a step is {work['operations']:,} operations of {each * 1e6:.0f} µs on average"
        return LATENCY, f"{many}: to start them takes longer than what they compute or move"
    needed = (
        f"{work['flops'] / 1e9:,.4g} GFLOP and {work['bytes'] / 1e9:,.4g} GB of memory traffic a step; at what this "
        f"machine reaches, operations that compute take {_ms(lines[COMPUTE])}, those that move memory "
        f"{_ms(lines[BANDWIDTH])}, of {_ms(computing)}"
    )
    return (COMPUTE if lines[COMPUTE] >= lines[BANDWIDTH] else BANDWIDTH), needed


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:,.4g} ms"
