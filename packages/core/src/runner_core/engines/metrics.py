"""Host side of metrics: which ones there are, and how their values are combined.

Metrics themselves accumulate on the device (`runner_core.engines.torch.metrics` has the usual ones).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from runner_core.base.errors import BadInput
from runner_core.config import RunConfig
from runner_core.contract import Metric
from runner_core.contract.project import Project


def default_metrics(project: Project, config: RunConfig) -> list[Metric]:
    """Return the project's own metrics."""
    return list(project.metrics())


def read(metrics: Iterable[Metric], known: Mapping[str, float]) -> dict[str, float]:
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
