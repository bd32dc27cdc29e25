"""Check that a checkpoint gives back the network that was validated, and that weights change."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
from keras.src.backend.common import global_state

from runner_core.contract import Array, Step
from runner_core.engines.keras.network import arrays, is_float, named


@contextmanager
def apart() -> Iterator[None]:
    """Restore, after this context, what Keras keeps for the whole process.

    These are names of layers, the policy, and its generator of random numbers; so a network may be made inside.
    """
    kept = global_state.GLOBAL_STATE_TRACKER, global_state.GLOBAL_SETTINGS_TRACKER
    try:
        yield
    finally:
        global_state.GLOBAL_STATE_TRACKER, global_state.GLOBAL_SETTINGS_TRACKER = kept


def checksum(variables: Sequence[keras.Variable]) -> int:
    """Return a number that changes with any bit of the variables; waits for the device."""
    found = 0
    for variable in variables:
        found = zlib.crc32(np.array(keras.ops.convert_to_numpy(variable.value)).tobytes(), found)
    return found


def other_weights(one: keras.Model, other: keras.Model) -> list[str]:
    """Return the names of weights and floating-point state (BatchNorm's) that are not bitwise equal in both."""
    first, second = (arrays({n: v for n, v in named(net.variables).items() if is_float(v)}) for net in (one, other))
    return [name for name in {**first, **second} if not _equal(first.get(name), second.get(name))]


def _equal(one: Array | None, other: Array | None) -> bool:
    return one is not None and other is not None and np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


def distance(one: Step, other: Step) -> float:
    """Return the largest difference between two predictions (or losses), as a share of the first one's range.

    It is infinite if their shapes differ.
    """
    first, second = (_compared(step) for step in (one, other))
    if [a.shape for a in first] != [a.shape for a in second]:
        return math.inf
    return max((_difference(a, b) for a, b in zip(first, second, strict=True)), default=0.0)


def _compared(step: Step) -> list[Array]:
    tensors = [t for t in keras.tree.flatten(step.prediction) if keras.ops.is_tensor(t)] or [step.loss]
    return [np.asarray(keras.ops.convert_to_numpy(keras.ops.cast(tensor, "float32")), np.float64) for tensor in tensors]


def _difference(one: Array, other: Array) -> float:
    if not one.size or np.array_equal(one, other):
        return 0.0
    span: Any = np.ptp(one) or np.abs(one).max() or 1.0
    return float(np.abs(one - other).max() / span)
