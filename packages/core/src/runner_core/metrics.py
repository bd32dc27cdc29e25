"""Metrics on the host's side: which there are, how their values come together, which value is better.

Metrics themselves accumulate on the device (`runner_core.engines.torch.metrics` has the usual ones).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from runner_core._errors import BadInput, did_you_mean
from runner_core.config import RunConfig
from runner_core.project import Project
from runner_core.protocols import Metric


def default_metrics(project: Project, config: RunConfig) -> list[Metric]:
    """The project's own metrics."""
    return list(project.metrics())


def read(metrics: Iterable[Metric], known: Mapping[str, float]) -> dict[str, float]:
    """`known` and the values of all metrics together: the only read of the device. BadInput when two share a name."""
    values = dict(known)
    for metric in metrics:
        for name, value in metric.compute().items():
            if name in values:
                raise BadInput(f"two metrics are called {name!r}; rename one of them")
            values[name] = float(value)
    return values


@dataclass(frozen=True)
class Monitor:
    """The validation metric that chooses the best checkpoint, and its direction."""

    name: str
    mode: Literal["max", "min"]

    def value(self, metrics: Mapping[str, float]) -> float:
        """Raises BadInput when the validation does not give this metric."""
        if self.name not in metrics:
            raise BadInput(
                f"the monitored metric {self.name!r} is not among the validation's: "
                f"{', '.join(metrics)}{did_you_mean(self.name, metrics)}"
            )
        return metrics[self.name]

    def better(self, value: float, best: float | None) -> bool:
        """Is `value` strictly better than `best` (None: nothing yet)? NaN is better than nothing only."""
        if best is None or math.isnan(best):
            return best is None or not math.isnan(value)
        return value > best if self.mode == "max" else value < best
