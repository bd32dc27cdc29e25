"""Gram anchoring (Siméoni et al. 2025, DINOv3, arXiv:2508.10104, section 4): patches stay as alike as they were."""

from __future__ import annotations

import torch
from runner_core import Progress
from torch import Tensor
from torch.nn import functional

from runner_dinocell.recipes import GramConfig


def gram(student: Tensor, anchor: Tensor) -> Tensor:
    """Mean squared difference between the cosines of patches (M, T, D), within each of M crops: 0-d."""
    with torch.autocast(student.device.type, enabled=False):
        ours, theirs = (_cosines(tokens) for tokens in (student, anchor))
        return (ours - theirs).square().mean()


def _cosines(tokens: Tensor) -> Tensor:
    wide = functional.normalize(tokens.to(torch.promote_types(tokens.dtype, torch.float32)), dim=-1)
    return wide @ wide.mT


def begun(settings: GramConfig, progress: Progress) -> bool:
    """Return whether the loss counts in this step."""
    return settings.weight > 0 and progress.step >= _first(settings, progress)


def renewed(settings: GramConfig, progress: Progress) -> bool:
    """Return whether the teacher after this step becomes the one that patches are compared with."""
    after = progress.step + 1 - _first(settings, progress)
    every = round(settings.every * progress.steps)
    return settings.weight > 0 and (after == 0 or (every > 0 and after > 0 and after % every == 0))


def _first(settings: GramConfig, progress: Progress) -> int:
    return round(settings.start * progress.steps)
