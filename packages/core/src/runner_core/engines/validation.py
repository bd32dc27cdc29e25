"""Metrics of a validation, and one number that marks a sample's decision."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import numpy as np

from runner_core.base.errors import BadInput
from runner_core.config import RunConfig
from runner_core.contract import Array, Metric
from runner_core.contract.project import Project


def default_metrics(project: Project, config: RunConfig) -> list[Metric]:
    """Return the project's own metrics."""
    return list(project.metrics())


def read_metrics(metrics: Iterable[Metric], known: Mapping[str, float]) -> dict[str, float]:
    """Return `known` and the values of all metrics: the only read from the device.

    Raises BadInput if two metrics have the same name.
    """
    values = dict(known)
    for metric in metrics:
        for name, value in metric.compute().items():
            if name in values:
                raise BadInput(f"two metrics are called {name!r}; rename one of them")
            values[name] = float(value)
    return values


@lru_cache(maxsize=8)
def mark_weights(shape: Sequence[int]) -> Array:
    """Return weights (float32, `shape`) between -1 and 1 without a pattern, the same in every process."""
    count = int(np.prod(shape, dtype=np.int64))
    scattered = np.arange(1, count + 1, dtype=np.uint32) * np.uint32(2654435761)  # Knuth's multiplicative hash
    scattered ^= scattered >> np.uint32(15)
    scattered *= np.uint32(2246822519)
    return (scattered.astype(np.float32) / np.float32(2**31) - 1).reshape(shape)
