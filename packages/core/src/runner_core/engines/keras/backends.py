"""Choose the backend that Keras computes with."""

from __future__ import annotations

from functools import cache

import keras

from runner_core.base.errors import BadInput
from runner_core.engines.keras.backend import Backend


@cache
def backend() -> Backend:
    """Return the backend that Keras was imported with; raise BadInput unless it is TensorFlow or JAX."""
    name = keras.backend.backend()
    if name == "tensorflow":
        from runner_core.engines.keras.tensorflow import TensorFlow

        return TensorFlow()
    if name == "jax":
        from runner_core.engines.keras.jax import Jax

        return Jax()
    raise BadInput(f"KERAS_BACKEND is {name}: set it to tensorflow (the default) or jax")
