"""A training step taken apart: the names of its parts, and what `runner P profile` asks an engine.

A trainer calls `trainer.phase(part)` at the end of each part. Nobody listens but while a run is profiled: then it is a
clock, else `unnoticed`, and a step pays a few empty calls (well below a microsecond).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from runner_core.protocols import HostBatch

WAIT, MOVE, AUGMENT, FORWARD, LOSS, BACKWARD, OPTIMIZER = PARTS = (
    "data wait",
    "host to device",
    "augment",
    "forward",
    "loss",
    "backward",
    "optimizer",
)
"""In their order. forward: inside the network's layers; loss: the rest of the project's `step`."""
OTHER = "other"
"""What no part takes: to begin and end a step."""


def unnoticed(part: str) -> None:
    """What a trainer calls while nobody profiles."""


class Operation(NamedTuple):
    """One operation of a step, as the framework starts it."""

    flops: int
    """Floating-point operations; 0 where none are counted (all but matrix products and convolutions)."""
    bytes: int
    """Of all tensors that it reads or writes."""


@dataclass(frozen=True)
class Limits:
    """What this machine reaches with this framework, on the run's device, with the run's threads."""

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
    """What a term of the loss costs in a step."""

    seconds: float
    gradient: float | None
    """Norm of its gradient with respect to the network's output; None where it was not measured."""
    forward: bool
    """Do `seconds` hold the term itself, or only its gradient?"""


class Phases(Protocol):
    """Takes the steps of one trainer apart. Between `watch` and `take` nothing but training steps may happen."""

    def prepare(self, batch: HostBatch, step: int) -> int:
        """What has to be known before steps can be taken apart, from this batch (not released); how many training
        steps that took, from `step` on."""
        ...

    def watch(self) -> None:
        """From now on the parts of each step are timed."""
        ...

    def take(self) -> list[dict[str, float]]:
        """Seconds by part of each step since `watch`, and no more of them. Waits for the device."""
        ...

    def settle(self) -> None:
        """Wait until the device has done all that it was given."""
        ...

    def host_seconds(self, batch: HostBatch, step: int) -> float:
        """Seconds in which the host has given the device all the work of a step (one training step)."""
        ...

    def losses(self, batch: HostBatch, step: int) -> dict[str, LossCost]:
        """By term; `loss` is all of them together. Empty where an engine cannot."""
        ...

    def operations(self, batch: HostBatch, step: int) -> list[Operation]:
        """Of one step; empty where an engine cannot count them."""
        ...

    def limits(self, precision: str) -> Limits:
        """A second or two. `precision`: the run's."""
        ...

    def trace(self, folder: Path) -> AbstractContextManager[None]:
        """The framework's own profiler inside; what it found is in `folder` afterwards."""
        ...
