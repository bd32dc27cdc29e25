"""Stored arrays to network inputs, on their device. PyTorch only."""

from __future__ import annotations

from typing import Any

import torch
from runner_core import Statistics, Tensors
from torch import Tensor

from runner_ssmunet import augment, labels
from runner_ssmunet.config import SSMConfig
from runner_ssmunet.steps.operations import applied
from runner_ssmunet.steps.pipeline import operations_of

ATTENDED = 256
"""Pixels per batch whose attention is recorded."""


def on_device(batch: Tensors, statistics: Statistics, config: SSMConfig, rng: torch.Generator | None) -> Tensors:
    """Return the inputs that `SSMUNet.on_device` describes.

    Features that `predict` passes come without `tissue` and are returned as they are.
    """
    if "tissue" not in batch:
        return batch
    pixels = "spectra" if "spectra" in batch else "features"
    maps = {name: batch[name] for name in (pixels, "tissue", "label") if name in batch}
    if rng is not None:
        maps = augment.turned(maps, config.augment, rng)
    out = {name: tensor for name, tensor in batch.items() if name not in maps}
    out["tissue"] = maps["tissue"] > 0
    if "label" in maps:
        out["target"] = labels.learned(maps["label"], out["tissue"], config.data.ignore)
        out["truth"] = labels.scored(maps["label"], out["tissue"], config.data.ignore)
    if pixels == "features":
        out["features"] = maps["features"].float()
    else:
        out["spectra"] = _scaled(maps["spectra"].float(), out["tissue"], statistics, config, rng)
    return out


def _scaled(
    spectra: Tensor, tissue: Tensor, statistics: Statistics, config: SSMConfig, rng: torch.Generator | None
) -> Tensor:
    mean, std = (
        torch.as_tensor(statistics[name], dtype=torch.float32).to(spectra.device, non_blocking=True)
        for name in ("mean", "std")
    )
    spectra = applied(spectra, operations_of(statistics))
    if rng is not None:
        spectra = augment.spectral(spectra, std, config.augment, rng)
    return spectra.sub_(mean).div_(std).mul_(tissue[..., None])


def described(model: Any, batch: Tensors) -> Tensors:
    """Return `features` (B, H, W, F) of spectra, and `attention` (1, L) of each wavenumber.

    The attention is the mean over some of the batch's tissue pixels.
    """
    spectra, tissue = batch["spectra"], batch["tissue"]
    pixels = spectra[tissue]
    some = pixels[:: max(1, len(pixels) // ATTENDED)][:ATTENDED]
    attention = model.stack.attend(some)[1]
    return {"features": model.features(spectra, tissue), "attention": attention.float().mean(0, keepdim=True)}
