"""Measure the cost of the loss without the network, by a step in which recorded network outputs are replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

import keras
import numpy as np

from runner_core.contract import Progress, Tensors
from runner_core.contract.project import Project
from runner_core.engines.keras.backend import Backend
from runner_core.engines.keras.network import Bound


def loss_seconds(
    project: Project, bound: Bound, tensors: Tensors, progress: Progress, count: int, backend: Backend, xla: bool
) -> float | None:
    """Return the mean seconds of `project.step` and its gradient back to the network's outputs, over `count` runs.

    `tensors` is the result of `on_device`. Returns None if the step computes its loss from anything other than results
    of calling the network or its layers. The network runs once, in training mode.
    """
    tape = _Tape()
    played: Any = _Played(bound, tape)
    project.step(played, tensors, progress)
    if not tape.answers:
        return None
    tape.recording = False

    def step(tensors: Tensors) -> Any:
        tape.rewind()
        gradients, loss = backend.gradients(
            lambda: (project.step(played, tensors, progress).loss,) * 2, tape.answers, ()
        )
        return [loss, *(gradient for gradient in gradients if gradient is not None)]

    compiled = backend.compiled(step, tape.answers, xla)
    if len(_settled(compiled(tensors))) < 2:
        return None
    begun = perf_counter()
    for _ in range(count):
        found = compiled(tensors)
    _settled(found)
    return (perf_counter() - begun) / count


class _Tape:
    """Outputs of the network's calls in one step, in order; each tensor is kept in a variable of `answers`."""

    def __init__(self) -> None:
        self.recording = True
        self.answers: list[keras.Variable] = []
        self._outputs: list[Any] = []
        self._coming: Iterator[Any] = iter(())

    def play(self, call: Callable[[], Any]) -> Any:
        if self.recording:
            self._outputs.append(keras.tree.map_structure(self._keep, call()))
            output = self._outputs[-1]
        else:
            output = next(self._coming)
        return keras.tree.map_structure(_value, output)

    def rewind(self) -> None:
        self._coming = iter(self._outputs)

    def _keep(self, tensor: Any) -> Any:
        if not keras.ops.is_tensor(tensor) or "float" not in keras.backend.standardize_dtype(tensor.dtype):
            return tensor
        self.answers.append(keras.Variable(tensor, dtype=tensor.dtype, name=f"answer_{len(self.answers)}"))
        return self.answers[-1]


class _Played:
    """A network, or a layer or method of one, that returns recorded outputs when it is called."""

    def __init__(self, real: Any, tape: _Tape) -> None:
        self._real, self._tape = real, tape

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        return self._tape.play(lambda: self._real(*inputs, **options))

    def get_layer(self, *which: Any, **options: Any) -> Any:
        return _Played(self._real.get_layer(*which, **options), self._tape)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        return _Played(found, self._tape) if callable(found) else found


def _value(kept: Any) -> Any:
    return kept.value if isinstance(kept, keras.Variable) else kept


def _settled(tensors: list[Any]) -> list[Any]:
    """Return the tensors once the device has computed them."""
    for tensor in tensors:
        np.asarray(keras.ops.convert_to_numpy(keras.ops.reshape(tensor, (-1,))[:1]))
    return tensors
