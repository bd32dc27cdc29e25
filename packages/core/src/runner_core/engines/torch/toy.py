"""The network and the loss of the toy project on which extensions are tested (`runner_core.testing.train_toy`)."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


def network() -> nn.Module:
    """Return a network that finds bright squares."""
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 1, 3, padding=1))


def loss(logits: Tensor, mask: Tensor) -> Tensor:
    """Return the mean cross-entropy of the pixels."""
    return F.binary_cross_entropy_with_logits(logits, mask)
