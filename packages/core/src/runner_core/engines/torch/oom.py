"""When device memory runs out: smaller parts of a batch where they learn the same, else words that help."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from runner_core._errors import BadInput
from runner_core.config import TrainConfig
from runner_core.engines.torch.state import read_generators, write_generators
from runner_core.project import Project
from runner_core.protocols import HostBatch, Progress, Step, Tensors

CAN_RUN_OUT = {"cuda"}
"""Kinds of devices on which PyTorch raises OutOfMemoryError: elsewhere nothing has to be kept for a retry."""

Backward = Callable[[Tensors, Progress, float], dict[str, Any]]
"""Adds `share` times the gradients of the mean loss over a batch; loss and terms, times `share`."""


class Rewind:
    """What a step changes besides gradients: buffers (BatchNorm's running statistics) and default generators."""

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
    """Gradients of a batch in parts of `size` samples; smaller parts once the memory has run out.

    `forget` drops the gradients so far; `say` is told of a smaller size.
    """

    def __init__(  # noqa: PLR0917 - made in one place
        self,
        project: Project,
        config: TrainConfig,
        network: nn.Module,
        device: torch.device,
        backward: Backward,
        forget: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        """Raises BadInput for `train.accumulate` of a project whose batches may not be cut."""
        if config.accumulate > 1 and not project.splittable:
            raise BadInput(
                f"train.accumulate {config.accumulate}: project {project.name} does not allow it. Its network or loss "
                "looks at the whole batch (BatchNorm, a loss over the batch), so that micro-batches would learn "
                "something else (Project.splittable is False); use train.accumulate 1"
            )
        self.size = -(-config.batch_size // max(1, config.accumulate))
        self._rewind = Rewind(network, device) if project.splittable and device.type in CAN_RUN_OUT else None
        self._device, self._backward, self._forget, self._say = device, backward, forget, say

    def gradients(self, tensors: Tensors, count: int, progress: Progress) -> dict[str, Any]:
        """Add the gradients of the mean loss over `count` samples; loss and terms."""
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
        """Micro-batches, each weighing as much as it has samples (the last may have fewer)."""
        total: dict[str, Any] = {}
        for begin in range(0, count, self.size):
            end = min(count, begin + self.size)
            values = self._backward(part(tensors, count, begin, end), progress, (end - begin) / count)
            total = {name: total.get(name, 0.0) + value for name, value in values.items()}
        return total

    def _shrink(self, tensors: Tensors, count: int, progress: Progress) -> None:
        """Halve the micro-batch and undo what the failed step did; BadInput where that is not possible."""
        self._free()
        tried = min(self.size, count)
        if self._rewind is None or tried == 1:
            raise too_large(count, self._largest(tensors, count, tried // 2, progress))
        self._rewind.back()
        self.size = (tried + 1) // 2
        self._say(
            f"out of device memory with {tried} samples at once in step {progress.step + 1}; from here on each step "
            f"goes in micro-batches of {self.size}, which learn the same"
        )

    def _largest(self, tensors: Tensors, count: int, size: int, progress: Progress) -> int | None:
        """The largest of size, size / 2, … samples that a step has memory for; 0: none; None: that cannot be said."""
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


class ValidationParts:
    """Validation batches, in parts once the memory has run out: in evaluation mode each sample stands for itself."""

    def __init__(
        self, compute: Callable[[HostBatch], tuple[Tensors, Step]], device: torch.device, say: Callable[[str], None]
    ) -> None:
        """`compute` takes a batch (or a part of it) to the device and through the network."""
        self._compute, self._device, self._say = compute, device, say
        self._size: int | None = None

    def __call__(self, batch: HostBatch) -> Iterator[tuple[Tensors, Step, int]]:
        """Tensors, step and number of samples of each part. Raises BadInput when one sample is too much."""
        begin = 0
        while begin < batch.count:
            end = batch.count if self._size is None else min(batch.count, begin + self._size)
            arrays = {name: array[begin:end] for name, array in batch.arrays.items()}
            try:
                tensors, step = self._compute(HostBatch(arrays, end - begin, batch.release))
            except torch.OutOfMemoryError:
                pass  # as above
            else:
                yield tensors, step, end - begin
                begin = end
                continue
            self._shrink(end - begin)

    def _shrink(self, tried: int) -> None:
        free(self._device)
        if tried == 1:
            raise BadInput("out of device memory in validation, with validate.batch_size 1 too: use a smaller model")
        self._size = (tried + 1) // 2
        self._say(
            f"out of device memory with {tried} samples at once in validation; from here on it goes in batches of "
            f"{self._size} (validate.batch_size)"
        )


def part(tensors: Tensors, count: int, begin: int, end: int) -> Tensors:
    """Samples begin…end of a batch of `count`. Raises BadInput for a tensor whose first axis is not the batch's."""
    for name, tensor in tensors.items():
        if isinstance(tensor, torch.Tensor) and tensor.ndim and len(tensor) != count:
            raise BadInput(
                f"on_device returned {name!r} of shape {tuple(tensor.shape)} for a batch of {count} samples: it cannot "
                "be cut into micro-batches. The first axis of every tensor is the batch's; constants belong in "
                "`statistics` or the model"
            )
    return {
        name: tensor[begin:end] if isinstance(tensor, torch.Tensor) and tensor.ndim else tensor
        for name, tensor in tensors.items()
    }


def free(device: torch.device) -> None:
    """Give memory that no tensor uses back to the device."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def too_large(count: int, fits: int | None) -> BadInput:
    """The message for a step that cannot be split; `fits` as `MicroBatches._largest` says."""
    whole = f"train.batch_size: a batch of {count} samples does not fit into the device's memory"
    if fits == 0:
        return BadInput(f"{whole}, nor does any smaller one: use a smaller model or smaller samples")
    remedy = "use a smaller one" if fits is None else f"--train.batch-size {fits} fits"
    return BadInput(f"{whole}, and this project's step may not be split without changing what is learned; {remedy}")


def no_room(doing: str, batch_size: int) -> BadInput:
    """The message for memory that ran out outside of what can be tried again."""
    return BadInput(
        f"out of device memory in {doing}, with train.batch_size {batch_size}: use a smaller --train.batch-size, or a "
        "smaller model"
    )


@contextmanager
def network_fits() -> Iterator[None]:
    """Placing a network on the device, where no batch is involved yet."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise BadInput(
            "the network alone does not fit into the device's memory, whatever train.batch_size is: use a smaller model"
        ) from None
