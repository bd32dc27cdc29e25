"""The causal depthwise convolution before the scan, with its activation, channels last."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from runner_ssmunet.scan.choice import EXPORTED, compiled_for, untraced
from runner_ssmunet.scan.reference import state_dtype

PLAIN = ("eager", "reference", EXPORTED)
"""Implementations of the scan that compile nothing."""


def causal_conv_silu(x: Tensor, weight: Tensor, bias: Tensor, *, how: str = "auto") -> Tensor:
    """Return silu(bias + Σ_k weight[:, k] · x[t - (K - 1 - k)]), with zeros before the first step.

    x is (P, L, E); weight (E, K), as `conv1d.weight[:, 0]` of a depthwise convolution; bias (E,). The result (P, L, E)
    has x's dtype; sums are in float32 or better. `how` is that of the scan: with one of `PLAIN`, nothing compiled is
    used here either.
    """
    if how not in PLAIN and untraced(compiled_for)(x):
        from runner_ssmunet.scan import cpu

        return untraced(cpu.causal_conv_silu)(x, weight, bias)
    length, taps = x.shape[1], weight.shape[1]
    padded = functional.pad(x, (0, 0, taps - 1, 0))
    y = bias.to(state_dtype(x))
    for k in range(taps):
        y = y + weight[:, k].to(y.dtype) * padded[:, k : k + length]
    return functional.silu(y).to(x.dtype)
