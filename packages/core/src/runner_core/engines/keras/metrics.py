"""Metrics that accumulate on the device and are read once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from runner_core.contract import Tensors


class KerasFunctionMetric:
    """Mean over samples of a function (prediction, batch) → its mean over that batch (0-d tensor).

    The prediction is the one that the project's `step` returns, and the batch the one that `on_device` returns.
    """

    def __init__(self, name: str, function: Callable[[Any, Tensors], Any]) -> None:
        self.name = name
        self._function = function
        self.reset()

    def reset(self) -> None:
        self._values: list[Any] = []
        self._counts: list[int] = []

    def update(self, prediction: Any, batch: Tensors) -> None:
        self._values.append(keras.ops.cast(self._function(prediction, batch), "float32"))
        self._counts.append(next(int(t.shape[0]) for t in batch.values() if len(t.shape)))

    def compute(self) -> dict[str, float]:
        """Return the mean; waits for the device."""
        values = keras.ops.convert_to_numpy(keras.ops.stack(self._values))
        return {self.name: float(np.average(np.asarray(values, np.float64), weights=self._counts))}
