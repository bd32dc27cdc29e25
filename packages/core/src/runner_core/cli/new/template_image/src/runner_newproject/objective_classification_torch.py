"""Loss and metrics of classes: logits (B, classes), label (B,)."""

from typing import Any

import torch
from runner_core import TorchFunctionMetric
from torch.nn import functional as F


def losses(logits: torch.Tensor, label: torch.Tensor, spread: float) -> dict[str, torch.Tensor]:
    """change this: terms that are added up."""
    return {"cross_entropy": F.cross_entropy(logits, label.long())}


def metrics() -> list[TorchFunctionMetric]:
    """accuracy: share of images whose class is found."""

    def accuracy(logits: torch.Tensor, batch: dict[str, Any]) -> torch.Tensor:
        return (logits.argmax(-1) == batch["label"]).float().mean()

    return [TorchFunctionMetric("accuracy", accuracy)]
