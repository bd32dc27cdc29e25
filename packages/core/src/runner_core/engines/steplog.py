"""Losses by step, kept on the device until they are read, for any engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from runner_core.contract import Json

GRADIENT_NORM = "gradient_norm"

Read = Callable[[Sequence[Any]], list[float]]
"""Reads the numbers of an engine's 0-d tensors, with one wait for the device."""


class StepLog:
    """Values of steps; `add` costs a list append per value, and `settle` reads all tensors at once with `read`."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._values: dict[str, list[Any]] = {}
        self._steps: dict[str, list[int]] = {}

    def add(self, step: int, values: Mapping[str, Any]) -> None:
        """Add values (0-d tensors without graph, or numbers) of the step after `step` finished ones."""
        for name, value in values.items():
            if name not in self._values:
                self._values[name], self._steps[name] = [], []
            self._values[name].append(value)
            self._steps[name].append(step + 1)

    def settle(self) -> None:
        """Convert tensors to numbers, with one wait for the device."""
        tensors = [v for values in self._values.values() for v in values if not isinstance(v, (int, float))]
        if not tensors:
            return
        numbers = iter(self._read(tensors))
        for values in self._values.values():
            values[:] = [v if isinstance(v, (int, float)) else next(numbers) for v in values]

    def first_nonfinite(self) -> tuple[int, str] | None:
        """Return (step, name) of the first NaN or infinite value, a term's name rather than the whole loss's.

        Gradient norms do not count: loss scaling lets them overflow, and skips that step.
        """
        found = [
            (step, name == "loss", name)
            for name, values in self._values.items()
            if name != GRADIENT_NORM
            for step, value in zip(self._steps[name], values, strict=True)
            if not math.isfinite(value)
        ]
        return (min(found)[0], min(found)[2]) if found else None

    def of(self, name: str) -> list[float]:
        """Return the values of one name, step by step; call `settle` first."""
        return list(self._values.get(name, ()))

    def every(self) -> Mapping[str, Sequence[float]]:
        """Return all values by name, step by step; call `settle` first."""
        return self._values

    def share_above(self, name: str, limit: float) -> float | None:
        """Return the share of one name's values above `limit`, or None if there are none; call `settle` first."""
        values = self._values.get(name)
        return sum(value > limit for value in values) / len(values) if values else None

    def means(self) -> dict[str, float]:
        """Return the mean of the finite values by name, and empty the log."""
        means = {}
        for name, values in self._values.items():
            finite = [value for value in values if math.isfinite(value)]
            if values:
                means[name] = math.fsum(finite) / len(finite) if finite else math.nan
        self._values, self._steps = {}, {}
        return means

    def state(self) -> Json:
        """Return the state for the checkpoint; call `settle` first."""
        return {name: [self._steps[name], values] for name, values in self._values.items()}

    def load(self, state: Mapping[str, Json]) -> None:
        self._steps = {name: list(steps) for name, (steps, _) in state.items()}
        self._values = {name: list(values) for name, (_, values) in state.items()}


def not_finite(step: int, term: str) -> str:
    """Return the message for a loss that became NaN or infinite in optimizer step `step` (from 1)."""
    return (
        f"{term} was NaN or infinite in step {step}, for the first time. No checkpoint holds such weights. Likely "
        "remedies: a lower train.learning_rate, train.clip, precision.mode float32 (or bfloat16 instead of float16), "
        "or a look at the data (`check`)"
    )


def weight_not_finite(name: str) -> str:
    """Return the message for a weight that became NaN or infinite."""
    return (
        f"{name} (a weight) became NaN or infinite while the loss was finite: a gradient overflowed. No "
        "checkpoint holds such weights; set train.clip or a lower train.learning_rate"
    )
