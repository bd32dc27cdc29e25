"""The selective scan of Mamba (Gu & Dao 2023, eq. 2–3 with input-dependent Δ, B and C), channels last, on CPU and GPU.

`selective_scan` is one function with several implementations, one per module of this package. All equal `reference`
within rounding, forward and backward.
"""

from __future__ import annotations

from importlib import import_module

import torch
from torch import Tensor

from runner_ssmunet.scan.choice import EXPORTED, automatic, untraced
from runner_ssmunet.scan.conv import causal_conv_silu

__all__ = ["EXPORTED", "WAYS", "causal_conv_silu", "selective_scan"]

WAYS = ("reference", "eager", "cpu", "triton", "mamba_ssm")


def selective_scan(
    x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None, z: Tensor | None = None,
    delta_bias: Tensor | None = None, delta_softplus: bool = False, *, how: str = "auto",
) -> Tensor:  # fmt: skip
    """y_t = (C_t·h_t + D x_t) silu(z_t), where h_t = exp(Δ_t A) h_{t-1} + Δ_t B_t x_t, for every pixel and channel.

    Args:
        x: (P, L, E): P sequences (pixels), L steps, E channels, any strides. P = 0 is allowed, L = 0 is not.
        delta: (P, L, E), before `delta_bias` and softplus.
        A: (E, N), real; negative for a state that decays.
        B: (P, L, N), what enters the states.
        C: (P, L, N), what is read of them.
        D: (E,), of the input straight to the output.
        z: (P, L, E), the gate.
        delta_bias: (E,), added to `delta`.
        delta_softplus: Δ = softplus(delta + delta_bias).
        how: one of `WAYS`, or "auto": on CUDA mamba_ssm where it and its kernel are installed, else triton (always
            where PyTorch's algorithms are to be deterministic); on the CPU the compiled kernel; eager for float64, and
            where nothing compiles, which a warning says once.

    Returns:
        y (P, L, E) in x's dtype. The state is float32 whatever the inputs are (float64 if x is), also under autocast.

    Raises:
        ValueError: shapes that do not belong together, an unknown `how`, float64 for one that computes in float32.

    The semantics are those of `mamba_ssm.selective_scan_fn` with real A and variable B and C, axes 1 and 2 exchanged.
    Memory for the backward pass is O(P·L·E), never O(P·L·E·N), except in "reference".
    """
    if how == EXPORTED:
        from runner_ssmunet.scan import looped

        return looped.selective_scan(x, delta, A, B, C, D, z, delta_bias, delta_softplus)
    _check(x, delta, A, B, C, D, z, delta_bias)
    how = untraced(automatic)(x) if how == "auto" else how
    if how not in WAYS:
        raise ValueError(f"how={how!r}: one of auto, {', '.join(WAYS)}")
    if x.dtype is torch.float64 and how not in ("reference", "eager"):
        raise ValueError(f"x is float64 and {how} computes in float32: eager and reference take it")
    run = untraced(import_module(f"{__name__}.{how}").selective_scan)
    return run(x, delta, A, B, C, D, z, delta_bias, delta_softplus)


def _check(
    x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, z: Tensor | None,
    delta_bias: Tensor | None,
) -> None:  # fmt: skip
    if x.ndim != 3 or A.ndim != 2 or not x.shape[1]:
        raise ValueError(f"x is (P, L, E) with L ≥ 1 and A (E, N), not {tuple(x.shape)} and {tuple(A.shape)}")
    (pixels, length, channels), states = x.shape, A.shape[1]
    each = (pixels, length, channels)
    of_step = (pixels, length, states)
    wanted = {
        "delta": (delta, each), "A": (A, (channels, states)), "B": (B, of_step), "C": (C, of_step),
        "D": (D, (channels,)), "z": (z, each), "delta_bias": (delta_bias, (channels,)),
    }  # fmt: skip
    for name, (tensor, shape) in wanted.items():
        if tensor is not None and tuple(tensor.shape) != shape:
            raise ValueError(
                f"{name} is {tuple(tensor.shape)}; beside x {tuple(x.shape)} and A {tuple(A.shape)}: {shape}"
            )
        if tensor is not None and tensor.is_complex():
            raise ValueError(f"{name} is complex; the states are real")
