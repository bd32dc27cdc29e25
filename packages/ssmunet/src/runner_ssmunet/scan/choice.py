"""Choose the implementation for a tensor if the settings do not."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from functools import cache
from typing import TypeVar

import torch
from runner_core import BadInput
from torch import Tensor

T = TypeVar("T")

EXPORTED = "looped"
"""The way of exported networks, which only exporters use: in eager PyTorch it is slow, and it has no gradients."""


def untraced(function: Callable[..., T]) -> Callable[..., T]:
    """Return `function` for torch.compile to call without tracing it.

    Tracing would unroll the loop over the steps, or look into Numba.
    """
    return torch.compiler.disable(function) if torch.compiler.is_compiling() else function


def automatic(x: Tensor) -> str:
    """Return cpu or eager for a tensor on the CPU, mamba_ssm or triton for one on CUDA.

    float64 and other devices use eager.
    """
    if x.is_cuda and x.dtype is not torch.float64:
        return _on_cuda()
    return "cpu" if compiled_for(x) else "eager"


def compiled_for(x: Tensor) -> bool:
    """Return whether the CPU kernels take `x`. If they should but cannot be compiled, warn once, with the reason."""
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


def refuse_unavailable(how: str, device: str, deterministic: bool) -> None:
    """Raise BadInput if `model.scan` asks for an implementation that cannot run here, with the remedy.

    `device` is the setting train.device.
    """
    on_gpu = device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
    why: str | None = None
    if how in ("triton", "mamba_ssm") and not on_gpu:
        why = "it runs on a GPU, and this run computes on the CPU: set model.scan to auto or cpu"
    elif how == "triton" and not importlib.util.find_spec("triton"):
        why = (
            "the package triton is not installed: install PyTorch for CUDA, which brings it, or set model.scan to auto"
        )
    elif how == "mamba_ssm" and deterministic:
        why = "its gradients are not the same each time, which train.deterministic asks for: set model.scan to triton"
    elif how == "mamba_ssm" and not _is_fused():
        from runner_ssmunet.scan import mamba_ssm

        adds = "`uv pip install -e 'packages/ssmunet[cuda]'` in runner's folder adds it"
        why = f"{mamba_ssm.unavailable()}; {adds}, or set model.scan to triton or auto"
    elif how == "cpu" and on_gpu:
        why = "it runs on the CPU, and this run computes on a GPU: set model.scan to auto, or train.device to cpu"
    elif how == "cpu" and not _compiles():
        why = "its kernels cannot be compiled here (the warning says why): set model.scan to eager"
    if why:
        raise BadInput(f"model.scan {how}: {why}")


def _on_cuda() -> str:
    """Return the implementation for CUDA.

    Under `torch.use_deterministic_algorithms` it is not the fused kernel, which adds up gradients in no fixed order.
    """
    if not torch.are_deterministic_algorithms_enabled() and _is_fused():
        return "mamba_ssm"
    return "triton" if importlib.util.find_spec("triton") else "eager"


@cache
def _is_fused() -> bool:
    from runner_ssmunet.scan import mamba_ssm

    return mamba_ssm.unavailable() is None
