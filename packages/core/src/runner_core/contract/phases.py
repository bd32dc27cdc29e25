"""The parts of a training step by name, and the questions that `runner P profile` asks an engine.

A trainer calls `trainer.phase(part)` at the end of each part. In a profiled run `phase` is a clock. Otherwise it is
`unnoticed`, and a step pays for a few empty calls (well below a microsecond).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from runner_core.contract.values import HostBatch

WAIT, MOVE, AUGMENT, FORWARD, LOSS, BACKWARD, OPTIMIZER = PARTS = (
    "data wait",
    "host to device",
    "augment",
    "forward",
    "loss",
    "backward",
    "optimizer",
)
"""The parts, in their order. forward: inside the network's layers; loss: the rest of the project's `step`."""
OTHER = "other"
"""Time outside all parts: beginning and ending a step."""


def unnoticed(part: str) -> None:
    """Do nothing: trainers call this unless a run is profiled."""


class Operation(NamedTuple):
    """An operation of a step, as the framework starts it."""

    flops: int
    """Floating-point operations; 0 if they are not counted (all but matrix products and convolutions)."""
    bytes: int
    """Bytes of all tensors that it reads or writes."""


@dataclass(frozen=True)
class Limits:
    """Speeds that this machine reaches with this framework, on the run's device, with the run's threads."""

    flops: Mapping[str, float]
    """Floating-point operations a second of a large matrix product, by precision."""
    bytes: float
    """Bytes a second, read and written, of a large copy within the device."""
    operation: float
    """Seconds that the smallest operation takes."""
    transfer: float | None = None
    """Bytes a second from the host's page-locked memory; None where the host is the device."""


@dataclass(frozen=True)
class LossCost:
    """Cost of one term of the loss in a step."""

    seconds: float
    gradient: float | None
    """Norm of its gradient with respect to the network's output; None if it was not measured."""
    forward: bool
    """True if `seconds` include the term itself, False if only its gradient."""


class Phases(Protocol):
    """Times the parts of one trainer's steps. Between `watch` and `take` nothing but training steps may happen."""

    def prepare(self, batch: HostBatch, step: int) -> int:
        """Learn from this batch (not released) what timing needs, before any step is timed.

        Returns how many training steps that took, from `step` on.
        """
        ...

    def watch(self) -> None:
        """Start timing the parts of each step."""
        ...

    def take(self) -> list[dict[str, float]]:
        """Stop timing, and return the seconds by part of each step since `watch`. Waits for the device."""
        ...

    def settle(self) -> None:
        """Wait until the device has finished all its work."""
        ...

    def host_seconds(self, batch: HostBatch, step: int) -> float:
        """Return the seconds that the host takes to give the device all the work of one training step."""
        ...

    def loss_seconds(self, batch: HostBatch, step: int, count: int) -> float | None:
        """Return the mean seconds of a step's loss, forward and back to the network's output, over `count` runs.

        It is None if the loss cannot be separated. The network runs once.
        """
        ...

    def losses(self, batch: HostBatch, step: int) -> dict[str, LossCost]:
        """Return the cost of each term; `loss` is all of them together. Empty if an engine cannot measure it."""
        ...

    def operations(self, batch: HostBatch, step: int) -> list[Operation]:
        """Return the operations of one step; empty if an engine cannot count them."""
        ...

    def limits(self, precision: str) -> Limits:
        """Measure the machine's limits under the run's `precision`; takes a second or two."""
        ...

    def trace(self, folder: Path) -> AbstractContextManager[None]:
        """Return a context that runs the framework's own profiler and writes its result into `folder`."""
        ...


DATA, COMPUTE, BANDWIDTH, LATENCY = "data", "compute", "bandwidth", "latency"

METRICS, LOGGING, CHECKPOINT, PICTURES = "metrics", "logging", "checkpoint", "pictures"
