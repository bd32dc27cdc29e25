"""Stored windows of fields → inputs of the network, the whole batch at once on the device."""

from __future__ import annotations

import torch
from runner_core import Array, Tensors

from runner_dinocell.augment import crops, scaled, whole
from runner_dinocell.config import CellConfig
from runner_dinocell.windows import usable


def on_device(batch: Tensors, config: CellConfig, rng: torch.Generator | None, levels: Array | None = None) -> Tensors:
    """Return globals (B, 2, C, G, G) and locals (B, L, C, S, S), and whatever else the batch holds.

    Crops are float32 with a mean of about 0 and a standard deviation of about 1. Without `rng` the result also has
    image (B, C, G, G), the whole window; without draws it has the image and no crops.

    Args:
        batch: image (B, C, w, w) uint16; levels (B, C, 2) float32; grey (B, C), 0 for channels that are missing,
            which stay 0; draws (B, `augment.draw_count`) float32 in [0, 1).
        config: the run's settings.
        rng: makes the noise of pixels, on the images' device; None: no noise.
        levels: (C, 2), the levels of all fields, used instead of each field's own if there are draws.
    """
    own = batch["levels"]
    if levels is not None and "draws" in batch:
        own = usable(torch.as_tensor(levels, device=own.device)[None], own)
    image = scaled(batch["image"], own)
    there = (batch["grey"] > 0).float() if "grey" in batch else own.new_ones(own.shape[:2])
    out = {name: value for name, value in batch.items() if name not in ("image", "levels", "draws")}
    if rng is None:
        out["image"] = whole(image, config.augment.global_size) * there[..., None, None]
    return out | crops(image, batch["draws"], there, config, rng) if "draws" in batch else out
