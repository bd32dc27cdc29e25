"""The network's weights: their moving average, their checksum, and how two networks differ."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from runner_core.contract import Step, Tensors
from runner_core.engines.torch.gradient_norms import tensors_in
from runner_core.engines.torch.parallel import divided, own


class Average:
    """Moving average of the parameters and floating-point buffers, updated after each step.

    average ← d·average + (1 − d)·weights, with d = min(decay, (1 + t) / (10 + t)) after t steps, so that a short run's
    average forgets the initial weights (tf.train.ExponentialMovingAverage). Other buffers (counters) are the network's
    own.
    """

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

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Put the average into the network inside this context, and its own weights back afterwards."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

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


def distance(one: Step, other: Step) -> float:
    """Return the largest difference between two predictions (or losses), as a share of the first one's range.

    It is infinite if their shapes differ.
    """
    first, second = ([*tensors_in(step.prediction)] or [step.loss] for step in (one, other))
    if [t.shape for t in first] != [t.shape for t in second]:
        return math.inf
    return max((_difference(a, b) for a, b in zip(first, second, strict=True)), default=0.0)


def _difference(one: Tensor, other: Tensor) -> float:
    if not one.numel() or torch.equal(one, other):
        return 0.0
    one, other = one.double(), other.double()
    span = float(one.max() - one.min()) or float(one.abs().max()) or 1.0
    return float((one - other).abs().max()) / span
