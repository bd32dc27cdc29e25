"""Sums over a validation split, kept on the device and read once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from runner_core.project import Project
from runner_core.protocols import Step


class Totals:
    """Mean loss and terms weighted by samples, and the extremes of the project's decision."""

    def __init__(self, project: Project) -> None:
        self._decision = project.decision
        self._sums: dict[str, Any] = {}
        self._lowest: torch.Tensor | None = None
        self._highest: torch.Tensor | None = None
        self._count = 0
        self.predicted = False
        """Was there any prediction for metrics to read?"""

    def add(self, step: Step, count: int) -> None:
        """`step` is of a batch of `count` samples, its loss and terms their means."""
        self._count += count
        for name, value in {"loss": step.loss, **step.terms}.items():
            wide = value.double() if isinstance(value, torch.Tensor) else value
            self._sums[name] = self._sums.get(name, 0.0) + wide * count
        if step.prediction is not None:
            self.predicted = True
            decision = self._decision(step.prediction)
            for part in decision.values() if isinstance(decision, Mapping) else [decision]:
                self._extremes(part)

    def _extremes(self, decision: Any) -> None:
        if not isinstance(decision, torch.Tensor) or not decision.numel():
            return
        lowest, highest = torch.aminmax(decision)
        lowest, highest = lowest.float(), highest.float()
        self._lowest = lowest if self._lowest is None else torch.minimum(self._lowest, lowest)
        self._highest = highest if self._highest is None else torch.maximum(self._highest, highest)

    def read(self) -> dict[str, float]:
        """Waits for the device. `decision_min` and `decision_max` only where there was a decision."""
        values = {name: float(total) / self._count for name, total in self._sums.items()}
        if self._lowest is not None and self._highest is not None:
            values["decision_min"], values["decision_max"] = float(self._lowest), float(self._highest)
        return values
