"""The whole network: spectral stack, and the head that turns its features into classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from runner_ssmunet.axis import gaps
from runner_ssmunet.filters import BandFilters, SincFilters, default_centres, seeing
from runner_ssmunet.spectral import SpectralStack

LEVELS = 5
MULTIPLE = 2 ** (LEVELS - 1)
"""Side of a pixel of the lowest level, in pixels of the image."""


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

    Widths are base, 2·base, … 16·base. Images whose sides are no multiples of 16 are padded with zeros below and to the
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


class Head(nn.Module):
    """Features (B, H, W, F) → logits (B, K, H, W): a linear layer F → embed, then the U-Net.

    With frozen features only the head trains.
    """

    def __init__(self, features: int, classes: int, embed: int = 24, base: int = 24) -> None:
        super().__init__()
        self.embed = nn.Linear(features, embed)
        self.unet = UNet(embed, base, classes)

    def forward(self, features: Tensor) -> Tensor:
        return self.unet(self.embed(features).permute(0, 3, 1, 2))  # channels last in memory, without a copy


class SSMUNetwork(nn.Module):
    """Spectra (B, H, W, L) and tissue (B, H, W) bool → logits (B, K, H, W).

    Args:
        wavenumbers: (L,) cm⁻¹, ascending.
        classes: K.
        filters, mode, width: number, kind (`filters.BandFilters` or `SincFilters`) and first width (cm⁻¹) of the
            filters, whose first centres are `filters.default_centres`.
        layers, states, dropout: of the Mamba layers.
        embed, base: channels that enter the U-Net, and of its first level.
        chunk: see `SpectralStack`.
        tissue_only: see `SpectralStack.over`; else every pixel passes the stack.
        scan: see `Mamba`.

    With 24 filters, embed 24, base 24 and 8 classes there are 4,388,576 parameters and the 48 edges of the filters.
    `settings` holds the arguments, as JSON.
    """

    def __init__(
        self,
        wavenumbers: Sequence[float],
        classes: int,
        *,
        filters: int = 24,
        mode: Literal["band", "legacy"] = "band",
        width: float = 80.0,
        layers: int = 2,
        states: int = 16,
        dropout: float = 0.1,
        embed: int = 24,
        base: int = 24,
        chunk: int | None = None,
        tissue_only: bool = True,
        scan: str = "auto",
    ) -> None:
        super().__init__()
        self.settings: Mapping[str, Any] = {
            "wavenumbers": [float(w) for w in wavenumbers], "classes": classes, "filters": filters, "mode": mode,
            "width": width, "layers": layers, "states": states, "dropout": dropout, "embed": embed, "base": base,
            "chunk": chunk, "tissue_only": tissue_only, "scan": scan,
        }  # fmt: skip
        axis: list[float] = self.settings["wavenumbers"]
        kind = BandFilters if mode == "band" else SincFilters
        centres = seeing(default_centres(filters, axis[0], axis[-1], gaps(axis)), axis, width)
        self.stack = SpectralStack(kind(axis, centres, width), layers, states, dropout, chunk, scan)
        self.head = Head(filters, classes, embed, base)
        self.tissue_only = tissue_only
        self.frozen = False

    def forward(self, spectra: Tensor, tissue: Tensor) -> Tensor:
        return self.classify(self.features(spectra, tissue))

    def features(self, spectra: Tensor, tissue: Tensor) -> Tensor:
        """Return features (B, H, W, F) float32. `spectra` are z-scored, and 0 off the tissue."""
        if self.tissue_only:
            return self.stack.over(spectra, tissue)
        return self.stack(spectra.flatten(0, 2)).unflatten(0, spectra.shape[:3])

    def freeze(self) -> None:
        """Stop the stack's learning and keep it in evaluation mode, for `from_features`."""
        self.frozen = True
        self.stack.requires_grad_(False).eval()

    def train(self, mode: bool = True) -> SSMUNetwork:
        super().train(mode)
        if self.frozen:
            self.stack.eval()
        return self

    def from_features(self, features: Tensor, tissue: Tensor) -> Tensor:
        """Turn features (B, H, W, F) from the frozen stack into logits.

        Features off the tissue (padding, for example) become those of the spectrum 0, as in `forward`.
        """
        blank = self.stack(features.new_zeros(1, len(self.settings["wavenumbers"])))
        return self.classify(torch.where(tissue[..., None], features, blank))

    def classify(self, features: Tensor) -> Tensor:
        """Turn features (B, H, W, F) into logits (B, K, H, W)."""
        return self.head(features)
