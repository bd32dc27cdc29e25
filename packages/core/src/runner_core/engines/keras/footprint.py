"""Count the memory that training a network takes, before its first step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras
import numpy as np

from runner_core.contract import Arrays, Device
from runner_core.contract.footprint import Footprint
from runner_core.engines.keras.backend import Backend, Function
from runner_core.engines.keras.learning import Learning

_KERNELS = 1.5
"""Memory in use at the peak, as a multiple of the graph's count.

Operations run side by side, and some have memory of their own.
"""


def footprint(
    learning: Learning, step: Function, batch: int, arrays: Arrays, backend: Backend, device: Device
) -> Footprint:
    """Count the memory of `step`, the function that training calls for one batch.

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
    like = {name: ((batch, *array.shape[1:]), array.dtype) for name, array in arrays.items()}
    peak = backend.peak_bytes(step, (like, ((4,), np.dtype(np.uint32)), ((), np.dtype(np.float32))))
    if peak is None:
        return Footprint(**known)
    # All except the gradients grows with the micro-batch; another size would need another trace.
    return Footprint(**known, sample=max(0, round(_KERNELS * peak) - gradients) // known["micro"], how="counted")


def _bytes(variables: Iterable[keras.Variable]) -> int:
    return sum(int(np.prod(v.shape, dtype=np.int64)) * np.dtype(_dtype(v)).itemsize for v in variables)


def _dtype(variable: keras.Variable) -> str:
    name = str(keras.backend.standardize_dtype(variable.dtype))
    return "float16" if name == "bfloat16" else name  # NumPy knows no bfloat16; it has as many bytes
