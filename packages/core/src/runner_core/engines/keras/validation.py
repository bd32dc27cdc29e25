"""Run a validation batch through the network, as traced, and sum over a split, read once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from runner_core.contract import Array, Progress, Step, Tensors
from runner_core.contract.project import Project
from runner_core.engines.keras.learning import DeviceRows
from runner_core.engines.keras.network import Bound
from runner_core.engines.returned import refuse_no_step, snapshots
from runner_core.engines.validation import mark_weights


class Validating:
    """Maps arrays to (tensors, prediction, numbers).

    The numbers are loss and terms, then the extremes of the project's decision: of its values, and of one number per
    sample (`mark_weights`).
    """

    def __init__(
        self,
        project: Project,
        network: keras.Model,
        statistics: Mapping[str, Any],
        progress: Progress,
        gather: DeviceRows | None = None,
    ) -> None:
        self._project, self._statistics, self._progress, self._gather = project, statistics, progress, gather
        self._decision = project.health().decision
        self._bound = Bound(network, training=False)
        self.names: list[str] = []
        """Names of the numbers, in order; known once it is traced."""

    def __call__(self, arrays: Tensors) -> tuple[Tensors, Any, Any]:
        ops = keras.ops
        tensors, step = self.step(arrays)
        loss, terms, prediction, _ = step
        values = {"loss": loss, **terms}
        if prediction is not None:
            decision = prediction if self._decision is None else self._decision(prediction)
            parts = list(decision.values()) if isinstance(decision, Mapping) else [decision]
            values["decision_min"] = _over(ops.minimum, [ops.min(ops.cast(part, "float32")) for part in parts])
            values["decision_max"] = _over(ops.maximum, [ops.max(ops.cast(part, "float32")) for part in parts])
            if all(_marked(part) for part in parts):
                mark = _over(ops.add, [_mark(part) for part in parts])
                values["decision_mark_min"], values["decision_mark_max"] = ops.min(mark), ops.max(mark)
        self.names = list(values)
        return tensors, prediction, ops.stack([ops.cast(value, "float32") for value in values.values()])

    def step(self, arrays: Tensors) -> tuple[Tensors, Step]:
        """Return the tensors, and the result of the project's `step` for them."""
        tensors = self._tensors(arrays)
        step = self._project.step(self._bound, tensors, self._progress)
        refuse_no_step(self._project, step)
        return tensors, step

    def of(self, project: Project, network: keras.Model) -> Validating:
        """Return the same function for another network, with the statistics that its project holds."""
        return Validating(project, network, project.statistics, self._progress, self._gather)

    def snapshots(self, arrays: Tensors) -> Mapping[str, Array]:
        """Return the project's pictures of a batch; not compiled."""
        return snapshots(self._project, self._bound, self._tensors(arrays))

    def _tensors(self, arrays: Tensors) -> Tensors:
        tensors = dict(arrays) if self._gather is None else self._gather(arrays)
        return self._project.on_device(tensors, dict(self._statistics), None)


class Totals:
    """Mean loss and terms weighted by samples, and the extremes of the decision over all batches."""

    def __init__(self, validating: Validating) -> None:
        self._validating = validating
        self._numbers: list[Any] = []
        self._counts: list[int] = []
        self.predicted = False
        """True if there was any prediction for metrics to read."""

    def add(self, step: Step, count: int) -> None:
        """Add a batch of `count` samples, whose numbers are in `step.loss`."""
        self._numbers.append(step.loss)
        self._counts.append(count)
        self.predicted |= step.prediction is not None

    def read(self) -> dict[str, float]:
        """Return the values by name; waits for the device."""
        table = np.asarray(keras.ops.convert_to_numpy(keras.ops.stack(self._numbers)), np.float64)
        found: dict[str, float] = {}
        for name, column in zip(self._validating.names, table.T, strict=True):
            match name:
                case "decision_mark_min" | "decision_mark_max" if sum(self._counts) < 2:
                    pass
                case "decision_min" | "decision_mark_min":
                    found[name] = float(column.min())
                case "decision_max" | "decision_mark_max":
                    found[name] = float(column.max())
                case _:
                    found[name] = float(np.average(column, weights=self._counts))
        return found


def _marked(decision: Any) -> bool:
    """Return True if the decision has values for each sample, and their number is known during tracing."""
    return len(decision.shape) > 0 and None not in decision.shape


def _mark(decision: Any) -> Any:
    """Return one number per sample from `mark_weights`: (samples,) float32."""
    ops = keras.ops
    weights = mark_weights(tuple(decision.shape[1:]))
    return ops.mean(ops.reshape(ops.cast(decision, "float32") * weights, (decision.shape[0], -1)), axis=1)


def _over(function: Any, parts: list[Any]) -> Any:
    first, *rest = parts
    for part in rest:
        first = function(first, part)
    return first
