"""Stored volumes → inputs of the network and the losses, on their device. PyTorch only."""

from __future__ import annotations

from typing import Any

import torch
from runner_core import Statistics, Tensors
from torch import Tensor

from runner_vesuvius import augment
from runner_vesuvius.config import LossConfig, ScrollConfig
from runner_vesuvius.labels import IGNORE, SURFACE
from runner_vesuvius.losses import LOSSES
from runner_vesuvius.samples import SCALE
from runner_vesuvius.targets import LABEL, MEDIAL, TUBE

STORED = ("image", "target", "distance", "first")


def on_device(batch: Tensors, statistics: Statistics, config: ScrollConfig, rng: torch.Generator | None) -> Tensors:
    """Return all of a batch as (B, 1, D, H, W), augmented if `rng` is given.

    - image: float32, mean 0 and standard deviation 1 over the training volumes, or as the batch's scale has it
      with `first` among the volumes, the mask that is made of it is its second channel
    - surface (float32, 0 and 1) and known (bool, label ≠ 2), from target
    - tube, medial (bool) and distance (float32, voxels, below 0 inside the surface), each if a loss reads it

    Whatever else the batch holds is kept. If it holds the image alone, as in prediction, so does the result.

    Args:
        batch: volumes (B, D, H, W) uint8.
        statistics: mean and std of the grey values, for a batch without scale.
        config: the run's settings.
        rng: random numbers for augmentation.
    """
    wanted = stored(config.loss)
    volumes = {
        name: batch[name][:, None] for name in STORED if name in batch and (name != "distance" or name in wanted)
    }
    out = {name: tensor for name, tensor in batch.items() if name not in STORED}
    host = None if rng is None else augment.on_host(rng)
    if host is not None:
        volumes = augment.turned(volumes, config.augment, host)
    mean, std = _scale(batch, statistics)
    image = volumes["image"].float()
    if config.data.intensities:
        image.clamp_(*config.data.intensities[:2])
    volumes["image"] = image.sub_(mean).div_(std)
    if "first" in volumes:
        volumes["first"] = volumes["first"].float().div_(255)
    if "distance" in volumes:
        volumes["distance"] = signed(volumes["distance"], volumes["target"])
    if host is not None and rng is not None:
        augment.warp(volumes, config.augment, host)
        volumes["image"] = augment.intensity(volumes["image"], config.augment, rng, host)
    if (first := volumes.pop("first", None)) is not None:
        volumes["image"] = torch.cat((volumes["image"], augment.masked(first, config.augment, host)), 1)
    if (target := volumes.pop("target", None)) is not None:
        out |= decoded(target, wanted)
    return out | volumes


def unscaled(batch: Tensors, statistics: Statistics) -> Tensor:
    """Return the grey values of the images of a batch that `on_device` returned."""
    mean, std = _scale(batch, statistics)
    return batch["image"] * std + mean


def _scale(batch: Tensors, statistics: Statistics) -> tuple[Any, Any]:
    """Return mean and standard deviation for a batch's images: one for all, or one for each, (B, 1, 1, 1, 1)."""
    if SCALE not in batch:
        return statistics["mean"], statistics["std"]
    mean, std = batch[SCALE].view(-1, 2, 1, 1, 1, 1).unbind(1)
    return mean, std


def needed(config: LossConfig) -> set[str]:
    """Return the fields, besides surface and known, that losses with a weight read of a batch."""
    active = [name for name, term in config.terms().items() if term.weight > 0 and name in LOSSES]
    return {field for name in active for field in LOSSES[name].needs}


def stored(config: LossConfig) -> set[str]:
    """Return the fields among `needed` that the cache provides."""
    return set() if config.targets == "step" else needed(config)


def decoded(target: Tensor, wanted: set[str]) -> Tensors:
    """Return the bits of a stored target, one volume each."""
    label = target & LABEL
    out: Tensors = {"surface": (label == SURFACE).float(), "known": label != IGNORE}
    for name, bit in (("tube", TUBE), ("medial", MEDIAL)):
        if name in wanted:
            out[name] = (target & bit) > 0
    return out


def signed(squared: Tensor, target: Tensor) -> Tensor:
    """Return distances in voxels, below 0 inside the surface, from stored squares (uint8)."""
    far = squared.float().sqrt_()
    return torch.where(target & LABEL == SURFACE, -far, far)
