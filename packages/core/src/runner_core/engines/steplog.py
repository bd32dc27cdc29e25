"""Values that a trainer of any engine keeps until they are read: losses by step, on the device, and messages."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from runner_core.base.errors import Unhealthy
from runner_core.contract import Json

GRADIENT_NORM = "gradient_norm"


class StepLog(ABC):
    """Values of steps; `add` costs a list append per value, and `settle` reads all of them at once."""

    def __init__(self) -> None:
        self._values: dict[str, list[Any]] = {}
        self._steps: dict[str, list[int]] = {}

    def add(self, step: int, values: Mapping[str, Any]) -> None:
        """Add values (0-d tensors without graph, or numbers) of the step after `step` finished ones."""
        for name, value in values.items():
            if name not in self._values:
                self._values[name], self._steps[name] = [], []
            self._values[name].append(value)
            self._steps[name].append(step + 1)

    @abstractmethod
    def settle(self) -> None:
        """Make numbers of all values, with one wait for the device."""

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


def refuse_nonfinite(log: StepLog, bad_weight: Callable[[], str | None]) -> None:
    """Raise Unhealthy if a loss in the log or a weight is NaN or infinite; waits for the device.

    `bad_weight` returns the name of such a weight. It is called if all losses are finite.
    """
    log.settle()
    bad = log.first_nonfinite()
    if bad is not None:
        raise Unhealthy(not_finite(*bad))
    name = bad_weight()
    if name is not None:
        raise Unhealthy(weight_not_finite(name))


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


class Notes:
    """An engine's messages to the user (out of memory, for example), until they are read."""

    def __init__(self) -> None:
        self._unread: list[str] = []

    def add(self, text: str) -> None:
        self._unread.append(text)

    def __call__(self) -> list[str]:
        """Return the messages since the last call."""
        unread, self._unread = self._unread, []
        return unread
