"""The selective scan by its definition, a loop that autograd differentiates: the oracle for all others."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def state_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of the state and of all sums: float64 for a float64 input, else float32."""
    return torch.float64 if x.dtype is torch.float64 else torch.float32


def step_sizes(delta: Tensor, delta_bias: Tensor | None, delta_softplus: bool, dtype: torch.dtype) -> Tensor:
    """Return Δ (P, L, E): `delta` + `delta_bias`, through softplus if asked."""
    delta = delta.to(dtype)
    if delta_bias is not None:
        delta = delta + delta_bias.to(dtype)
    return functional.softplus(delta) if delta_softplus else delta


def skip_and_gate(y: Tensor, x: Tensor, D: Tensor | None, z: Tensor | None) -> Tensor:
    """Return (y + D x) silu(z)."""
    if D is not None:
        y = y + D.to(y.dtype) * x.to(y.dtype)
    return y if z is None else y * functional.silu(z.to(y.dtype))


def selective_scan(
    x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, z: Tensor | None,
    delta_bias: Tensor | None, delta_softplus: bool,
) -> Tensor:  # fmt: skip
    """See `runner_ssmunet.scan.selective_scan`. Keeps every state for the backward pass: O(P·L·E·N)."""
    dtype = state_dtype(x)
    steps = step_sizes(delta, delta_bias, delta_softplus, dtype)
    decay = torch.exp(steps[..., None] * A.to(dtype))  # (P, L, E, N)
    pushed = (steps * x.to(dtype))[..., None] * B.to(dtype)[:, :, None]
    h = torch.zeros_like(pushed[:, 0])
    y = []
    for t in range(x.shape[1]):
        h = decay[:, t] * h + pushed[:, t]
        y.append((h * C[:, t, None].to(dtype)).sum(-1))
    return skip_and_gate(torch.stack(y, 1), x, D, z).to(x.dtype)
