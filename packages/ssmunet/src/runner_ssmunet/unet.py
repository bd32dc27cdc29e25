"""The 2-D U-Net (Ronneberger et al. 2015) with batch normalisation, for images of any size."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

LEVELS = 5
MULTIPLE = 2 ** (LEVELS - 1)
"""The sides of the lowest level's pixels, in pixels of the image."""


class DoubleConv(nn.Sequential):
    """(3×3 convolution → BatchNorm → ReLU) twice. (B, in, H, W) → (B, out, H, W)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, 3, padding=1),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, padding=1),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
        )


class UNet(nn.Module):
    """(B, in_channels, H, W) → logits (B, classes, H, W), any H and W.

    Widths base, 2·base, … 16·base. Images whose sides are no multiples of 16 are padded with zeros below and to the
    right. 24 channels, base 24 and 8 classes have 4,374,992 parameters.
    """

    def __init__(self, in_channels: int, base: int, classes: int) -> None:
        super().__init__()
        widths = [base * 2**level for level in range(LEVELS)]
        self.down = nn.ModuleList(DoubleConv(a, b) for a, b in pairwise((in_channels, *widths)))
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in pairwise(widths))
        self.merge = nn.ModuleList(DoubleConv(2 * a, a) for a in widths[:-1])
        self.head = nn.Conv2d(base, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        x = functional.pad(x, (0, -width % MULTIPLE, 0, -height % MULTIPLE))
        skips: list[Tensor] = []
        for level, block in enumerate(self.down):
            x = block(x if level == 0 else functional.max_pool2d(x, 2))
            skips.append(x)
        skips.pop()
        for level in range(len(skips) - 1, -1, -1):
            x = self.merge[level](torch.cat((skips[level], self.up[level](x)), dim=1))
        return self.head(x)[..., :height, :width]
