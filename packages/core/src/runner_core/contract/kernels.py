"""The results of one training step, so that two ways to compute it can be compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from runner_core.contract.values import Arrays


@dataclass(frozen=True)
class Way:
    """The way in which a step is computed to be compared.

    Attributes:
        plain: By the framework's own plain kernels: nothing is compiled, without cuDNN, oneDNN and fused attention.
        rounding: If a number, each operation's result is off by as much as its dtype allows, at random with this seed.
            The result shows how far rounding alone may carry.
        layers: Also return the output of each layer, and its gradient.
        weights: Which way the weights are moved before; each number is another place.
        shadow: Compute each operation once more by plain kernels, and compare; if the engine can.
    """

    plain: bool = False
    rounding: int | None = None
    layers: bool = False
    weights: int = 0
    shadow: bool = False


@dataclass
class Observed:
    """The results of one step; all arrays are float32 on the host."""

    values: Arrays = field(default_factory=dict)
    """The loss, its terms, the prediction, and the network's floating-point state afterwards, by name."""
    gradients: Arrays = field(default_factory=dict)
    """Gradient of the loss for each trained weight, by name; zeros if it has none."""
    outputs: Arrays = field(default_factory=dict)
    """Output of each layer in the order of their calls, if asked for."""
    output_gradients: Arrays = field(default_factory=dict)
    """Gradient of the loss for each layer's output, if asked for."""
    order: Mapping[str, int] = field(default_factory=dict)
    """Layers by name, numbered in the order of their calls; empty if that is not known."""
    wrong: list[Disagreement] = field(default_factory=list)
    """Operations that disagree with plain ones, if these were asked for (`Way.shadow`)."""
    seconds: float = 0.0


@dataclass(frozen=True)
class Disagreement:
    """A tensor of the step that is wrong.

    `error` is its relative error, `allowed` what rounding explains, `where` the slice in which it is largest.
    """

    kind: str
    name: str
    error: float
    allowed: float
    where: str = ""

    @property
    def times(self) -> float:
        """The error as a multiple of what rounding explains."""
        return self.error / max(self.allowed, 1e-300)

    @property
    def text(self) -> str:
        allowed = f"rounding explains {self.allowed:.2g}" if self.allowed else "which no rounding explains"
        return f"{self.kind} {self.name}: relative error {self.error:.2g}{self.where}, {allowed}".strip()


@dataclass
class Updated:
    """Weights after each of some updates with given gradients, and their moving average before and after them."""

    before: Arrays
    steps: list[Arrays]
    average_before: Arrays
    average: Arrays
