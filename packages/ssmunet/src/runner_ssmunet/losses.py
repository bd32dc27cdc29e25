"""Losses on logits (B, K, H, W) and labels (B, H, W) int64 in which `ignore` stands for pixels nobody annotated.

Both are 0, with gradients of 0, where no pixel is annotated, and computed in float32 or better.
"""

from __future__ import annotations

import torch
from torch import Tensor


def weighted_cross_entropy(logits: Tensor, labels: Tensor, weights: Tensor | None = None, ignore: int = -1) -> Tensor:
    """Cross-entropy of the annotated pixels, mean weighted by the weights (K,) of their classes; None: all 1.

    Not by `torch.nn.functional.cross_entropy`, which sums over images in no fixed order on a GPU and refuses to under
    `train.deterministic`.
    """
    logs = torch.log_softmax(_float(logits), 1).transpose(0, 1).flatten(1)
    truth = _truth(labels, len(logs), ignore)
    own = truth.to(logs.dtype) if weights is None else truth * weights.to(logs.dtype)[:, None]
    loss = -torch.where(truth, logs, 0).mul(own).sum()
    return loss / own.sum().clamp(min=torch.finfo(loss.dtype).tiny)


def dice_loss(logits: Tensor, labels: Tensor, ignore: int = -1) -> Tensor:
    """1 − 2 Σpt / (Σp + Σt), sums over the annotated pixels of the batch, mean over the classes they belong to.

    The soft Dice of Milletari et al. 2016 without squares. A class that nobody annotated in this batch has no Dice;
    the cross-entropy is what keeps it from being predicted.
    """
    p = torch.softmax(_float(logits), 1).transpose(0, 1).flatten(1)
    truth = _truth(labels, len(p), ignore)
    both, predicted, true = (p * truth).sum(1), (p * (labels.flatten() != ignore)).sum(1), truth.sum(1)
    present = true > 0
    dice = 2 * both / (predicted + true).clamp(min=1)  # nothing below 1 where the class is present
    return ((1 - dice) * present).sum() / present.sum().clamp(min=1)


def _truth(labels: Tensor, classes: int, ignore: int) -> Tensor:
    """Which pixels are annotated as each class: (K, pixels) bool."""
    flat = labels.flatten()
    return (flat == torch.arange(classes, device=flat.device)[:, None]) & (flat != ignore)


def _float(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()
