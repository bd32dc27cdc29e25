"""Binary cross-entropy and soft Dice on logits, and the Dice of masks."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def bce_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Return the mean binary cross-entropy. `target` in [0, 1] has the shape of `logits`."""
    return functional.binary_cross_entropy_with_logits(logits, target)


def dice_loss(logits: Tensor, target: Tensor, over: str = "batch", smooth: float = 100.0) -> Tensor:
    """Return 1 - (2 Σpt + smooth) / (Σp + Σt + smooth).

    The denominator has no squares, unlike that of Milletari et al. 2016. With `over` batch, the sums run over the whole
    batch: a slice without brain neither divides by zero nor dominates. With `over` sample, the loss is the mean of the
    slices' own losses, which micro-batches reproduce. `smooth` (voxels) keeps a few faint voxels in a slice without
    brain from costing as much as a slice that is all wrong.
    """
    p = torch.sigmoid(logits)
    axes = tuple(range(1 if over == "sample" else 0, p.ndim))
    return (1 - (2 * (p * target).sum(axes) + smooth) / (p.sum(axes) + target.sum(axes) + smooth)).mean()


def dice(found: Tensor, true: Tensor) -> Tensor:
    """Return 2 |found ∩ true| / (|found| + |true|) of all voxels of a batch (bool); 1 if both are empty."""
    both, all_of_them = (found & true).sum(), found.sum() + true.sum()
    return torch.where(all_of_them > 0, 2 * both / all_of_them.clamp(min=1), 1.0)
