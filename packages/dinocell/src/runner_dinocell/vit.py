"""DINOv2's vision transformer (Dosovitskiy 2021; Oquab 2023) on timm's: any channels, crops of any size, masks.

It has timm's names of weights and timm's blocks, so that timm loads trained weights. Two things are DINOv2's own: the
mask token, and how position embeddings are interpolated. DINOv2's CLS token has a position embedding too; here the two
are one weight, their sum, as in timm's models with registers. `train.recipe dinov2-exact` keeps them apart, because
their sum then moves by the steps of both, and drops residuals as DINOv2 does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn
from torch.nn import functional

from runner_dinocell.config import CellConfig

SIZES = {
    "mini": (96, 4, 3),
    "tiny": (192, 12, 3),
    "small": (384, 12, 6),
    "base": (768, 12, 12),
    "large": (1024, 24, 16),
}
"""Width, blocks and heads."""
OFFSET = 0.1
"""Patches by which DINOv2 without registers makes the interpolated grid too large (see `interpolated`)."""


class Tokens(NamedTuple):
    """Outputs of a backbone for M images, after its last norm."""

    image: Tensor
    """(M, D): the CLS token."""
    patches: Tensor
    """(M, T, D), row by row."""


def drawn(count: int, share: float, device: torch.device) -> Tensor:
    """Return which samples of a batch of `count` keep a residual, if a `share` of them drops it: at least one."""
    return torch.randperm(count, device=device)[: max(int(count * (1 - share)), 1)]


class SubsetBlock(Block):
    """timm's block with DINOv2's stochastic depth: each residual is computed for a random part of the batch alone.

    An exact share of the samples keeps it, so the work shrinks by that share; it is scaled up for them. In timm's block
    every sample is decided by itself, and all are computed.
    """

    dropped = 0.0

    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        if not self.training or not self.dropped:
            return super().forward(x, attn_mask)

        def attention(some: Tensor, kept: Tensor) -> Tensor:
            mask = None if attn_mask is None else attn_mask[kept]
            return self.ls1(self.attn(self.norm1(some), attn_mask=mask))

        x = self._with(attention, x)
        return self._with(lambda some, _: self.ls2(self.mlp(self.norm2(some))), x)

    def _with(self, residual: Callable[[Tensor, Tensor], Tensor], x: Tensor) -> Tensor:
        """Add a residual to the samples (M, N, D) that keep it."""
        kept = drawn(len(x), self.dropped, x.device)
        return x.index_add(0, kept, residual(x[kept], kept).to(x.dtype), alpha=len(x) / len(kept))


class CellTransformer(VisionTransformer):
    """Images (M, C, H, W), sides multiples of the patch, and mask (M, T) bool, true where hidden → `Tokens`.

    With `exact`, the CLS token has a position embedding of its own, and every block drops its residuals for the share
    `drop_path` of the batch; otherwise the share rises from 0 to `drop_path` in the last block.
    """

    def __init__(self, drop_path: float, exact: bool = False, **arguments: Any) -> None:
        arguments |= {"block_fn": SubsetBlock} if exact else {"drop_path_rate": drop_path}
        super().__init__(**arguments, dynamic_img_size=True)
        self.mask_token = nn.Parameter(torch.zeros(1, self.embed_dim))
        self.cls_pos = nn.Parameter(torch.zeros(1, 1, self.embed_dim)) if exact else None
        nn.init.trunc_normal_(self.cls_token if self.cls_pos is None else self.cls_pos, std=0.02)  # as in DINOv2
        for block in self.blocks if exact else ():
            block.dropped = drop_path

    @property
    def first_tokens(self) -> list[Tensor]:
        """The CLS token, with its position if that is a weight of its own, and the registers: (1, n, D) each."""
        first = self.cls_token if self.cls_pos is None else self.cls_token + self.cls_pos
        return [first] if self.reg_token is None else [first, self.reg_token]

    @property
    def last_attention(self) -> nn.Module:
        """Attention of the last block; its input (M, 1 + registers + T, D) is after the block's norm.

        It has `qkv` (D → 3D) and `num_heads`.
        """
        return self.blocks[-1].attn

    def forward(self, images: Tensor, mask: Tensor | None = None) -> Tokens:
        patches = self.patch_embed(images)  # (M, h, w, D)
        height, width = patches.shape[1:3]
        patches = patches.flatten(1, 2)
        if mask is not None:
            patches = torch.where(mask[..., None], self.mask_token.to(patches.dtype), patches)
        patches = patches + interpolated(self.pos_embed, height, width, registers=self.num_reg_tokens > 0)
        first = [token.expand(images.shape[0], -1, -1) for token in self.first_tokens]
        tokens = self.norm(self.blocks(torch.cat((*first, patches), 1)))
        return Tokens(tokens[:, 0], tokens[:, self.num_prefix_tokens :])


def timm_arguments(config: CellConfig, channels: int) -> dict[str, Any]:
    """Return timm's arguments (`VisionTransformer`, `timm.create_model`) of the network without mask token."""
    width, depth, heads = SIZES[config.model.size]
    return {
        "img_size": config.augment.global_size,
        "patch_size": config.model.patch,
        "in_chans": channels,
        "num_classes": 0,
        "embed_dim": width,
        "depth": depth,
        "num_heads": heads,
        "init_values": config.model.layer_scale,
        "reg_tokens": config.model.registers,
        "no_embed_class": True,
    }


def interpolated(grid: Tensor, height: int, width: int, registers: bool) -> Tensor:
    """Interpolate position embeddings (1, n², D) to another grid, (1, height · width, D), bicubic as DINOv2 does.

    DINOv2's models with registers resample to the exact size with anti-aliasing. Models without registers have no
    anti-aliasing, and scale by (m + 0.1) / n instead of m / n. Two matrix products are used, because
    `train.deterministic` refuses the gradient of torch's bicubic on a GPU.
    """
    side = math.isqrt(grid.shape[1])
    if height == width == side:
        return grid
    rows, columns = (_matrix(side, length, registers, grid.device, grid.dtype) for length in (height, width))
    with torch.autocast(grid.device.type, enabled=False):
        down = (rows @ grid.reshape(side, -1)).view(height, side, -1)
        return (columns @ down).flatten(0, 1)[None]


@torch.compiler.assume_constant_result
def _matrix(side: int, length: int, exact: bool, device: torch.device, dtype: torch.dtype) -> Tensor:
    return _cached(side, length, exact, device, dtype)


@lru_cache(64)
def _cached(side: int, length: int, exact: bool, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return the matrix (length, side) of bicubic interpolation along one axis."""
    with torch.inference_mode(False):
        unit = torch.eye(side, dtype=torch.float64)[None, None]
        if exact:
            matrix = functional.interpolate(unit, size=(length, side), mode="bicubic", antialias=True)
        else:
            matrix = functional.interpolate(unit, scale_factor=((length + OFFSET) / side, 1.0), mode="bicubic")
        return matrix[0, 0].to(device=device, dtype=dtype)
