"""The loss of one step: cross-entropy and Dice, weighted by the settings."""

from __future__ import annotations

from runner_core import Step, Tensors
from torch import Tensor

from runner_brainunet import losses
from runner_brainunet.config import LossConfig


def objective(logits: Tensor, batch: Tensors, weights: LossConfig) -> Step:
    """Return the weighted sum of both terms, the terms, and the logits (B, 1, H, W)."""
    mask = batch["mask"]
    terms = {
        "bce_loss": losses.bce_loss(logits, mask),
        "dice_loss": losses.dice_loss(logits, mask, weights.dice_over),
    }
    return Step(weights.bce * terms["bce_loss"] + weights.dice * terms["dice_loss"], terms, logits)
