"""Types of plain values: arrays, batches of them, an engine's tensors, JSON, and what a step gets and returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
"""A NumPy array on the host."""
Arrays = dict[str, Array]
"""Arrays by name."""
Tensors = dict[str, Any]
"""The engine's own tensors (torch, Keras) by name."""
Json = Any
"""Any JSON value: text, numbers, booleans, None, lists, and mappings with text keys."""
Scalar = str | int | float | bool | None
"""One plain value: text, a finite number, a bool or None."""


def as_array(tensor: Any) -> Array:
    """Return an engine's tensor on the host as a NumPy array; bfloat16, which NumPy does not have, as float32."""
    try:
        return np.asarray(tensor)
    except TypeError:
        return np.asarray(tensor.float())


class HostBatch(NamedTuple):
    """A batch in a buffer of the ring; `release()` lets the ring refill the buffer."""

    arrays: Arrays
    count: int  # type: ignore[assignment]  # a tuple has a method of this name
    release: Callable[[], None]


class Progress(NamedTuple):
    """Position in the training: `step` of `steps` optimizer steps are done, in `epoch` (0-based).

    In a compiled step (Keras) `step` and `epoch` are 0-d float32 tensors: compute with them, do not branch on them.
    """

    step: int
    steps: int
    epoch: int

    @property
    def fraction(self) -> float:
        return self.step / max(1, self.steps)


class Step(NamedTuple):
    """Result of a project's `step`: the loss, its named terms (unweighted), and the prediction that metrics read.

    `prediction` is None if the project does not score batches.

    In torch `outputs` may name the tensors that the terms are computed from (one, or several in a mapping or sequence),
    where the prediction is not all of them: the terms' gradient norms are measured there. Keras measures them at all
    outputs of the network, and ignores it.
    """

    loss: Any
    terms: Mapping[str, Any] = {}
    prediction: Any = None
    outputs: Any = None


Infer = Callable[[Arrays], Arrays]
"""Runs the trained network on host arrays: `on_device`, then `Project.infer`, in evaluation mode, under the run's
precision.

It takes a batch of prepared arrays by name. Each is (B, …), with any B that is the same for all: `array[None]` makes a
batch of one record. It returns host arrays by the names that `Project.infer` gives, with the samples along
their first axis too: `[0]` is the answer for the first. They are float32 if the network computed in a smaller type.
Raises BadInput for arrays that are no batch."""
