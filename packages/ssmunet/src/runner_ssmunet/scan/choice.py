"""Which implementation takes a tensor when nobody says."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from functools import cache
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


def untraced(function: Callable[..., T]) -> Callable[..., T]:
    """`function`, which torch.compile calls as it is: it would unroll the loop over the steps, or look into Numba."""
    return torch.compiler.disable(function) if torch.compiler.is_compiling() else function


def keeps(*inputs: Tensor | None) -> bool:
    """Whether a backward pass may follow. To ask before `apply`: inside it, gradients are off and the context's
    `needs_input_grad` says what it would without `torch.no_grad`."""
    return torch.is_grad_enabled() and any(each is not None and each.requires_grad for each in inputs)


def automatic(x: Tensor) -> str:
    """ "cpu" or "eager" on the CPU, "mamba_ssm" or "triton" on CUDA; float64 and other devices go the eager way."""
    if x.is_cuda and x.dtype is not torch.float64:
        return _on_cuda()
    return "cpu" if compiled_for(x) else "eager"


def compiled_for(x: Tensor) -> bool:
    """Whether the CPU kernels take `x`; where they should but cannot be compiled, a warning says why, once."""
    return x.device.type == "cpu" and x.dtype is not torch.float64 and _compiles()


@cache
def _compiles() -> bool:
    try:
        from runner_ssmunet.scan import cpu
    except ImportError as error:
        reason: str | None = str(error)
    else:
        reason = cpu.unavailable()
    if reason is not None:
        warnings.warn(
            f"the selective scan runs in plain PyTorch, many times slower than its compiled kernel: {reason}",
            RuntimeWarning,
            stacklevel=2,
        )
    return reason is None


def _on_cuda() -> str:
    """Under `torch.use_deterministic_algorithms` not the fused kernel: it adds up gradients in no fixed order."""
    if not torch.are_deterministic_algorithms_enabled() and _is_fused():
        return "mamba_ssm"
    return "triton" if importlib.util.find_spec("triton") else "eager"


@cache
def _is_fused() -> bool:
    from runner_ssmunet.scan import mamba_ssm

    return mamba_ssm.unavailable() is None
