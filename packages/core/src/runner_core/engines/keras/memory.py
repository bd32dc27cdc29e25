"""Memory of a Keras training: what it takes, from a step's graph, and micro-batches when it runs out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np

from runner_core.base.errors import BadInput
from runner_core.config import TrainConfig
from runner_core.contract import Arrays, Device, Tensors
from runner_core.contract.footprint import Footprint
from runner_core.contract.project import Project
from runner_core.engines.keras.backend import Backend, Function, OutOfDeviceMemory
from runner_core.engines.keras.learning import Learning
from runner_core.engines.memory import micro_batch, no_room, smaller, too_large

CAN_RUN_OUT = {"cuda"}
"""Kinds of devices whose memory can run out before the host's; elsewhere nothing is kept for a retry."""


class MicroBatch:
    """The size of micro-batches, and a copy of what a failed step may have changed."""

    def __init__(
        self,
        project: Project,
        config: TrainConfig,
        learning: Learning,
        backend: Backend,
        device: Device,
        say: Callable[[str], None],
    ) -> None:
        """Set the size; raise BadInput for `train.accumulate` in a project whose batches may not be split."""
        self._learning, self._backend, self._say, self._config = learning, backend, say, config
        alone = config.steps_per_execution == 1 and learning.replicas.count == 1
        self._retry = project.learning().splittable and device.kind in CAN_RUN_OUT and alone
        frozen = learning.frozen  # copied in one call: a call for each could take longer than a step
        self._copy = backend.compiled(lambda: [keras.ops.copy(v.value) for v in frozen], frozen, False)
        self._kept: list[Any] = []
        self.size = micro_batch(project, config)

    @property
    def size(self) -> int:
        return self._learning.size

    @size.setter
    def size(self, size: int) -> None:
        self._learning.size = size

    def mark(self) -> None:
        """Keep what the forward pass changes: BatchNorm's running statistics, dropout's generators."""
        if self._retry:
            self._kept = self._copy()

    def shrink(self, tensors: Tensors, moment: Any, step: int) -> None:
        """Halve the micro-batch and undo the failed step; raise BadInput if that is not possible."""
        self._backend.free()
        if self._learning.replicas.count > 1:
            raise no_room("a step on several devices", self._config.batch_size)
        if self._learning.updating(step):
            raise no_room("the optimizer's step", self._config.batch_size)
        count = next(int(t.shape[0]) for t in tensors.values() if len(t.shape))
        tried = min(self.size, count)
        if not self._retry or tried == 1:
            raise too_large(count, self._largest(tensors, moment, tried // 2))
        for variable, kept in zip(self._learning.frozen, self._kept, strict=True):
            variable.assign(kept)
        self.size = (tried + 1) // 2
        self._say(smaller(tried, self.size, step + 1))

    def _largest(self, tensors: Tensors, moment: Any, size: int) -> int | None:
        """Return the largest of size, size / 2, … samples that fit in a step; 0 for none, None for unknown."""
        learning = self._learning
        learning.size = size
        while size:
            few = {name: tensor[:size] if len(tensor.shape) else tensor for name, tensor in tensors.items()}
            try:
                self._backend.compiled(learning.trial, learning.variables, False)(few, moment)
                return size
            except OutOfDeviceMemory:
                size //= 2
            except (BadInput, ValueError, RuntimeError):
                return None
        return 0


_KERNELS = 1.5
"""Memory in use at the peak, as a multiple of the graph's count.

Operations run side by side, and some have memory of their own.
"""


def footprint(
    learning: Learning, step: Function, batch: int, arrays: Arrays, backend: Backend, device: Device
) -> Footprint:
    """Count the memory of `step`, the function that training calls for one batch of each device; return one device's.

    Only the first axis of a batch differs from `arrays`. The function is traced here once, also for training.
    """
    gradients = _bytes(learning.trained)
    average = 0 if learning.average is None else _bytes(learning.average.variables)
    known: dict[str, Any] = {
        "weights": _bytes(learning.network.variables),
        "gradients": gradients,
        "optimizer": _bytes(learning.optimizer.variables),
        "average": average,
        "micro": min(learning.size, batch),
        "held": backend.held(device),
    }
    devices = learning.replicas.count
    like = {name: ((devices * batch, *array.shape[1:]), array.dtype) for name, array in arrays.items()}
    peak = backend.peak_bytes(step, (like, ((4,), np.dtype(np.uint32)), ((), np.dtype(np.float32))))
    if peak is None:
        return Footprint(**known)
    # All except the gradients grows with the micro-batch; another size would need another trace.
    return Footprint(
        **known, sample=max(0, round(_KERNELS * peak / devices) - gradients) // known["micro"], how="counted"
    )


def _bytes(variables: Iterable[keras.Variable]) -> int:
    return sum(int(np.prod(v.shape, dtype=np.int64)) * np.dtype(_dtype(v)).itemsize for v in variables)


def _dtype(variable: keras.Variable) -> str:
    name = str(keras.backend.standardize_dtype(variable.dtype))
    return "float16" if name == "bfloat16" else name  # NumPy knows no bfloat16; it has as many bytes
