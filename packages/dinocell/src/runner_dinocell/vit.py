"""The vision transformer (Dosovitskiy 2021) of DINOv2 (Oquab 2023) on timm's: any channels, crops of any size, masks.

timm's names of weights and timm's blocks, so that timm loads what was trained. Two things are DINOv2's own: the mask
token, and how position embeddings are interpolated. Its CLS token has a position embedding too; here, as timm has it
for models with registers, the two are one weight, their sum.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from timm.models.vision_transformer import VisionTransformer
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
    """What a backbone makes of M images, after its last norm."""

    image: Tensor
    """(M, D): the CLS token."""
    patches: Tensor
    """(M, T, D), row by row."""


class CellTransformer(VisionTransformer):
    """Images (M, C, H, W), sides multiples of the patch, and mask (M, T) bool, true where hidden → `Tokens`."""

    def __init__(self, drop_path: float, **arguments: Any) -> None:
        super().__init__(**arguments, drop_path_rate=drop_path, dynamic_img_size=True)
        self.mask_token = nn.Parameter(torch.zeros(1, self.embed_dim))
        nn.init.trunc_normal_(self.cls_token, std=0.02)  # the sum begins as its position embedding does in DINOv2

    @property
    def last_attention(self) -> nn.Module:
        """Has `qkv` (D → 3D) and `num_heads`; its input (M, 1 + registers + T, D) is after the block's norm."""
        return self.blocks[-1].attn

    def forward(self, images: Tensor, mask: Tensor | None = None) -> Tokens:
        patches = self.patch_embed(images)  # (M, h, w, D)
        height, width = patches.shape[1:3]
        patches = patches.flatten(1, 2)
        if mask is not None:
            patches = torch.where(mask[..., None], self.mask_token.to(patches.dtype), patches)
        patches = patches + interpolated(self.pos_embed, height, width, registers=self.num_reg_tokens > 0)
        first = [token.expand(len(images), -1, -1) for token in (self.cls_token, self.reg_token) if token is not None]
        tokens = self.norm(self.blocks(torch.cat((*first, patches), 1)))
        return Tokens(tokens[:, 0], tokens[:, self.num_prefix_tokens :])


def timm_arguments(config: CellConfig, channels: int) -> dict[str, Any]:
    """What builds the network without its mask token: of timm's `VisionTransformer`, and of `timm.create_model`."""
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


def backbone(config: CellConfig, channels: int) -> nn.Module:
    """The network that `config.model` describes, for images of `channels` channels: `CellTransformer`, or the dinov2
    package's."""
    if config.model.source == "dinov2":
        from runner_dinocell.official import OfficialTransformer

        return OfficialTransformer(config, channels)
    return CellTransformer(config.model.drop_path, **timm_arguments(config, channels))


def interpolated(grid: Tensor, height: int, width: int, registers: bool) -> Tensor:
    """Position embeddings (1, n², D) for another grid: (1, height · width, D), bicubic, as DINOv2 does it.

    Its models with registers resample to the exact size with anti-aliasing. Those without have no anti-aliasing, and
    scale by (m + 0.1) / n instead of m / n. It is two matrix products: the gradient of torch's bicubic is refused by
    `train.deterministic` on a GPU.
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
    """(length, side): bicubic interpolation along one axis."""
    with torch.inference_mode(False):
        unit = torch.eye(side, dtype=torch.float64)[None, None]
        if exact:
            matrix = functional.interpolate(unit, size=(length, side), mode="bicubic", antialias=True)
        else:
            matrix = functional.interpolate(unit, scale_factor=((length + OFFSET) / side, 1.0), mode="bicubic")
        return matrix[0, 0].to(device=device, dtype=dtype)
