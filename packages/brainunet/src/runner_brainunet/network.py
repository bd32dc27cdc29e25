"""The 2-D U-Net (Ronneberger et al. 2015) with normalised convolutions and transposed-convolution upsampling."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights


def norm_layer(kind: str, channels: int) -> nn.Module:
    """Return a layer of `kind` batch, instance or group (8 channels a group, one group if there are fewer)."""
    if kind == "batch":
        return nn.BatchNorm2d(channels)
    if kind == "instance":
        return nn.InstanceNorm2d(channels, affine=True)
    return nn.GroupNorm(max(1, channels // 8), channels)


class DoubleConv(nn.Sequential):
    """(3×3 convolution → norm → ReLU) twice. (B, in, H, W) → (B, out, H, W)."""

    def __init__(self, inputs: int, outputs: int, norm: str) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
            norm_layer(norm, outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            norm_layer(norm, outputs),
            nn.ReLU(inplace=True),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layers; in prediction, batch normalisation is multiplied into the convolutions' weights."""
        if self.training or torch.is_grad_enabled() or not isinstance(self[1], nn.BatchNorm2d):
            return super().forward(x)
        for conv, norm in ((self[0], self[1]), (self[3], self[4])):
            statistics = norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias
            weight, bias = fuse_conv_bn_weights(conv.weight, conv.bias, *statistics)
            x = nn.functional.conv2d(x, weight, bias, padding=1).relu_()
        return x


class UNet(nn.Module):
    """(B, channels, H, W) → logits (B, 1, H, W); H and W are multiples of 2^(levels-1).

    Features (32, 64, 128, 256, 512) have 7,762,465 parameters for one input channel.
    """

    def __init__(self, channels: int, features: Sequence[int], norm: str = "batch") -> None:
        super().__init__()
        self.down = nn.ModuleList(DoubleConv(a, b, norm) for a, b in pairwise((channels, *features)))
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in pairwise(features))
        self.merge = nn.ModuleList(DoubleConv(2 * a, a, norm) for a in features[:-1])
        self.head = nn.Conv2d(features[0], 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips: list[Tensor] = []
        for level, block in enumerate(self.down):
            x = block(x if level == 0 else nn.functional.max_pool2d(x, 2))
            skips.append(x)
        skips.pop()
        for level in range(len(skips) - 1, -1, -1):
            x = self.merge[level](torch.cat((skips[level], self.up[level](x)), dim=1))
        return self.head(x)
