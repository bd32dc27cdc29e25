"""Weights, for any engine: their moving average, which of another network fit, and how two predictions differ."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from runner_core.base.errors import BadInput
from runner_core.contract import Array
from runner_core.contract.project import Project
from runner_core.contract.start import Fit, StartWeights


class MovingAverage(ABC):
    """Moving average of a network's weights, updated after each step.

    average ← d·average + (1 − d)·weights, with d = min(decay, (1 + t) / (10 + t)) after t steps, so that a short run's
    average forgets the initial weights (tf.train.ExponentialMovingAverage).
    """

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Put the average into the network inside this context, and its own weights back afterwards."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @abstractmethod
    def _swap(self) -> None:
        """Exchange the values of the average and of the network's weights."""


def distance(first: Sequence[Array], second: Sequence[Array]) -> float:
    """Return the largest difference between two predictions, as a share of the first one's range.

    Each is given as its arrays in float64. The distance is infinite if their shapes differ.
    """
    if [a.shape for a in first] != [a.shape for a in second]:
        return math.inf
    return max((_difference(a, b) for a, b in zip(first, second, strict=True)), default=0.0)


def _difference(one: Array, other: Array) -> float:
    if not one.size or np.array_equal(one, other):
        return 0.0
    span: Any = np.ptp(one) or np.abs(one).max() or 1.0
    return float(np.abs(one - other).max() / span)


def matched(own: Mapping[str, str], given: Mapping[str, str]) -> tuple[Fit, dict[str, str]]:
    """Compare weights by name and shape; return how they fit, and the given name of each one that fits.

    `own` and `given` map names to shapes in words. Names that all begin with the same word ("module.", "model.") are
    also tried without it.

    >>> fit, names = matched({"a": "(2,)", "b": "(3,)"}, {"module.a": "(2,)", "module.b": "(4,)"})
    >>> names, dict(fit.differ)
    ({'a': 'module.a'}, {'b': '(4,), which here is (3,)'})
    """
    best: dict[str, str] = {}
    for candidate in _without_common_prefixes(given):
        if not best or _fitting(own, given, candidate) > _fitting(own, given, best):
            best = candidate
    names = {name: best[name] for name, shape in own.items() if name in best and given[best[name]] == shape}
    differ = {n: f"{given[best[n]]}, which here is {own[n]}" for n in own if n in best and n not in names}
    kept, unused = [name for name in own if name not in best], [best[name] for name in best if name not in own]
    return Fit([*names], kept, unused, differ), names


def given_weights(start: StartWeights, network: Any, project: Project) -> Mapping[str, Any]:
    """Return the weights of `start`, as the project translates them (`Learning.adapt_weights`)."""
    given = start.read()
    adapt = project.learning().adapt_weights
    if adapt is None:
        return given
    try:
        return adapt(network, given) or given
    except BadInput as error:
        raise BadInput(f"--from {start.source}: {error}") from error


def _fitting(own: Mapping[str, str], given: Mapping[str, str], names: Mapping[str, str]) -> int:
    return sum(own.get(name) == given[source] for name, source in names.items())


def _without_common_prefixes(given: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Yield name → given name: the names as they are, then without each word that all of them begin with."""
    names = {name: name for name in given}
    yield names
    while names and all("." in name for name in names) and len({name.partition(".")[0] for name in names}) == 1:
        names = {name.partition(".")[2]: source for name, source in names.items()}
        yield names


def refuse_no_fit(start: StartWeights, sizes: Mapping[str, int]) -> None:
    """Raise BadInput unless a weight with more than one element fitted; `sizes` are those of the network's weights."""
    fit = start.fit
    if fit is None or any(sizes[name] > 1 for name in fit.fitted):
        return
    if fit.differ:
        name, shapes = next(iter(fit.differ.items()))
        raise BadInput(
            f"--from {start.source}: none of its weights fits this network, which has the same names: {name} is "
            f"{shapes}. Leave --preset out, or use the settings of the network that was trained (--preset, --config)"
        )
    raise BadInput(
        f"--from {start.source}: none of its weights fits this network by name and shape. The network has "
        f"{listed(fit.kept)}; the file has {listed(fit.unused)}. Use the settings of "
        "the network that was trained (--preset, --config)"
    )


def listed(names: Sequence[str], most: int = 4) -> str:
    """Return the first names and the number of the others.

    >>> listed(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return (", ".join(names[:most]) + more) or "nothing"
