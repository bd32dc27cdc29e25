"""Losses on logits (B, K, H, W) and labels (B, H, W) int64; `ignore` is the label of unannotated pixels.

Without any annotated pixel, both losses and their gradients are 0. They are computed in float32 or better.
"""

from __future__ import annotations

import torch
from torch import Tensor


def weighted_cross_entropy(logits: Tensor, labels: Tensor, weights: Tensor | None = None, ignore: int = -1) -> Tensor:
    """Return the cross-entropy of the annotated pixels, weighted by the weights (K,) of their classes.

    Without `weights` all weigh 1. `torch.nn.functional.cross_entropy` is not used: on a GPU it sums over images in no
    fixed order, and raises an error under `train.deterministic`.
    """
    logs = torch.log_softmax(_float(logits), 1).transpose(0, 1).flatten(1)
    truth = _truth(labels, len(logs), ignore)
    own = truth.to(logs.dtype) if weights is None else truth * weights.to(logs.dtype)[:, None]
    loss = -torch.where(truth, logs, 0).mul(own).sum()
    return loss / own.sum().clamp(min=torch.finfo(loss.dtype).tiny)


def dice_loss(logits: Tensor, labels: Tensor, ignore: int = -1) -> Tensor:
    """Return 1 − 2 Σpt / (Σp + Σt): sums over the batch's annotated pixels, mean over their classes.

    This is the soft Dice of Milletari et al. 2016 without squares. A class without annotation in this batch has no
    Dice; the cross-entropy keeps it from being predicted.
    """
    p = torch.softmax(_float(logits), 1).transpose(0, 1).flatten(1)
    truth = _truth(labels, len(p), ignore)
    both, predicted, true = (p * truth).sum(1), (p * (labels.flatten() != ignore)).sum(1), truth.sum(1)
    present = true > 0
    dice = 2 * both / (predicted + true).clamp(min=1)  # nothing below 1 where the class is present
    return ((1 - dice) * present).sum() / present.sum().clamp(min=1)


def _truth(labels: Tensor, classes: int, ignore: int) -> Tensor:
    """Return the pixels that are annotated as each class: (K, pixels) bool."""
    flat = labels.flatten()
    return (flat == torch.arange(classes, device=flat.device)[:, None]) & (flat != ignore)


def _float(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()
