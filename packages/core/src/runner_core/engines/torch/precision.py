"""Apply precision policies to PyTorch, and observe the precision in which layers compute."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from runner_core.base.errors import BadInput, did_you_mean
from runner_core.contract import Precision

OBSERVED = (
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
    nn.Bilinear,
    nn.MultiheadAttention,
    nn.RNNBase,
)


def set_backends(precision: Precision) -> None:
    """Allow or forbid tf32; it is forbidden in float32, because cuDNN would otherwise use it."""
    tf32 = precision.compute == "tf32"
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32


def autocast(precision: Precision, device: torch.device) -> torch.autocast | None:
    """Return the reusable context in which the network computes, or None if none is needed."""
    if not precision.mixed:
        return None
    return torch.autocast(device.type, getattr(torch, precision.compute))


def grad_scaler(precision: Precision, device: torch.device) -> torch.amp.GradScaler | None:
    return torch.amp.GradScaler(device.type) if precision.loss_scaling else None


def skipped(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> torch.Tensor:
    """Return 1 (0-d, on the device) if a gradient overflowed, so that the scaler skipped the optimizer's step.

    Call it between the scaler's `step` and its `update`.
    """
    found: dict[torch.device, torch.Tensor] = scaler._found_inf_per_device(optimizer)
    return next(iter(found.values()))


def keep_float32(network: nn.Module, precision: Precision, device: torch.device) -> set[nn.Module]:
    """Make the submodules that the policy names (and all below them) compute in float32, inputs included.

    Returns all of them. Raises BadInput if a name matches no submodule.
    """
    kept: set[nn.Module] = set()
    if not precision.mixed:
        return kept
    names = [name for name, _ in network.named_modules() if name]
    for prefix in precision.keep_float32:
        inside = [name for name in names if name == prefix or name.startswith(prefix)]
        if not inside:
            raise BadInput(
                f"precision: the network has no submodule {prefix!r} to keep in float32{did_you_mean(prefix, names)}"
            )
        for name in inside:
            if not any(name.startswith(f"{outer}.") for outer in inside):
                module = network.get_submodule(name)
                module.forward = _in_float32(module.forward, device.type)
                kept.update(module.modules())
    return kept


def _in_float32(forward: Callable[..., Any], device: str) -> Callable[..., Any]:
    @functools.wraps(forward)
    def run(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(device, enabled=False):
            args, kwargs = tree_map_only(torch.Tensor, _float32, (args, kwargs))
            return forward(*args, **kwargs)

    return run


def _float32(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.is_floating_point() else tensor


@contextmanager
def observed(network: nn.Module, seen: Counter[str], kept: Set[nn.Module] = frozenset()) -> Iterator[None]:
    """Count, in `seen`, the output dtypes ("torch.bfloat16") of layers with matrix products.

    Layers in `kept` (those of `keep_float32`) do not count. A layer that runs several times counts once.
    """
    dtypes: dict[nn.Module, str] = {}

    def note(module: nn.Module, _: Any, output: Any) -> None:
        first = output[0] if isinstance(output, tuple) else output
        if isinstance(first, torch.Tensor):
            dtypes[module] = str(first.dtype)

    handles = [m.register_forward_hook(note) for m in network.modules() if isinstance(m, OBSERVED) and m not in kept]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        seen.update(dtypes.values())
