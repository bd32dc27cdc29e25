"""What memory a network takes under training, counted before its first step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras
import numpy as np

from runner_core.engines.keras.backend import Backend, Function
from runner_core.engines.keras.learning import Learning
from runner_core.memory.footprint import Footprint
from runner_core.protocols import Arrays, Device

_KERNELS = 1.5
"""What is taken at once, over what the graph says: operations run side by side, and some have memory of their own."""


def footprint(
    learning: Learning, step: Function, batch: int, arrays: Arrays, backend: Backend, device: Device
) -> Footprint:
    """`step`: as training calls it, of one batch, whose shapes those of `arrays` are but for the first axis. It is
    traced here, once for both."""
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
    # All of it grows with the micro-batch but the gradients: another size would be another trace.
    return Footprint(**known, sample=max(0, round(_KERNELS * peak) - gradients) // known["micro"], how="counted")


def _bytes(variables: Iterable[keras.Variable]) -> int:
    return sum(int(np.prod(v.shape, dtype=np.int64)) * np.dtype(_dtype(v)).itemsize for v in variables)


def _dtype(variable: keras.Variable) -> str:
    name = str(keras.backend.standardize_dtype(variable.dtype))
    return "float16" if name == "bfloat16" else name  # NumPy knows no bfloat16; it has as many bytes
