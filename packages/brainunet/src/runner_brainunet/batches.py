"""Cached slices to network inputs, on the device."""

from __future__ import annotations

from typing import Any

from runner_core import Tensors

from runner_brainunet.augment import augment
from runner_brainunet.config import AugmentConfig
from runner_brainunet.synthetic import synthesise


def on_device(batch: Tensors, config: AugmentConfig, rng: Any | None) -> Tensors:
    """Scale image (B, neighbours, H, W) to float in [0, 1] and mask (B, 1, H, W) to float; augment both with `rng`.

    Synthetic samples need the mask of every slice, (B, neighbours, H, W); the middle one stays.
    """
    out = dict(batch)
    out["image"] = batch["image"].float().div_(255)
    if "mask" in batch:
        masks = batch["mask"].float()
        middle = masks.shape[1] // 2
        out["mask"] = masks[:, middle : middle + 1]
    if rng is not None:
        if config.synthetic:
            out["image"] = synthesise(out["image"], masks, config, rng)
        out["image"], out["mask"] = augment(out["image"], out["mask"], batch["view"].reshape(-1), config, rng)
    return out
