"""What an engine knows of the memory that one network takes under training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Footprint:
    """Bytes, all on the device that computes. A step of a micro-batch of n samples takes `fixed` + n · `sample` besides
    weights, gradients, optimizer and average; both are 0 where `how` is unknown."""

    weights: int
    """Parameters and buffers."""
    gradients: int
    optimizer: int
    average: int
    """`train.ema`'s."""
    fixed: int = 0
    sample: int = 0
    micro: int = 1
    """Samples of a micro-batch, as training begins with it."""
    how: Literal["measured", "counted", "unknown"] = "unknown"
    """measured: in a forward and backward pass of a few samples; counted: from the graph of a step."""
    held: int = 0
    """Bytes of the device's memory that nobody of these has: the driver's context, other processes."""
    too_large: bool = False
    """Did the memory run out with the fewest samples that can be tried?"""

    @property
    def checkpoint(self) -> int:
        """Bytes of one checkpoint."""
        return self.weights + self.optimizer + self.average

    def step(self, samples: int | None = None) -> int:
        """Activations and what else a step takes and gives back, with `samples` at once (None: a micro-batch)."""
        return self.fixed + self.sample * (self.micro if samples is None else samples)
