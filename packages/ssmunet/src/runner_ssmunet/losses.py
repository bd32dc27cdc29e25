"""Losses on logits (B, K, H, W) and labels (B, H, W) int64 in which `ignore` stands for pixels nobody annotated.

Both are 0, with gradients of 0, where no pixel is annotated, and computed in float32 or better.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def weighted_cross_entropy(logits: Tensor, labels: Tensor, weights: Tensor | None = None, ignore: int = -1) -> Tensor:
    """Cross-entropy of the annotated pixels, mean weighted by the weights (K,) of their classes; None: all 1."""
    logits = _float(logits)
    annotated = labels != ignore
    if weights is None:
        total = annotated.sum().to(logits.dtype)
    else:
        weights = weights.to(logits.dtype)
        total = (weights[labels.masked_fill(~annotated, 0)] * annotated).sum()
    loss = functional.cross_entropy(logits, labels, weights, ignore_index=ignore, reduction="sum")
    return loss / total.clamp(min=torch.finfo(total.dtype).tiny)


def dice_loss(logits: Tensor, labels: Tensor, ignore: int = -1) -> Tensor:
    """1 − 2 Σpt / (Σp + Σt), sums over the annotated pixels of the batch, mean over the classes they belong to.

    The soft Dice of Milletari et al. 2016 without squares. A class that nobody annotated in this batch has no Dice;
    the cross-entropy is what keeps it from being predicted.
    """
    p = torch.softmax(_float(logits), 1).transpose(0, 1).flatten(1)
    flat = labels.flatten()
    truth = flat == torch.arange(len(p), device=flat.device)[:, None]
    both, predicted, true = (p * truth).sum(1), (p * (flat != ignore)).sum(1), truth.sum(1)
    present = true > 0
    dice = 2 * both / (predicted + true).clamp(min=1)  # nothing below 1 where the class is present
    return ((1 - dice) * present).sum() / present.sum().clamp(min=1)


def _float(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()
