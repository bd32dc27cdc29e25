"""The network's weights: their moving average, whether they are finite, their checksum, and how two networks differ."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from runner_core.contract import Array, Step, Tensors
from runner_core.engines.torch.gradient_norms import tensors_in
from runner_core.engines.torch.shards import divided, own
from runner_core.engines.weights import MovingAverage


class Average(MovingAverage):
    """Moving average of the parameters and floating-point buffers; other buffers (counters) are the network's own."""

    def __init__(self, network: nn.Module, decay: float) -> None:
        self.decay = decay
        self._live = averaged(network)
        self._tensors = {name: t.detach().clone() for name, t in self._live.items()}
        self._pair = [own(t) for t in self._tensors.values()], [own(t.detach()) for t in self._live.values()]

    @torch.no_grad()
    def update(self, step: int, skipped: torch.Tensor | None = None) -> None:
        """Update after optimizer step `step` (from 0), unless `skipped` (0-d, 0 or 1) is 1."""
        weight = 1 - min(self.decay, (2 + step) / (11 + step))
        average, live = self._pair
        if skipped is None:
            torch._foreach_lerp_(average, live, weight)
            return
        for one, other in zip(average, live, strict=True):
            one.copy_(torch.where(skipped.bool(), one, one.lerp(other, weight)))

    def _swap(self) -> None:
        average, live = self._pair
        kept = [t.clone() for t in live]
        torch._foreach_copy_(live, average)
        torch._foreach_copy_(average, kept)

    def state(self) -> Tensors:
        return self._tensors

    def load(self, tensors: Tensors) -> None:
        for name, tensor in divided(tensors, self._tensors).items():
            self._tensors[name].copy_(tensor)


def averaged(network: nn.Module) -> Tensors:
    """Return parameters and floating-point buffers by name, each once."""
    named = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    return {name: tensor for name, tensor in named.items() if tensor.is_floating_point()}


def put(network: nn.Module, tensors: Tensors) -> None:
    """Copy an average into a network for good."""
    with torch.no_grad():
        for name, tensor in averaged(network).items():
            tensor.copy_(tensors[name])


class Weights:
    """Tensors that were finite at the start and should stay so (a mask of −inf may be a buffer by design)."""

    def __init__(self, tensors: Tensors) -> None:
        parts = {name: own(t.detach()) for name, t in tensors.items()}
        self._tensors = {name: t for name, t in parts.items() if t.numel() and bool(t.isfinite().all())}

    def first_nonfinite(self) -> str | None:
        """Return the name of the first tensor with NaN or an infinity, or None; waits for the device once."""
        if not self._tensors:
            return None
        largest = torch._foreach_norm(list(self._tensors.values()), float("inf"))
        finite = torch.stack([norm.isfinite() for norm in largest]).tolist()
        return None if all(finite) else list(self._tensors)[finite.index(False)]


_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@torch.no_grad()
def checksum(parameters: Sequence[nn.Parameter]) -> int | None:
    """Return a number that changes with any bit of this process's parameters, or None if there are none.

    Waits for the device once.
    """
    if not parameters:
        return None
    sums = [own(p.detach()).view(_BITS[p.element_size()]).sum(dtype=torch.int64) for p in parameters]
    return zlib.crc32(repr(torch.stack(sums).tolist()).encode())


def other_weights(one: nn.Module, other: nn.Module) -> list[str]:
    """Return the names of parameters and buffers that are not bitwise equal in both."""
    first, second = one.state_dict(), other.state_dict()
    return [name for name in {**first, **second} if not _equal(first.get(name), second.get(name))]


def _equal(one: Any, other: Any) -> bool:
    if not (isinstance(one, Tensor) and isinstance(other, Tensor)):
        return type(one) is type(other)  # a module's extra state is not compared
    same = one.shape == other.shape and one.dtype == other.dtype
    return same and bool(torch.equal(one, other.to(one.device)))


def compared(step: Step) -> list[Array]:
    """Return the prediction's tensors, or else the loss, as float64 on the host: what `distance` compares."""
    tensors = [*tensors_in(step.prediction)] or [step.loss]
    return [tensor.detach().cpu().double().numpy() for tensor in tensors]
