"""Turn a trained Keras network into a function from host arrays to host arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from runner_core.base.errors import BadInput
from runner_core.contract import Arrays, Infer, Tensors
from runner_core.contract.project import Project
from runner_core.engines.keras.backend import Backend, OutOfDeviceMemory
from runner_core.engines.keras.network import Bound


def make_infer(
    project: Project, network: keras.Model, statistics: Mapping[str, Any], backend: Backend, xla: bool
) -> Infer:
    """Return the `Infer` function of a network."""
    bound = Bound(network, training=False)

    def forward(arrays: Tensors) -> Tensors:
        return dict(project.infer(bound, project.on_device(dict(arrays), dict(statistics), None)))

    compiled = backend.compiled(forward, network.variables, xla)

    def infer(arrays: Arrays) -> Arrays:
        try:
            with backend.allocating():
                output = compiled({name: backend.tensor(array) for name, array in arrays.items()})
        except OutOfDeviceMemory:
            raise BadInput("out of device memory in prediction: use a smaller validate.batch_size") from None
        return {name: _host(tensor) for name, tensor in output.items()}

    return infer


def _host(tensor: Any) -> np.ndarray[Any, np.dtype[Any]]:
    if keras.backend.standardize_dtype(tensor.dtype) in ("bfloat16", "float16"):
        tensor = keras.ops.cast(tensor, "float32")
    return np.array(keras.ops.convert_to_numpy(tensor))
