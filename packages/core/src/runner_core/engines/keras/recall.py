"""Is the network that a checkpoint gives back the one that was validated? And has any weight changed?"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
from keras.src.backend.common import global_state

from runner_core.engines.keras.network import arrays, is_float, named
from runner_core.protocols import Array, Step


@contextmanager
def apart() -> Iterator[None]:
    """A network may be made inside, and whatever Keras keeps for the whole process (names of layers, the policy, its
    generator of random numbers) is afterwards as it was."""
    kept = global_state.GLOBAL_STATE_TRACKER, global_state.GLOBAL_SETTINGS_TRACKER
    try:
        yield
    finally:
        global_state.GLOBAL_STATE_TRACKER, global_state.GLOBAL_SETTINGS_TRACKER = kept


def checksum(variables: Sequence[keras.Variable]) -> int:
    """Another number once any bit of them is another. Waits for the device."""
    found = 0
    for variable in variables:
        found = zlib.crc32(np.array(keras.ops.convert_to_numpy(variable.value)).tobytes(), found)
    return found


def other_weights(one: keras.Model, other: keras.Model) -> list[str]:
    """Names of weights and floating-point state (BatchNorm's) that are not the same in both, bit for bit."""
    first, second = (arrays({n: v for n, v in named(net.variables).items() if is_float(v)}) for net in (one, other))
    return [name for name in {**first, **second} if not _equal(first.get(name), second.get(name))]


def _equal(one: Array | None, other: Array | None) -> bool:
    return one is not None and other is not None and np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


def distance(one: Step, other: Step) -> float:
    """The largest difference between two predictions (losses, where there is none), as a share of what the first spans;
    infinite where they have other shapes."""
    first, second = (_told(step) for step in (one, other))
    if [a.shape for a in first] != [a.shape for a in second]:
        return math.inf
    return max((_apart(a, b) for a, b in zip(first, second, strict=True)), default=0.0)


def _told(step: Step) -> list[Array]:
    tensors = [t for t in keras.tree.flatten(step.prediction) if keras.ops.is_tensor(t)] or [step.loss]
    return [np.asarray(keras.ops.convert_to_numpy(keras.ops.cast(tensor, "float32")), np.float64) for tensor in tensors]


def _apart(one: Array, other: Array) -> float:
    if not one.size or np.array_equal(one, other):
        return 0.0
    span: Any = np.ptp(one) or np.abs(one).max() or 1.0
    return float(np.abs(one - other).max() / span)
