"""Numbers that stay on the device until they are read: losses of steps, and sums over a validation split."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from runner_core.base.errors import BadInput
from runner_core.contract import Array, Arrays, Step, added
from runner_core.contract.project import Project
from runner_core.contract.team import Team
from runner_core.engines.steplog import StepLog
from runner_core.engines.torch.accelerator import wide
from runner_core.engines.validation import mark_weights

Read = Callable[[Sequence[torch.Tensor]], list[float]]
"""Reads the numbers of 0-d tensors, with one wait for the device."""


class TensorLog(StepLog):
    """Log whose values are 0-d tensors until `settle` reads them."""

    def __init__(self, read: Read) -> None:
        super().__init__()
        self._read = read

    def settle(self) -> None:
        tensors = [v for values in self._values.values() for v in values if not isinstance(v, (int, float))]
        if not tensors:
            return
        numbers = iter(self._read(tensors))
        for values in self._values.values():
            values[:] = [v if isinstance(v, (int, float)) else next(numbers) for v in values]


def read(tensors: Sequence[torch.Tensor]) -> list[float]:
    """Return the numbers of 0-d tensors; waits for the device once."""
    try:
        return torch.stack(list(tensors)).tolist()
    except RuntimeError:  # several shapes or devices
        return [float(tensor) for tensor in tensors]


class Means:
    """Reads 0-d tensors that each of several processes has, as their means over the processes."""

    def __init__(self, project: Project, team: Team) -> None:
        self._project, self._team = project, team

    def __call__(self, tensors: Sequence[torch.Tensor]) -> list[float]:
        every = self._team.every(read(tensors))
        if len({len(values) for values in every}) > 1:
            raise BadInput(
                f"project {self._project.name}: `step` must return the same terms in every process, whatever is in its "
                "batch: return 0 for a term that cannot be computed from the batch"
            )
        return [sum(values) / len(values) for values in zip(*every, strict=True)]


class Totals:
    """Mean loss and terms weighted by samples, and the extremes of the project's decision.

    The extremes are those of the decision's values, and of one number per sample (`mark_weights`).
    """

    def __init__(self, project: Project) -> None:
        self._decision = project.health().decision
        self._sums: dict[str, Any] = {}
        self._values, self._marks = _Extremes(), _Extremes()
        self._weights: dict[torch.Size, torch.Tensor] = {}
        self._count = 0
        self.predicted = False
        """True if there was any prediction for metrics to read."""

    def add(self, step: Step, count: int) -> None:
        """Add a batch of `count` samples, whose means are the loss and terms in `step`."""
        self._count += count
        for name, value in {"loss": step.loss, **step.terms}.items():
            number = wide(value) if isinstance(value, torch.Tensor) else value
            self._sums[name] = self._sums.get(name, 0.0) + number * count
        if step.prediction is not None:
            self.predicted = True
            decision = step.prediction if self._decision is None else self._decision(step.prediction)
            parts = decision.values() if isinstance(decision, Mapping) else [decision]
            decided = [part for part in parts if isinstance(part, torch.Tensor) and part.numel()]
            for part in decided:
                self._values.add(part)
            if decided and all(part.ndim and len(part) == count for part in decided):
                self._marks.add(sum(self._mark(part) for part in decided))

    def _mark(self, decision: torch.Tensor) -> torch.Tensor:
        """Return one number per sample from `mark_weights`: (samples,)."""
        shape = decision.shape[1:]
        if shape not in self._weights:
            self._weights[shape] = torch.from_numpy(mark_weights(tuple(shape)).ravel()).to(decision.device)
        return (decision.reshape(len(decision), -1).float() * self._weights[shape]).mean(1)

    def read(self) -> dict[str, float]:
        """Return the values by name; waits for the device.

        `decision_min` and `decision_max` need a decision. `decision_mark_min` and `decision_mark_max` need a decision
        for several samples.
        """
        values = {name: float(total) / self._count for name, total in self._sums.items()}
        values |= self._values.read("decision_")
        return values | self._marks.read("decision_mark_") if self._count > 1 else values

    def state(self) -> Arrays:
        """Return the sums and extremes as `Validation` exchanges them between processes."""
        found = {f"sum.{name}": np.array(float(total)) for name, total in self._sums.items()}
        extremes = {"values": self._values.state(), "marks": self._marks.state()}
        counts = {"count": np.array(self._count), "predicted": np.array(int(self.predicted))}
        return {**found, **{name: state for name, state in extremes.items() if state is not None}, **counts}

    def merge(self, states: Sequence[Arrays]) -> None:
        """Replace the sums and extremes by those of all processes."""
        sums = added([{name: array for name, array in state.items() if name not in _EXTREMES} for state in states])
        self._count, self.predicted = int(sums.pop("count")), bool(sums.pop("predicted"))
        self._sums = {name.removeprefix("sum."): float(total) for name, total in sums.items()}
        self._values, self._marks = (_Extremes.of([s[name] for s in states if name in s]) for name in _EXTREMES)


_EXTREMES = ("values", "marks")


class _Extremes:
    def __init__(self) -> None:
        self._lowest: torch.Tensor | None = None
        self._highest: torch.Tensor | None = None

    def add(self, values: torch.Tensor) -> None:
        lowest, highest = torch.aminmax(values)
        lowest, highest = lowest.float(), highest.float()
        self._lowest = lowest if self._lowest is None else torch.minimum(self._lowest, lowest)
        self._highest = highest if self._highest is None else torch.maximum(self._highest, highest)

    @classmethod
    def of(cls, states: Sequence[Array]) -> _Extremes:
        """Return the extremes of these."""
        extremes = cls()
        for state in states:
            extremes.add(torch.from_numpy(state))
        return extremes

    def state(self) -> Array | None:
        if self._lowest is None or self._highest is None:
            return None
        return torch.stack([self._lowest, self._highest]).cpu().numpy()

    def read(self, prefix: str) -> dict[str, float]:
        if self._lowest is None or self._highest is None:
            return {}
        return {f"{prefix}min": float(self._lowest), f"{prefix}max": float(self._highest)}
