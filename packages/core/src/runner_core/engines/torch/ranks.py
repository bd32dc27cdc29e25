"""Functions for a project's `step` about the processes that train together, one per device ("ranks").

They also work with one process. A loss that looks at the whole batch (contrastive losses, KoLeo, Sinkhorn) needs the
batch of all devices: gather the features, and compute as one process would.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar

import torch
from torch import distributed

_apart = ContextVar("apart", default=False)


def count() -> int:
    """Return the number of processes that train together.

    It is 1 for a single process, and in validation, where each process computes with its own batches.
    """
    if _apart.get() or not (distributed.is_available() and distributed.is_initialized()):
        return 1
    return distributed.get_world_size()


def number() -> int:
    """Return this process's number among them, from 0."""
    return distributed.get_rank() if count() > 1 else 0


def gathered(tensor: torch.Tensor) -> torch.Tensor:
    """Return (B, …) of every rank, in rank order, as (count·B, …), the same on all; B is the same on all.

    Gradients flow back to every rank's part. The ranks' gradients of the weights are averaged afterwards. So a loss of
    the gathered tensor has the gradient of one process with the whole batch if its mean over the ranks is that
    process's loss: each rank may compute the same whole, or its own share of a mean.
    """
    return tensor if count() == 1 else _Gathered.apply(tensor)


@torch.no_grad()
def summed(tensor: torch.Tensor) -> torch.Tensor:
    """Return the sum over the ranks, a new tensor without gradient; with one process, `tensor` detached."""
    if count() == 1:
        return tensor.detach()
    total = tensor.detach().clone(memory_format=torch.contiguous_format)
    distributed.all_reduce(total)
    return total


@contextmanager
def apart() -> Iterator[None]:
    """Make every process compute for itself inside: `count` is 1, and nothing is gathered."""
    before = _apart.set(True)
    try:
        yield
    finally:
        _apart.reset(before)


class _Gathered(torch.autograd.Function):
    """All-gather; its transpose sums the gradients of all ranks' losses for each part."""

    scatters: ClassVar[bool] = True
    """`exchange.features`: each rank receives the sum of its own part, and not of all parts."""
    used: ClassVar[bool] = False

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        _Gathered.used = _Gathered.used or ctx.needs_input_grad[0]
        whole = tensor.new_empty((count() * len(tensor), *tensor.shape[1:]))
        distributed.all_gather_into_tensor(whole, tensor.contiguous())
        return whole

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        ranks = distributed.get_world_size()
        if _Gathered.scatters:
            own = gradient.new_empty((len(gradient) // ranks, *gradient.shape[1:]))
            distributed.reduce_scatter_tensor(own, gradient.contiguous())
            return own
        total = gradient.clone(memory_format=torch.contiguous_format)
        distributed.all_reduce(total)
        return total.chunk(ranks)[distributed.get_rank()]


def gather_by(features: str) -> None:
    """Sum the gradients of gathered tensors as `exchange.features` says, from now on."""
    _Gathered.scatters, _Gathered.used = features == "scatter", False


def gathered_by() -> str | None:
    """Return how gradients of gathered tensors are summed, or None if no tensor was gathered since `gather_by`."""
    return ("scatter" if _Gathered.scatters else "all") if _Gathered.used else None
