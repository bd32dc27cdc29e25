"""Deep supervision: the dense losses use every level of the network, the others only the finest."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from runner_core import Tensors
from torch import Tensor
from torch.nn import functional

from runner_vesuvius.config import LossConfig
from runner_vesuvius.losses import LOSSES

DENSE = ("bce", "dice", "skeleton_recall")
"""Losses that use the coarse levels too, as Σ 2⁻ⁱ·Lᵢ / Σ 2⁻ⁱ (Lee et al. 2015; the weights of nnU-Net, Isensee et al.
2021)."""


def targets(batch: Tensors, logits: Sequence[Tensor]) -> list[Tensors]:
    """Return the targets of each level: surface, known and, if the batch has it, tube.

    They lie on the grids of `logits`, whose sides are those of the level before, halved and rounded up, or equal. A
    coarse voxel is surface, or in the tube, if any known voxel in it is. It is known if it is surface, or if all its
    voxels are known: half-annotated background may hide a surface.
    """
    if len(logits) == 1:
        return [batch]
    names = ("surface", "tube") if "tube" in batch else ("surface",)
    known = batch["known"]
    layers = torch.cat([(batch[name] * known).float() for name in names] + [(~known).float()], 1)
    found = [batch]
    for level in logits[1:]:
        halved = [2 if fine != coarse else 1 for fine, coarse in zip(layers.shape[2:], level.shape[2:], strict=True)]
        layers = functional.max_pool3d(layers, halved, ceil_mode=True)
        if layers.shape[2:] != level.shape[2:]:
            raise ValueError(f"a level of {tuple(level.shape[2:])} where {tuple(layers.shape[2:])} was expected")
        surface, unknown = layers[:, :1], layers[:, -1:] > 0
        coarse = {"surface": surface, "known": (surface > 0) | ~unknown}
        if "tube" in batch:
            coarse["tube"] = layers[:, 1:2] > 0
        found.append(coarse)
    return found


def supervised(name: str, logits: Sequence[Tensor], targets: Sequence[Tensors], config: LossConfig) -> list[Tensor]:
    """Return a loss at each level that has a part in it, finest first."""
    count = len(logits) if name in DENSE else 1
    return [LOSSES[name].function(logits[i], targets[i], config) for i in range(count)]


def over_levels(losses: Sequence[Tensor]) -> Tensor:
    """Σ 2⁻ⁱ·Lᵢ / Σ 2⁻ⁱ."""
    weights = [2.0**-i for i in range(len(losses))]
    return sum(w * loss for w, loss in zip(weights, losses, strict=True)) / sum(weights)
