"""The whole network: spectral stack, and the head that makes classes of its features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from runner_ssmunet.axis import gaps
from runner_ssmunet.filters import BandFilters, SincFilters, default_centres
from runner_ssmunet.spectral import SpectralStack
from runner_ssmunet.unet import UNet


class Head(nn.Module):
    """Features (B, H, W, F) → logits (B, K, H, W): a linear layer F → embed, then the U-Net.

    With frozen features this alone is trained.
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
        centres = default_centres(filters, axis[0], axis[-1], gaps(axis))
        self.stack = SpectralStack(kind(axis, centres, width), layers, states, dropout, chunk, scan)
        self.head = Head(filters, classes, embed, base)
        self.tissue_only = tissue_only
        self.frozen = False

    def forward(self, spectra: Tensor, tissue: Tensor) -> Tensor:
        return self.classify(self.features(spectra, tissue))

    def features(self, spectra: Tensor, tissue: Tensor) -> Tensor:
        """(B, H, W, F) float32; `spectra` z-scored, and 0 where there is no tissue."""
        if self.tissue_only:
            return self.stack.over(spectra, tissue)
        return self.stack(spectra.flatten(0, 2)).unflatten(0, spectra.shape[:3])

    def freeze(self) -> None:
        """From here on the stack does not learn and is always in evaluation mode: for `from_features`."""
        self.frozen = True
        self.stack.requires_grad_(False).eval()

    def train(self, mode: bool = True) -> SSMUNetwork:
        super().train(mode)
        if self.frozen:
            self.stack.eval()
        return self

    def from_features(self, features: Tensor, tissue: Tensor) -> Tensor:
        """Features (B, H, W, F) that the frozen stack made → logits. Where there is no tissue (padding, say) they
        become what the stack makes of the spectrum 0, as they are in `forward`."""
        blank = self.stack(features.new_zeros(1, len(self.settings["wavenumbers"])))
        return self.classify(torch.where(tissue[..., None], features, blank))

    def classify(self, features: Tensor) -> Tensor:
        """Features (B, H, W, F) → logits (B, K, H, W)."""
        return self.head(features)
