"""Loss and metrics of numbers: value (B, 1), label (B,)."""

from typing import Any

import torch
from runner_core import TorchFunctionMetric
from torch.nn import functional as F


def losses(value: torch.Tensor, label: torch.Tensor, spread: float) -> dict[str, torch.Tensor]:
    """change this: terms that are added up. `spread` is that of the training labels: the loss has no unit."""
    return {"distance": F.smooth_l1_loss(value[:, 0] / spread, label.float() / spread)}


def metrics() -> list[TorchFunctionMetric]:
    """error: mean absolute difference, in the label's unit."""

    def error(value: torch.Tensor, batch: dict[str, Any]) -> torch.Tensor:
        return (value[:, 0] - batch["label"]).abs().mean()

    return [TorchFunctionMetric("error", error)]
