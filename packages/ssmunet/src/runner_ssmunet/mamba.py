"""The Mamba block (Gu & Dao 2023, figure 3), in the parameters of `mamba_ssm.Mamba`: state dicts load both ways."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from runner_ssmunet.scan import causal_conv_silu, selective_scan


class Mamba(nn.Module):
    """(P, L, d_model) → the same shape: every step sees itself and the steps before it.

    Names, shapes, initial values and the order of drawing them equal those of `mamba_ssm.Mamba`; this class runs on any
    device. `d_inner` = `expand` · `d_model` channels go through the scan with `d_state` states each; `dt_rank` "auto"
    is ⌈d_model / 16⌉. The initial step sizes Δ are log-uniform in [`dt_min`, `dt_max`], at least `dt_init_floor`.
    `scan` chooses how scan and convolution are computed, like `how` of `runner_ssmunet.scan`.
    """

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int = 16,
        d_conv: int = 4,
        expand: int = 2,
        dt_rank: int | Literal["auto"] = "auto",
        dt_min: float = 0.001,
        dt_max: float = 0.1,
        dt_init_floor: float = 1e-4,
        scan: str = "auto",
    ) -> None:
        super().__init__()
        self.scan = scan
        self.d_inner = expand * d_model
        self.d_state = d_state
        self.dt_rank = math.ceil(d_model / 16) if dt_rank == "auto" else dt_rank
        self.in_proj = nn.Linear(d_model, 2 * self.d_inner, bias=False)
        self.conv1d = nn.Conv1d(self.d_inner, self.d_inner, d_conv, groups=self.d_inner, padding=d_conv - 1)
        self.x_proj = nn.Linear(self.d_inner, self.dt_rank + 2 * d_state, bias=False)
        self.dt_proj = nn.Linear(self.dt_rank, self.d_inner)
        self._draw_step_sizes(dt_min, dt_max, dt_init_floor)
        rates = torch.arange(1, d_state + 1, dtype=torch.float32).repeat(self.d_inner, 1)
        self.A_log = nn.Parameter(torch.log(rates))  # S4D-real: A_n = -n
        self.D = nn.Parameter(torch.ones(self.d_inner))
        self.out_proj = nn.Linear(self.d_inner, d_model, bias=False)
        for parameter in (self.A_log, self.D):
            parameter._no_weight_decay = True  # decay would pull A to -1 and the skip to nothing

    @torch.no_grad()
    def _draw_step_sizes(self, smallest: float, largest: float, floor: float) -> None:
        bound = self.dt_rank**-0.5
        nn.init.uniform_(self.dt_proj.weight, -bound, bound)
        low, high = math.log(smallest), math.log(largest)
        steps = torch.exp(torch.rand(self.d_inner) * (high - low) + low).clamp(min=floor)
        self.dt_proj.bias.copy_(steps + torch.log(-torch.expm1(-steps)))  # softplus of it is `steps`

    def forward(self, z: Tensor) -> Tensor:
        x, gate = self.in_proj(z).chunk(2, -1)
        x = causal_conv_silu(x, self.conv1d.weight[:, 0], self.conv1d.bias, how=self.scan)
        delta, B, C = self.x_proj(x).split([self.dt_rank, self.d_state, self.d_state], -1)
        if self.dt_rank == 1:  # in 16 bits a CPU computes the gradient with a column of a wider matrix wrongly
            delta = delta.contiguous()  # (oneDNN#4209)
        y = selective_scan(
            x, functional.linear(delta, self.dt_proj.weight), -torch.exp(self.A_log), B, C, self.D, gate,
            self.dt_proj.bias, delta_softplus=True, how=self.scan,
        )  # fmt: skip
        return self.out_proj(y)
