"""Cached slices to network inputs, on the device."""

from __future__ import annotations

from typing import Any

from runner_core import Tensors

from runner_brainunet.augment import augment
from runner_brainunet.config import AugmentConfig


def on_device(batch: Tensors, config: AugmentConfig, rng: Any | None) -> Tensors:
    """Scale image (B, neighbours, H, W) to float in [0, 1] and mask (B, 1, H, W) to float; augment both with `rng`."""
    out = dict(batch)
    out["image"] = batch["image"].float().div_(255)
    if "mask" in batch:
        out["mask"] = batch["mask"].float()
    if rng is not None:
        out["image"], out["mask"] = augment(out["image"], out["mask"], batch["view"].reshape(-1), config, rng)
    return out
