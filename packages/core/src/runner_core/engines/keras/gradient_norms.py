"""Gradient norms of loss terms with respect to the network's output, measured beside the compiled step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from runner_core.contract import Metric, Progress, Tensors
from runner_core.contract.project import Project
from runner_core.engines.gradient_norms import HALF_SCALE, MEASURED_AT, GradientLog, Measured, changed
from runner_core.engines.keras.backend import Backend, OutOfDeviceMemory, Tape
from runner_core.engines.keras.learning import DeviceRows
from runner_core.engines.keras.network import Bound

_AT_ONCE = 8_000_000
"""Most bytes of samples that are measured; one sample if it has more. Uncompiled, a network and its losses keep all
that they compute: for two volumes that is more than a training step takes."""


class GradientNorms(GradientLog):
    """Measure at the steps `MEASURED_AT`, if the backend can: on the step's batch, in evaluation mode, uncompiled.

    `metrics`: those of the validation; they are reset.
    """

    def __init__(
        self,
        project: Project,
        network: keras.Model,
        statistics: Mapping[str, Any],
        backend: Backend,
        metrics: Sequence[Metric],
        gather: DeviceRows | None,
    ) -> None:
        super().__init__()
        self._project, self._network, self._statistics = project, network, statistics
        self._backend, self._metrics, self._gather = backend, metrics, gather
        self._marked = project.health().ignored
        self._possible = backend.tape() is not None

    def due(self, number: int) -> bool:
        """Return whether the step after `number` finished ones is measured."""
        return self._possible and number in MEASURED_AT

    def measure(self, arrays: Tensors, size: int, progress: Progress) -> None:
        """Measure at most the first `size` samples on the device, and wait for it."""
        tape = self._backend.tape()
        assert tape is not None
        few = {name: tensor[:size] if len(tensor.shape) else tensor for name, tensor in arrays.items()}
        try:
            with self._backend.allocating():
                self.add(self._measure(tape, few, progress))
        except OutOfDeviceMemory:  # the step itself, which is compiled, had enough
            self._backend.free()

    def _measure(self, tape: Tape, arrays: Tensors, progress: Progress) -> Measured:
        tensors = dict(arrays) if self._gather is None else self._gather(arrays)
        batch = self._project.on_device(_few(tensors), dict(self._statistics), None)
        network = _Watched(self._network, tape)
        now = [keras.ops.cast(number, "float32") for number in (progress.step, progress.epoch)]  # as in a compiled step
        with tape:
            step = self._project.step(network, batch, Progress(now[0], progress.steps, now[1]))
        found = Measured()
        if not network.answers:  # the project calls its layers one by one
            return found
        for name, term in step.terms.items():
            norm = _norm(tape, term, network.answers) if keras.ops.is_tensor(term) else None
            if norm is None:
                found.detached.append(name)
            else:
                found.norms[name] = norm
        if self._marked is not None and keras.ops.is_tensor(step.prediction):
            found.ignored = self._at_ignored(tape, step.loss, step.prediction, batch, self._marked(batch))
        return found

    def _at_ignored(
        self, tape: Tape, loss: Any, prediction: Any, batch: Tensors, marked: Any | None
    ) -> dict[str, Any] | None:
        """Return None if nothing is ignored, or if the loss does not depend on the prediction."""
        gradient = None if marked is None else _gradient(tape, loss, prediction)
        if gradient is None:
            return None
        marks = np.broadcast_to(keras.ops.convert_to_numpy(marked), gradient.shape)
        largest = float(np.abs(gradient).max())
        if not marks.any() or not math.isfinite(largest):
            return None
        there = float(np.abs(gradient)[marks].max()) / largest if largest else 0.0
        turned = keras.ops.where(marks, -prediction, prediction)
        seen = changed(self._metrics, prediction, turned, batch)
        return {"share": float(marks.mean()), "gradient": there, "metrics": seen}


def _few(tensors: Tensors) -> Tensors:
    """Return the first samples, as many as `_AT_ONCE` allows."""
    whole = {name: tensor for name, tensor in tensors.items() if len(tensor.shape)}
    dtypes = {name: np.dtype(keras.backend.standardize_dtype(tensor.dtype)) for name, tensor in whole.items()}
    one = sum(math.prod(tensor.shape[1:]) * dtypes[name].itemsize for name, tensor in whole.items())
    return {**tensors, **{name: tensor[: max(1, _AT_ONCE // max(1, one))] for name, tensor in whole.items()}}


class _Watched(Bound):
    """The network in evaluation mode; its outputs are kept, and the tape records from there on."""

    def __init__(self, network: keras.Layer, tape: Tape) -> None:
        super().__init__(network, training=False)
        self._tape = tape
        self.answers: list[Any] = []

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        answer = super().__call__(*inputs, **options)
        for tensor in keras.tree.flatten(answer):
            if keras.ops.is_tensor(tensor):
                self._tape.watch(tensor)
                self.answers.append(tensor)
        return answer


def _norm(tape: Tape, term: Any, answers: Sequence[Any]) -> float | None:
    """Return the norm of the gradient over all outputs; None if the term does not depend on any of them."""
    found = [gradient for answer in answers if (gradient := _gradient(tape, term, answer)) is not None]
    return float(np.sqrt(sum(float(np.square(gradient).sum()) for gradient in found))) if found else None


def _gradient(tape: Tape, value: Any, tensor: Any) -> np.ndarray[Any, np.dtype[np.float64]] | None:
    """Return the gradient on the host; None if the value does not depend on the tensor."""
    scale = HALF_SCALE if keras.backend.standardize_dtype(tensor.dtype) == "float16" else 1.0
    found = tape.gradient(value, tensor, output_gradients=keras.ops.full_like(value, scale))
    if found is None:
        return None
    return np.asarray(keras.ops.convert_to_numpy(keras.ops.cast(found, "float32")), np.float64) / scale
