"""The loss of one step: cross-entropy and Dice over the annotated pixels, weighted by the settings."""

from __future__ import annotations

import torch
from runner_core import Statistics, Step
from torch import Tensor

from runner_ssmunet import losses
from runner_ssmunet.config import LossConfig


def objective(logits: Tensor, target: Tensor, config: LossConfig, statistics: Statistics) -> Step:
    """Return the weighted sum of both terms, the terms, and the logits (B, K, H, W).

    `target` (B, H, W) int64 holds output numbers, −1 where nothing is learned. With `class_weights` balanced, the
    cross-entropy weighs classes by `statistics["class_weights"]` (K,).
    """
    weights = None
    if config.class_weights == "balanced":
        weights = torch.as_tensor(statistics["class_weights"], dtype=torch.float32, device=logits.device)
    terms = {
        "cross_entropy": losses.weighted_cross_entropy(logits, target, weights),
        "dice_loss": losses.dice_loss(logits, target),
    }
    return Step(config.cross_entropy * terms["cross_entropy"] + config.dice * terms["dice_loss"], terms, logits)
