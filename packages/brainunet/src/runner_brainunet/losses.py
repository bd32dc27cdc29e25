"""Binary cross-entropy and soft Dice on logits."""

from __future__ import annotations

import numpy as np
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


def of_constant(share: float, bce: float, dice: float) -> dict[str, float]:
    """Loss and terms, with these weights, of the probability that is best where every voxel gets the same: the loss of
    a network that looks at nothing. `share`: of the voxels that are brain, above 0 and below 1. Batches are taken to be
    large and alike.
    """
    p = np.linspace(0, 1, 1001)[1:-1]
    terms = {
        "bce_loss": -(share * np.log(p) + (1 - share) * np.log(1 - p)),
        "dice_loss": 1 - 2 * share * p / (share + p),
    }
    loss = bce * terms["bce_loss"] + dice * terms["dice_loss"]
    best = int(loss.argmin())
    return {name: float(values[best]) for name, values in {"loss": loss, **terms}.items()}
