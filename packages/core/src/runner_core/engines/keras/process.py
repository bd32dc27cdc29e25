"""The state of Keras in this process that a training changes: the precision of new layers, and random generators.

TensorFlow keeps its devices, threads and determinism until the process ends.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np


def read() -> Mapping[str, Any]:
    """Return the state of this process, for `write`."""
    return {
        "policy": keras.config.dtype_policy(),
        "numpy": np.random.get_state(),  # noqa: NPY002 - for code that is not ours
        "python": random.getstate(),
    }


def write(found: Mapping[str, Any]) -> None:
    """Set this process's state to what `read` returned."""
    keras.config.set_dtype_policy(found["policy"])
    np.random.set_state(found["numpy"])  # noqa: NPY002
    random.setstate(found["python"])
