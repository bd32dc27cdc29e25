"""Binary cross-entropy and soft Dice on logits."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def bce_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Mean binary cross-entropy; `target` in [0, 1], of the shape of `logits`."""
    return functional.binary_cross_entropy_with_logits(logits, target)


def dice_loss(logits: Tensor, target: Tensor, smooth: float = 100.0) -> Tensor:
    """1 - (2 Σpt + smooth) / (Σp + Σt + smooth), sums over the whole batch (Milletari et al. 2016, without squares).

    Over the batch, not per slice: a slice without brain then neither divides by nothing nor dominates. `smooth`
    (voxels) keeps a batch without any brain from costing as much as one all wrong for a few faint voxels.
    """
    p = torch.sigmoid(logits)
    return 1 - (2 * (p * target).sum() + smooth) / (p.sum() + target.sum() + smooth)
