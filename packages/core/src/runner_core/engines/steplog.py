"""Losses by step, which stay on the device until somebody reads them; any engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from runner_core.protocols import Json

GRADIENT_NORM = "gradient_norm"

Read = Callable[[Sequence[Any]], list[float]]
"""Numbers of an engine's 0-d tensors, with one wait for the device."""


class StepLog:
    """`add` costs a list append per value; `settle` reads all of them at once. What is no number is `read`."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._values: dict[str, list[Any]] = {}
        self._steps: dict[str, list[int]] = {}

    def add(self, step: int, values: Mapping[str, Any]) -> None:
        """Values (0-d tensors without graph, or numbers) of the step that follows `step` finished ones."""
        for name, value in values.items():
            if name not in self._values:
                self._values[name], self._steps[name] = [], []
            self._values[name].append(value)
            self._steps[name].append(step + 1)

    def settle(self) -> None:
        """Tensors → numbers, with one wait for the device."""
        tensors = [v for values in self._values.values() for v in values if not isinstance(v, (int, float))]
        if not tensors:
            return
        numbers = iter(self._read(tensors))
        for values in self._values.values():
            values[:] = [v if isinstance(v, (int, float)) else next(numbers) for v in values]

    def first_nonfinite(self) -> tuple[int, str] | None:
        """(step, name) of the first NaN or infinite value: a term's name rather than the whole loss's.

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
        """The values of one name, step by step; settled."""
        return list(self._values.get(name, ()))

    def every(self) -> Mapping[str, Sequence[float]]:
        """All values by name, step by step; settled."""
        return self._values

    def share_above(self, name: str, limit: float) -> float | None:
        """Share of the values of one name that are larger; None where there are none. Settled."""
        values = self._values.get(name)
        return sum(value > limit for value in values) / len(values) if values else None

    def means(self) -> dict[str, float]:
        """Mean of the finite values by name; then the log is empty."""
        means = {}
        for name, values in self._values.items():
            finite = [value for value in values if math.isfinite(value)]
            if values:
                means[name] = math.fsum(finite) / len(finite) if finite else math.nan
        self._values, self._steps = {}, {}
        return means

    def state(self) -> Json:
        """For the checkpoint; settled."""
        return {name: [self._steps[name], values] for name, values in self._values.items()}

    def load(self, state: Mapping[str, Json]) -> None:
        self._steps = {name: list(steps) for name, (steps, _) in state.items()}
        self._values = {name: list(values) for name, (_, values) in state.items()}
