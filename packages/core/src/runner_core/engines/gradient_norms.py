"""Gradient norms of loss terms with respect to the prediction, kept until the log is written; any engine.

They are measured in the first five steps and then ever more rarely, together with the places where the gradient is not
zero. This finds a term that teaches nothing, and a loss that looks where it must not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from runner_core.contract import Json, Metric, Tensors
from runner_core.engines.steplog import GRADIENT_NORM

MEASURED_AT = frozenset({*range(5), *(first * 10**power - 1 for first in (1, 2, 5) for power in range(10))})
"""Finished steps before the steps in which it is measured: 1 … 5, 10, 20, 50, 100, 200, … It costs nothing in the
average over a training, and is the same however often that is resumed."""
FIRST = 5
"""Number of first steps with a term in which it is measured too: a term may begin late, or come every so many steps,
and the health rule needs as many measurements."""
_MORE = 4
"""Steps that are needed beyond the number of terms, to say that the loss is their weighted sum."""
HALF_SCALE = 2.0**15
"""Gradients of a mean over millions of voxels vanish in float16: they are taken of so many times the term. A power of 2
that float16 itself holds, for terms that are computed in it."""
_EXACT, _PART = 1e-3, 0.02
"""Shares of the loss's spread. A sum that leaves at most the first is the loss. A term without which more than the
second is left is a part of it: weights that change a little in the meantime leave less."""
_ROUNDING, _SMALL_PART = 1e-5, 1e-3
"""The same two shares where the weights do not change: the sum leaves only the rounding of float32, so a term of small
weight can be told too."""


@dataclass
class Measured:
    """The results of one measured step."""

    norms: dict[str, float] = field(default_factory=dict)
    """Norm of each term's gradient with respect to the prediction; terms that reach it by another way are left out."""
    detached: list[str] = field(default_factory=list)
    """Terms without any gradient: they may only inform."""
    ignored: dict[str, Json] | None = None
    """Facts about the voxels that `Health.ignored` marks: their `share`; the largest gradient of the loss there, as a
    share of the largest anywhere (`gradient`); the `metrics` whose values change with the prediction there."""


class GradientLog:
    """Keep what was measured since it was last taken."""

    def __init__(self) -> None:
        self._norms: dict[str, list[float]] = {}
        self._ignored: dict[str, Json] | None = None
        self._detached: list[str] = []
        self._told = False
        self._values: dict[str, list[float]] = {}
        self._untaught: dict[str, int] = {}
        self._looks = 0

    def add(self, measured: Measured) -> None:
        for name, norm in measured.norms.items():
            if math.isfinite(norm):  # a gradient that overflowed in half precision is not one of nothing
                count, largest = self._norms.get(name, (0, 0.0))
                self._norms[name] = [count + 1, max(largest, norm)]
        self._detached = [*dict.fromkeys([*self._detached, *measured.detached])]
        if measured.ignored is not None:
            self._ignored = _worse(self._ignored, measured.ignored)

    def look(self, weights_without_gradient: Mapping[str, int]) -> None:
        """Keep the trained weights that had no gradient in any measured step so far, with the size of each."""
        before = weights_without_gradient if self._looks == 0 else self._untaught
        self._untaught = {name: size for name, size in weights_without_gradient.items() if name in before}
        self._looks += 1

    def take(self, values: Mapping[str, Sequence[float]]) -> dict[str, Json]:
        """Return facts for health rules about what is new since the last call.

        `values`: the loss and its terms, step by step since then. `detached` are terms that are part of the loss but
        have no gradient.
        """
        facts: dict[str, Json] = {"gradient_norms": self._norms, "ignored": self._ignored}
        if self._detached and not self._told:
            facts["detached"] = self._parts(values)
        if self._looks:
            facts["weights_without_gradient"] = {"weights": self._untaught, "looks": self._looks}
        self._norms, self._ignored, self._untaught, self._looks = {}, None, {}, 0
        return {name: value for name, value in facts.items() if value}

    def _parts(self, values: Mapping[str, Sequence[float]]) -> list[str]:
        """Detached terms of which the loss is made, once that can be told; of as many lines of the log as it takes."""
        for name, column in values.items():
            if name != GRADIENT_NORM:
                self._values[name] = [*self._values.get(name, ()), *column]
        if len(self._values.get("loss", ())) < len(self._values) - 1 + _MORE:
            return []
        found, self._values = parts_of_loss(self._values, self._detached), {}
        self._told = found is not None
        return found or []

    def state(self) -> Json:
        """Return the state for the checkpoint."""
        return {
            "gradient_norms": self._norms, "ignored": self._ignored, "detached": self._detached, "told": self._told,
            "values": self._values, "weights_without_gradient": self._untaught, "looks": self._looks,
        }  # fmt: skip

    def load(self, state: Mapping[str, Json]) -> None:
        """Continue from a checkpoint's state; an empty one changes nothing."""
        norms = state.get("gradient_norms") or state.get("pulls", {})  # its name before 0.1.0
        self._norms = {name: list(norm) for name, norm in norms.items()}
        self._ignored, self._detached = _renamed(state.get("ignored")), list(state.get("detached", []))
        self._told = state.get("told", False)
        self._values = {name: list(column) for name, column in state.get("values", {}).items()}
        self._untaught = dict(
            state.get("weights_without_gradient") or state.get("untaught", {})
        )  # its name before 0.1.0
        self._looks = state.get("looks", 0)


def parts_of_loss(values: Mapping[str, Sequence[float]], names: Sequence[str]) -> list[str] | None:
    """Return those of `names` that are part of the loss: without them it is no weighted sum of the terms.

    None where that cannot be told: from too few steps, or because weights change, or parts are no terms. A term that
    follows from others (ln K minus another one), or does not vary, is not among them.

    >>> a, b = [1.0, 2.0, 4.0, 3.0, 5.0, 1.0], [3.0, 1.0, 2.0, 5.0, 4.0, 4.0]
    >>> parts_of_loss({"loss": [2 * x + y for x, y in zip(a, b)], "a": a, "b": b}, ["b"])
    ['b']
    >>> parts_of_loss({"loss": [2 * x for x in a], "a": a, "b": b}, ["b"])
    []
    """
    steps = len(values.get("loss", ()))
    terms = {name: list(column) for name, column in values.items() if name != "loss" and len(column) == steps}
    if steps < len(terms) + _MORE or not all(math.isfinite(v) for column in values.values() for v in column):
        return None
    loss = np.asarray(values["loss"])
    spread = float(loss.std())
    if not spread or (left := _left(loss, terms)) > _EXACT * spread:
        return None
    part = _SMALL_PART if left <= _ROUNDING * spread else _PART
    without = {name: {n: c for n, c in terms.items() if n != name} for name in names if name in terms}
    return [name for name, others in without.items() if _left(loss, others) > part * spread]


def changed(metrics: Sequence[Metric], one: Any, other: Any, batch: Tensors) -> list[str]:
    """Values of the metrics that are not the same for two predictions of a batch. The metrics forget what they know."""
    told = []
    for prediction in (one, other):
        for metric in metrics:
            metric.reset()
            metric.update(prediction, batch)
        told.append({name: value for metric in metrics for name, value in metric.compute().items()})
        for metric in metrics:
            metric.reset()
    return [name for name, value in told[0].items() if not _same(value, told[1][name])]


def _same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-9) or (math.isnan(one) and math.isnan(other))


def _left(loss: np.ndarray[Any, Any], terms: Mapping[str, Sequence[float]]) -> float:
    """Spread of what the best weighted sum of the terms leaves of the loss."""
    table = np.array([np.ones(len(loss)), *terms.values()], np.float64)
    scale = np.abs(table).max(axis=1, keepdims=True)
    table = (table / np.where(scale > 0, scale, 1)).T
    weights = np.linalg.lstsq(table, loss, rcond=None)[0]
    return float((loss - table @ weights).std())


def _worse(one: dict[str, Json] | None, other: dict[str, Json]) -> dict[str, Json]:
    """Two measurements as one: the larger of each number."""
    if one is None:
        return other
    metrics = [*dict.fromkeys([*one["metrics"], *other["metrics"]])]
    return {**{name: max(one[name], other[name]) for name in ("share", "gradient")}, "metrics": metrics}


def _renamed(ignored: dict[str, Json] | None) -> dict[str, Json] | None:
    """Return the measurement of a checkpoint from before 0.1.0 (`pull`) with the name of today."""
    if ignored is None or "pull" not in ignored:
        return ignored
    return {"gradient" if name == "pull" else name: value for name, value in ignored.items()}
