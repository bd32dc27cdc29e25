"""The soft skeleton of clDice (Shit et al. 2021, algorithm 1), by shifts of whole volumes: exact and cheap."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

SPACE = (2, 3, 4)
"""Spatial axes of (B, C, D, H, W)."""
_LINES = ((3, 1, 1), (1, 3, 1), (1, 1, 3))


def soft_skeleton(p: Tensor, known: Tensor, iterations: int) -> Tensor:
    """Return what openings remove from p after up to `iterations` erosions: (B, 1, D, H, W) in [0, 1].

    Voxels that are not `known` (bool) are treated as those beyond the volume's border: erosions and dilations pass over
    them, and the skeleton there is 0. So a sheet does not end where the annotation does.
    """
    skeleton = torch.zeros_like(p)
    for _ in range(iterations + 1):
        eroded = _erode(p, known)
        taken = functional.relu(p - _dilate(eroded, known))
        skeleton = skeleton + functional.relu(taken - skeleton * taken)
        p = eroded
    return skeleton * known


def pooled_skeleton(p: Tensor, known: Tensor, iterations: int) -> Tensor:
    """Return the soft skeleton by PyTorch's max-pools and autograd, as the paper's code does, to compare with."""
    skeleton = torch.zeros_like(p)
    for _ in range(iterations + 1):
        negative = -p.masked_fill(~known, 1)
        pools = (functional.max_pool3d(negative, size, 1, [n // 2 for n in size]) for size in _LINES)
        eroded = -functools.reduce(torch.maximum, pools)
        taken = functional.relu(p - functional.max_pool3d(eroded.masked_fill(~known, 0), 3, 1, 1))
        skeleton = skeleton + functional.relu(taken - skeleton * taken)
        p = eroded
    return skeleton * known


def _erode(p: Tensor, known: Tensor) -> Tensor:
    """Return the lowest of a voxel and its six neighbours: the minimum of three min-pools, one along each axis."""
    return -Highest.apply(-p.masked_fill(~known, 1), SPACE)


def _dilate(p: Tensor, known: Tensor) -> Tensor:
    """Return the highest of a voxel and its 26 neighbours: a max-pool along one axis after the other."""
    p = p.masked_fill(~known, 0)
    for axis in SPACE:
        p = Highest.apply(p, (axis,))
    return p


class Highest(torch.autograd.Function):
    """Maximum of each voxel and its direct neighbours along `axes`; beyond the border there are none.

    The gradient goes to the voxel that is the highest; if several are, to the voxel itself, else to the first of its
    neighbours. PyTorch's max-pools take five times as long on a CPU, and on a GPU add gradients up in no fixed order.
    """

    @staticmethod
    def forward(context: Any, x: Tensor, axes: tuple[int, ...]) -> Tensor:
        out = x.clone()
        for source, target in _neighbours(x, out, axes):
            torch.maximum(target, source, out=target)
        context.save_for_backward(x, out)
        context.axes = axes
        return out

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        x, out = context.saved_tensors
        left = gradient.masked_fill(x == out, 0)
        passed = gradient - left
        pairs = zip(_neighbours(x, out, context.axes), _neighbours(passed, left, context.axes), strict=True)
        for (source, target), (to, of) in pairs:
            share = of * (source == target)
            to += share
            of -= share
        return passed, None


def _neighbours(x: Tensor, out: Tensor, axes: tuple[int, ...]) -> list[tuple[Tensor, Tensor]]:
    """Return views of `x` and `out` in which voxels at the same place are neighbours."""
    views = []
    for axis in axes:
        length = x.shape[axis] - 1
        views.append((x.narrow(axis, 0, length), out.narrow(axis, 1, length)))
        views.append((x.narrow(axis, 1, length), out.narrow(axis, 0, length)))
    return views
