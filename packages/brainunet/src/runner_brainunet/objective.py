"""The loss of one step: cross-entropy and Dice, weighted by the settings."""

from __future__ import annotations

from runner_core import Step, Tensors
from torch import Tensor

from runner_brainunet import losses
from runner_brainunet.config import LossConfig


def objective(logits: Tensor, batch: Tensors, weights: LossConfig, cut: float | None = None) -> Step:
    """Return the weighted sum of both terms, the terms, and the logits (B, 1, H, W).

    With `cut`, the logit above which a voxel is brain, the terms also tell the `batch_dice`, which teaches nothing.
    """
    mask = batch["mask"]
    terms = {
        "bce_loss": losses.bce_loss(logits, mask),
        "dice_loss": losses.dice_loss(logits, mask, weights.dice_over),
    }
    loss = weights.bce * terms["bce_loss"] + weights.dice * terms["dice_loss"]
    if cut is not None:
        terms["batch_dice"] = losses.dice(logits.detach() > cut, mask > 0.5)
    return Step(loss, terms, logits)
