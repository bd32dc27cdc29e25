"""The projection heads of DINO and iBOT (Caron 2021, 10.1109/ICCV48922.2021.00951; Zhou 2022; Oquab 2023)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class DINOHead(nn.Module):
    """(M, `width`) → logits (M, `prototypes`), cosines between -1 and 1.

    Three linear layers with GELU between them narrow a token to `bottleneck` numbers; their direction is compared with
    the prototypes' directions (weight normalisation with a gain that stays 1, so that logits stay bounded). With
    `exact`, each prototype's gain is learned, as in DINOv2's code, and prototypes begin as its linear layers do.
    """

    def __init__(self, width: int, hidden: int, bottleneck: int, prototypes: int, exact: bool = False) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, bottleneck)
        )
        for layer in self.mlp[::2]:
            nn.init.trunc_normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)
        self.prototypes = nn.Parameter(torch.empty(prototypes, bottleneck))
        nn.init.normal_(self.prototypes, std=bottleneck**-0.5)  # all directions equally likely, length about 1
        self.gain = nn.Parameter(torch.ones(prototypes, 1)) if exact else None
        if exact:
            nn.init.uniform_(self.prototypes, -(bottleneck**-0.5), bottleneck**-0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        # in the weights' own float32: in float16 the squares of small numbers vanish
        directions = functional.normalize(self.mlp(tokens).to(self.prototypes.dtype), dim=-1)
        prototypes = functional.normalize(self.prototypes, dim=-1)
        return functional.linear(directions, prototypes if self.gain is None else self.gain * prototypes)
