"""Handle a lack of device memory: smaller parts of a batch if they learn the same, else a helpful message."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from runner_core.base.errors import BadInput
from runner_core.config import TrainConfig
from runner_core.contract import Progress, Tensors
from runner_core.contract.project import Project
from runner_core.engines.memory import micro_batch, network_too_large, no_room, smaller, too_large, wrong_first_axis
from runner_core.engines.torch import ranks
from runner_core.engines.torch.state import read_generators, write_generators

CAN_RUN_OUT = {"cuda"}
"""Kinds of devices on which PyTorch raises OutOfMemoryError; elsewhere nothing is kept for a retry."""

Backward = Callable[[Tensors, Progress, float], dict[str, Any]]
"""Adds `share` times the gradients of the mean loss over a batch; returns loss and terms, times `share`."""


class Never(Exception):
    """Stands for the errors to retry if nothing is retried.

    With several processes, the others are in the middle of the same step.
    """


class Rewind:
    """A copy of what a step changes besides gradients: buffers (BatchNorm's statistics) and default generators."""

    def __init__(self, network: nn.Module, device: torch.device) -> None:
        self._device = device
        self._buffers = list(network.buffers())
        self._kept: list[torch.Tensor] = []
        self._generators: dict[str, Any] = {}

    @torch.no_grad()
    def mark(self) -> None:
        self._kept = [buffer.clone() for buffer in self._buffers]
        self._generators = read_generators(self._device)

    @torch.no_grad()
    def back(self) -> None:
        for buffer, kept in zip(self._buffers, self._kept, strict=True):
            buffer.copy_(kept)
        write_generators(self._generators, self._device)


class MicroBatches:
    """Computes gradients of a batch in parts of `size` samples, and in smaller parts once memory has run out.

    `forget` drops the gradients so far. `say` gets a message when the size shrinks.
    """

    def __init__(
        self,
        project: Project,
        config: TrainConfig,
        network: nn.Module,
        device: torch.device,
        backward: Backward,
        forget: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        """Set the size; raise BadInput for `train.accumulate` in a project whose batches may not be split."""
        self.size = micro_batch(project, config)
        self._batch_size, self._alone = config.batch_size, ranks.count() == 1
        again = project.splittable and self._alone and device.type in CAN_RUN_OUT
        self._rewind = Rewind(network, device) if again else None
        self._device, self._backward, self._forget, self._say = device, backward, forget, say

    def gradients(self, tensors: Tensors, count: int, progress: Progress) -> dict[str, Any]:
        """Add the gradients of the mean loss over `count` samples; return loss and terms."""
        while True:
            if self._rewind is not None:
                self._rewind.mark()
            try:
                if count <= self.size:
                    return self._backward(tensors, progress, 1.0)
                return self._in_parts(tensors, count, progress)
            except torch.OutOfMemoryError:
                pass  # retried outside this block: the exception keeps the failed step's memory alive
            self._shrink(tensors, count, progress)

    def _in_parts(self, tensors: Tensors, count: int, progress: Progress) -> dict[str, Any]:
        """Compute micro-batches, each weighted by its number of samples (the last may have fewer)."""
        total: dict[str, Any] = {}
        for begin in range(0, count, self.size):
            end = min(count, begin + self.size)
            values = self._backward(part(tensors, count, begin, end), progress, (end - begin) / count)
            total = {name: total.get(name, 0.0) + value for name, value in values.items()}
        return total

    def _shrink(self, tensors: Tensors, count: int, progress: Progress) -> None:
        """Halve the micro-batch and undo the failed step; raise BadInput if that is not possible."""
        self._free()
        if not self._alone:
            raise no_room("the network", self._batch_size)
        tried = min(self.size, count)
        if self._rewind is None or tried == 1:
            raise too_large(count, self._largest(tensors, count, tried // 2, progress))
        self._rewind.back()
        self.size = (tried + 1) // 2
        self._say(smaller(tried, self.size, progress.step + 1))

    def _largest(self, tensors: Tensors, count: int, size: int, progress: Progress) -> int | None:
        """Return the largest of size, size / 2, … samples that fit in a step; 0 for none, None for unknown."""
        while size:
            try:
                self._backward(part(tensors, count, 0, size), progress, 1.0)
                return size
            except torch.OutOfMemoryError:
                size //= 2
            except (BadInput, ValueError, RuntimeError):  # BatchNorm needs two samples, say
                return None
            self._free()
        return 0

    def _free(self) -> None:
        self._forget()
        free(self._device)


def part(tensors: Tensors, count: int, begin: int, end: int) -> Tensors:
    """Return samples begin…end of a batch of `count`; raise BadInput if a tensor's first axis is not the batch's."""
    for name, tensor in tensors.items():
        if isinstance(tensor, torch.Tensor) and tensor.ndim and len(tensor) != count:
            raise wrong_first_axis(name, tensor.shape, count)
    return {
        name: tensor[begin:end] if isinstance(tensor, torch.Tensor) and tensor.ndim else tensor
        for name, tensor in tensors.items()
    }


def free(device: torch.device) -> None:
    """Give memory that no tensor uses back to the device."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


@contextmanager
def network_fits() -> Iterator[None]:
    """Report a lack of memory while a network is placed on the device, before any batch is involved."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise network_too_large() from None
