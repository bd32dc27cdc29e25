"""The validation metric that chooses the best checkpoint."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from runner_core.base.errors import BadInput, did_you_mean


@dataclass(frozen=True)
class Monitor:
    """The validation metric that chooses the best checkpoint, and its direction."""

    name: str
    mode: Literal["max", "min"]

    def value(self, metrics: Mapping[str, float]) -> float:
        """Return the metric's value; raise BadInput if validation does not return this metric."""
        if self.name not in metrics:
            raise BadInput(
                f"the monitored metric {self.name!r} is not among the validation's: "
                f"{', '.join(metrics)}{did_you_mean(self.name, metrics)}"
            )
        return metrics[self.name]

    def better(self, value: float, best: float | None) -> bool:
        """Return True if `value` is strictly better than `best`; NaN is better only than None (nothing yet)."""
        if best is None or math.isnan(best):
            return best is None or not math.isnan(value)
        return value > best if self.mode == "max" else value < best
