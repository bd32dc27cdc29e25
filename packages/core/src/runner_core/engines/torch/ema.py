"""Exponential moving average of the weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from runner_core.contract import Tensors
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
