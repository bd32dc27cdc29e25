"""Memory that one network takes in training, as an engine knows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Footprint:
    """Bytes on the device that computes.

    A step of a micro-batch of n samples takes `fixed` + n · `sample`, besides weights, gradients, optimizer and
    average; both are 0 if `how` is unknown.
    """

    weights: int
    """Parameters and buffers."""
    gradients: int
    optimizer: int
    average: int
    """The average weights of `train.ema`."""
    fixed: int = 0
    sample: int = 0
    micro: int = 1
    """Samples of a micro-batch when training starts."""
    how: Literal["measured", "counted", "unknown"] = "unknown"
    """measured: in a forward and backward pass of a few samples; counted: from the graph of a step."""
    held: int = 0
    """Bytes of device memory that other users hold: the driver's context, other processes."""
    too_large: bool = False
    """True if the memory ran out even with the fewest samples that can be tried."""

    @property
    def checkpoint(self) -> int:
        """Bytes of one checkpoint."""
        return self.weights + self.optimizer + self.average

    def step(self, samples: int | None = None) -> int:
        """Bytes that a step of `samples` (None: a micro-batch) takes and gives back: activations and the like."""
        return self.fixed + self.sample * (self.micro if samples is None else samples)
