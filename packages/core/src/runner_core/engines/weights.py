"""The moving average of a network's weights, and how two networks' predictions differ, for any engine."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from runner_core.contract import Array


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
