"""Heads that tell plate, well position or label from an embedding, to suppress it there or to learn from it.

Suppression reverses the head's gradient (Ganin & Lempitsky 2015, arXiv:1409.7495); guidance by compounds as weak labels
is Caicedo et al. 2018 (10.1109/CVPR.2018.00970). Both on the CLS token before DINO's head, as in metadata-guided DINOv3
(Gardès et al. 2026, arXiv:2606.05107).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from runner_core import BadInput, Progress, Statistics, Tensors
from torch import Tensor, nn
from torch.nn import functional

from runner_dinocell.recipes import MetadataConfig

UNKNOWN = -1
"""Class of a record whose plate, position or label training has not, or that has none: it does not count."""


def classes(
    keys: Sequence[str], labels: Mapping[str, str | None], training: Sequence[int], settings: MetadataConfig
) -> Statistics:
    """Return for each name in `settings.told` NAME_classes, how many there are, and NAME_of_record (records,) int64.

    Classes are those of the training records. `keys` are …/plate/well/site. Raises BadInput if there are fewer than
    two.
    """
    found: Statistics = {}
    for name in settings.told:
        each = [_value(name, key, labels) for key in keys]
        known = sorted({value for number in training if (value := each[number]) is not None})
        if len(known) < 2:
            what = f"metadata.suppress {name}" if name != "label" else "metadata.guide"
            there = f"one {name} only, {known[0]}" if known else f"no {name}"
            hint = " (see data.label)" if name == "label" else ""
            raise BadInput(f"{what}: the training fields have {there}, and two are needed{hint}. Leave the setting out")
        numbers: dict[str | None, int] = {value: number for number, value in enumerate(known)}
        found[f"{name}_classes"] = len(known)
        found[f"{name}_of_record"] = np.array([numbers.get(value, UNKNOWN) for value in each], np.int64)
    return found


def _value(name: str, key: str, labels: Mapping[str, str | None]) -> str | None:
    if name == "label":
        return labels.get(key)
    plate, well, _ = key.rsplit("/", 2)
    return plate if name == "plate" else well


def targets(batch: Tensors, statistics: Statistics, settings: MetadataConfig) -> Tensors:
    """Return NAME_class (B,) int64 of a batch with `record`, for each name in `settings.told`."""
    return {
        f"{name}_class": torch.as_tensor(statistics[f"{name}_of_record"], device=batch["record"].device)[
            batch["record"]
        ]
        for name in settings.told
    }


class MetadataHeads(nn.Module):
    """A classifier with one hidden layer for each name in `settings.told`.

    Args:
        width: Width D of embeddings.
        settings: What is suppressed and what guides.
        counts: Number of classes, by name.
    """

    def __init__(self, width: int, settings: MetadataConfig, counts: Mapping[str, int]) -> None:
        super().__init__()
        self._suppressed = frozenset(settings.suppress)
        self.heads = nn.ModuleDict(
            {
                name: nn.Sequential(nn.Linear(width, settings.hidden), nn.GELU(), nn.Linear(settings.hidden, count))
                for name, count in counts.items()
            }
        )

    def forward(self, features: Tensor, batch: Tensors, name: str, progress: Progress) -> Tensor:
        """Return the mean cross-entropy of (2B, D), crop by crop, with the classes of a batch's images: 0-d."""
        given = Reversed.apply(features, strength(progress)) if name in self._suppressed else features
        target = batch[f"{name}_class"].repeat(2)
        loss = functional.cross_entropy(self.heads[name](given).float(), target, ignore_index=UNKNOWN, reduction="sum")
        return loss / (target != UNKNOWN).sum().clamp(min=1)


def strength(progress: Progress) -> float:
    """Return the size of a reversed gradient after the share p of the training, 2 / (1 + exp(-10 p)) - 1."""
    return 2 / (1 + math.exp(-10 * progress.fraction)) - 1


class Reversed(torch.autograd.Function):
    """The identity, whose gradient is turned round: minus `strength` times it."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, strength: float) -> Tensor:
        ctx.strength = strength
        return features.view_as(features)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return -ctx.strength * gradient, None
