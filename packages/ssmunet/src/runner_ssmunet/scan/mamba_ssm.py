"""The selective scan of the package mamba-ssm (Gu & Dao 2023, its fused CUDA kernel): `runner-ssmunet[cuda]`."""

from __future__ import annotations

from importlib import import_module

import torch
from torch import Tensor

from runner_ssmunet.scan import eager


def unavailable() -> str | None:
    """Return why the package cannot be used, or None. It may be missing, or installed without its kernel."""
    try:
        import_module("selective_scan_cuda")
        import_module("mamba_ssm.ops.selective_scan_interface")
    except (ImportError, OSError) as error:  # OSError: a kernel built for another CUDA or torch
        return f"{type(error).__name__}: {error}"
    return None


def selective_scan(
    x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, z: Tensor | None,
    delta_bias: Tensor | None, delta_softplus: bool,
) -> Tensor:  # fmt: skip
    """Run `runner_ssmunet.scan.selective_scan` on CUDA tensors. The kernel wants the sequence last, and one dtype."""
    if not x.numel():  # its launch fails on an empty batch
        return eager.selective_scan(x, delta, A, B, C, D, z, delta_bias, delta_softplus)
    from mamba_ssm.ops.selective_scan_interface import selective_scan_fn

    def last(of: Tensor) -> Tensor:
        return of.to(x.dtype).transpose(1, 2)

    def full(of: Tensor | None) -> Tensor | None:
        return None if of is None else of.to(torch.float32)

    return selective_scan_fn(
        last(x), last(delta), full(A), last(B), last(C), full(D), None if z is None else last(z),
        full(delta_bias), delta_softplus,
    ).transpose(1, 2)  # fmt: skip
