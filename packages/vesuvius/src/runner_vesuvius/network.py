"""The 3-D residual U-Net (Çiçek et al. 2016, 10.1007/978-3-319-46723-8_49; residual blocks: He et al. 2016).

With the default settings it has 33,670,284 parameters: levels of 40, 80, 80, 160 and 160 channels, a bottleneck of 320,
and three blocks everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


def norm(channels: int) -> nn.Module:
    """Return a group norm with 8 channels per group (Wu & He 2018).

    Unlike batch norm it keeps a batch's samples independent, and unlike instance norm it needs no minimum of voxels.
    """
    return nn.GroupNorm(channels // math.gcd(8, channels), channels)


def halved(x: Tensor) -> Tensor:
    """Average 2 × 2 × 2 voxels of (B, C, D, H, W), sides rounded up: the last voxel of an odd side stands alone.

    `avg_pool3d` is not used, because `train.deterministic` refuses its gradient on a GPU.
    """
    for axis in (2, 3, 4):
        pairs = x.shape[axis] // 2
        even = x.narrow(axis, 0, 2 * pairs).unflatten(axis, (pairs, 2))
        means = (even.select(axis + 1, 0) + even.select(axis + 1, 1)) * 0.5
        x = means if 2 * pairs == x.shape[axis] else torch.cat((means, x.narrow(axis, 2 * pairs, 1)), axis)
    return x


class Block(nn.Module):
    """Convolution, norm, activation, convolution, norm; then add the input; activation.

    (B, in, D, H, W) → (B, out, D, H, W). With `halve` the sides are halved (rounded up): the convolution has stride 2,
    and means are added (He et al. 2019, 10.1109/CVPR.2019.00065).
    """

    def __init__(self, inputs: int, outputs: int, halve: bool = False) -> None:
        super().__init__()
        self.halve = halve
        self.first = nn.Conv3d(inputs, outputs, 3, 2 if halve else 1, padding=1, bias=False)
        self.first_norm = norm(outputs)
        self.second = nn.Conv3d(outputs, outputs, 3, padding=1, bias=False)
        self.second_norm = norm(outputs)
        self.widen = nn.Identity() if inputs == outputs else nn.Conv3d(inputs, outputs, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.leaky_relu(self.first_norm(self.first(x)), inplace=True)
        y = self.second_norm(self.second(y)) + self.widen(halved(x) if self.halve else x)
        return functional.leaky_relu(y, inplace=True)


class Level(nn.Module):
    """Blocks of one width.

    With `recompute` only the input is kept for the gradient; the rest is computed again.
    """

    def __init__(self, inputs: int, outputs: int, blocks: int, halve: bool, recompute: bool) -> None:
        super().__init__()
        first, others = Block(inputs, outputs, halve), (Block(outputs, outputs) for _ in range(blocks - 1))
        self.blocks = nn.Sequential(first, *others)
        self.recompute = recompute

    def forward(self, *parts: Tensor) -> Tensor:
        """Apply the blocks to `parts`, the input cut along the channels."""
        if self.recompute and torch.is_grad_enabled():
            return checkpoint(self._compute, *parts, use_reentrant=False, preserve_rng_state=False)
        return self._compute(*parts)

    def _compute(self, *parts: Tensor) -> Tensor:
        return self.blocks(parts[0] if len(parts) == 1 else torch.cat(parts, 1))


class SurfaceUNet(nn.Module):
    """Image (B, 1, D, H, W) → logits, finest first.

    The logits are (B, 1, D, H, W), then (B, 1, D/2, H/2, W/2) and so on, one for each level but the deepest; without
    `deep_supervision` only the finest.

    Level l has `base` × `multipliers[l]` channels on half the sides (rounded up) of the level above it. The bottleneck,
    twice as wide, follows the deepest level on the same grid. Sides may have any length as long as the deepest level
    has more than one voxel: with 5 levels, at least 17 along one axis. `checkpointing`: see `Level`.
    """

    def __init__(
        self,
        base: int = 40,
        multipliers: Sequence[int] = (1, 2, 2, 4, 4),
        blocks: int = 3,
        deep_supervision: bool = True,
        checkpointing: bool = False,
    ) -> None:
        super().__init__()
        widths = [base * multiplier for multiplier in multipliers]
        deepest = 2 * widths[-1]
        self.down = nn.ModuleList(
            Level(a, b, blocks, level > 0, checkpointing) for level, (a, b) in enumerate(pairwise([1, *widths]))
        )
        self.bottleneck = Level(widths[-1], deepest, blocks, False, checkpointing)
        self.up = nn.ModuleList(
            nn.ConvTranspose3d(below, own, 2, 2, bias=False) for own, below in pairwise([*widths[:-1], deepest])
        )
        self.merge = nn.ModuleList(Level(2 * own, own, blocks, False, checkpointing) for own in widths[:-1])
        self.heads = nn.ModuleList(nn.Conv3d(own, 1, 1) for own in (widths[:-1] if deep_supervision else widths[:1]))

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        skips, x = [], image
        for level in self.down:
            x = level(x)
            skips.append(x)
        x = self.bottleneck(skips.pop())
        logits = []
        for number in range(len(skips) - 1, -1, -1):
            skip = skips.pop()
            depth, height, width = skip.shape[2:]
            # where the finer grid has an odd side, the last voxel of the doubled one lies beyond it
            x = self.merge[number](self.up[number](x)[:, :, :depth, :height, :width], skip)
            if number < len(self.heads):
                logits.append(self.heads[number](x))
        return tuple(reversed(logits))
