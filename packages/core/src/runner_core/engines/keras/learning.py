"""One optimizer step of a Keras network as a function that a backend compiles, and the data set on the device."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from runner_core.base.errors import BadInput, OutOfSpace
from runner_core.config import TrainConfig
from runner_core.contract import Array, Arrays, Precision, Progress, StoredArray, Tensors
from runner_core.contract.project import Project
from runner_core.data.samples import RowSamples
from runner_core.data.sampling import stream_seed
from runner_core.engines.keras.backend import Backend, OutOfDeviceMemory
from runner_core.engines.keras.network import Average, Bound
from runner_core.engines.keras.replicas import One, Replicas
from runner_core.engines.memory import wrong_first_axis
from runner_core.engines.returned import detached, refuse_no_step, refuse_unused_optimizer
from runner_core.engines.steplog import GRADIENT_NORM


class DeviceRows:
    """Stored arrays on the device; maps `{"row", "record"}` to the fields of the samples (`RowSamples`)."""

    def __init__(self, samples: Any, backend: Backend) -> None:
        """Copy the arrays to the device.

        Raises BadInput for samples that are not rows, and OutOfSpace if the set is larger than the memory.
        """
        if not isinstance(samples, RowSamples):
            raise BadInput("cache.mode device needs samples that are rows (RowSamples); use cache.mode memmap")
        self._offsets = samples.fields
        try:
            with backend.allocating():
                self._arrays = {name: _variable(_whole(array), name) for name, array in samples.arrays.items()}
                self._bounds = _variable(samples.record_rows.astype(np.int32), "bounds")
        except OutOfDeviceMemory:
            raise OutOfSpace("the data set does not fit into the device's memory; use cache.mode memmap") from None

    @property
    def variables(self) -> list[keras.Variable]:
        return [*self._arrays.values(), self._bounds]

    def __call__(self, batch: Tensors) -> Tensors:
        """Return fields (samples, offsets, …) and `record`; a neighbour beyond a record's end is its last row."""
        ops = keras.ops
        rows, records = ops.cast(batch["row"], "int32"), ops.cast(batch["record"], "int32")
        first = ops.take(self._bounds.value, records)[:, None]
        last = ops.take(self._bounds.value, records + 1)[:, None] - 1
        fields: Tensors = {"record": batch["record"]}
        for name, array in self._arrays.items():
            offsets = ops.convert_to_tensor(self._offsets[name], "int32")
            wanted = ops.clip(rows[:, None] + offsets, first, last)
            fields[name] = ops.take(array.value, wanted, axis=0)
        return fields


def _variable(array: Array, name: str) -> keras.Variable:
    return keras.Variable(array, dtype=str(array.dtype), trainable=False, name=f"cached_{name}")


def _whole(array: StoredArray) -> Array:
    """Return the concatenation of all records, copied record by record."""
    whole = np.empty((sum(shape[0] for shape in array.shapes), *array.shapes[0][1:]), array.dtype)
    begin = 0
    for record, shape in enumerate(array.shapes):
        whole[begin : begin + shape[0]] = array.read(record)
        begin += shape[0]
    return whole


_WORD = (1 << 32) - 1
_INSTEAD = {
    "use_ema": "train.ema",
    "gradient_accumulation_steps": "train.accumulate",
    "loss_scale_factor": "precision.mode float16",
}
"""Options of Keras's optimizers that would conflict with the runner's settings."""


class Learning:
    """A network, its optimizer and average, and the function that takes one step.

    `size` is the number of samples in a micro-batch; change it before the function is compiled.
    """

    def __init__(
        self,
        project: Project,
        config: TrainConfig,
        network: keras.Model,
        precision: Precision,
        statistics: Mapping[str, Any],
        steps: int,
        backend: Backend,
        gather: DeviceRows | None = None,
        replicas: Replicas | None = None,
    ) -> None:
        self.project, self.config, self.network, self.statistics = project, config, network, statistics
        self.steps, self._gather, self.replicas = steps, gather, replicas or One()
        self.size = config.batch_size
        self.weights_without_gradient: dict[str, int] = {}
        """Trained weights without a gradient, with their number of elements; known once a step is traced."""
        self.names: list[str] = []
        """Names of the numbers that a step returns, in order; known once it is traced."""
        self._backend = backend
        self._bound = Bound(network, training=True)
        self.trained, self.frozen = _variables(project, network)
        with self.replicas.holding():
            self._inner = build_optimizer(project, self.trained, config)
            self.optimizer = keras.optimizers.LossScaleOptimizer(self._inner) if precision.loss_scaling else self._inner
            self.optimizer.build(self.trained)
            self.replicas.prepare(self._inner)
        rate = float(keras.ops.convert_to_numpy(self._inner.learning_rate.value))
        self.base_rate = float(f"{rate:.7g}")  # without the extra digits of float32
        with self.replicas.changing():
            self.average = None if config.ema is None else Average(network, config.ema)
            self._rng = keras.random.SeedGenerator(0)
            self._begun = keras.Variable(-1, dtype="int32", trainable=False, name="begun")
            if self.replicas.count > 1:  # Keras's own generator, which would be made on the first device alone
                backend.seed(np.zeros(2, np.uint32))
        self._after_step = project.learning().after_step
        self._differing = self.replicas.changed(self.frozen)

    @property
    def variables(self) -> list[keras.Variable]:
        """All variables that a step may change."""
        own = [*self.network.variables, *self.optimizer.variables, self._begun, self._rng.state]
        cached = [] if self._gather is None else self._gather.variables
        return own + cached + ([] if self.average is None else self.average.variables)

    def updating(self, step: int) -> bool:
        """Return True if the failed step after `step` finished ones had begun to update the weights."""
        return int(keras.ops.convert_to_numpy(self._begun.value)) == step

    # ------------------------------------------------------------ traced

    def __call__(self, arrays: Tensors, moment: Any, rate: Any) -> Any:
        """Return (numbers,) float32 of one step, in the order of `names`.

        `moment` comes from `moment_of`, and `rate` is the learning rate.
        """
        ops = keras.ops
        step = ops.cast(moment[0], "int32")
        progress = Progress(ops.cast(step, "float32"), self.steps, ops.cast(moment[1], "float32"))
        tensors = self.prepared(self.replicas.share(arrays), moment)
        gradients, values = self._joined(*self.gradients(tensors, progress))
        finite = None
        if self.config.clip is not None or self.optimizer is not self._inner:
            norm = _global_norm(gradients)
            finite = ops.isfinite(norm)
            if self.optimizer is not self._inner:
                norm = norm / self.optimizer.dynamic_scale
            if self.config.clip is not None:
                values[GRADIENT_NORM] = norm
                factor = ops.where(finite, ops.minimum(1.0, self.config.clip / (norm + 1e-6)), 1.0)
                gradients = [None if g is None else g * ops.cast(factor, g.dtype) for g in gradients]
        skipping = finite if self.optimizer is not self._inner else None
        there = [g for g in gradients if g is not None]
        self._backend.after(there, lambda: self._update(gradients, rate, step, skipping, progress))
        self.names = list(values)
        return ops.stack([ops.cast(value, "float32") for value in values.values()])

    def trial(self, arrays: Tensors, moment: Any) -> Any:
        """Compute a step without its update, to test if the memory suffices."""
        gradients, values = self.gradients(self.prepared(arrays, moment), Progress(0, self.steps, 0))
        return values["loss"], [gradient for gradient in gradients if gradient is not None]

    def prepared(self, arrays: Tensors, moment: Any) -> Tensors:
        """Return the tensors on the device that the project's `step` receives."""
        words = self.replicas.stream(moment[2:4])
        self._rng.state.assign(words)
        self._backend.seed(words)
        tensors = dict(arrays) if self._gather is None else self._gather(arrays)
        return self.project.on_device(tensors, dict(self.statistics), self._rng)

    def gradients(self, tensors: Tensors, progress: Progress) -> tuple[list[Any], dict[str, Any]]:
        """Return gradients, loss and terms of the mean loss over the batch, in micro-batches of `size`."""
        count, size = _samples(tensors), self.size
        if count <= size:
            return self._part(tensors, progress, 1.0)
        first = count % size or size
        begin, rest = _cut(tensors, count, first, size)
        gradients, values = self._part(begin, progress, first / count)

        def add(total: tuple[list[Any], dict[str, Any]], i: Any) -> tuple[list[Any], dict[str, Any]]:
            part = {name: tensor[i] if len(tensor.shape) else tensor for name, tensor in rest.items()}
            more, terms = self._part(part, progress, size / count)
            there = [g for g in more if g is not None]
            return [a + b for a, b in zip(total[0], there, strict=True)], {n: v + terms[n] for n, v in total[1].items()}

        # a loop, which XLA compiles once and cannot run in parallel, which would need the memory of the whole batch
        total = [g for g in gradients if g is not None], values
        sums, values = self._backend.fold(add, total, (count - first) // size)
        found = iter(sums)
        return [None if g is None else next(found) for g in gradients], values

    def _part(self, tensors: Tensors, progress: Progress, share: float) -> tuple[list[Any], dict[str, Any]]:
        """Return gradients, loss and terms of a micro-batch, times its share of the batch."""

        def loss() -> tuple[Any, dict[str, Any]]:
            step = self.project.step(self._bound, tensors, progress)
            refuse_no_step(self.project, step)
            total, terms, *_ = step
            values = dict(terms)
            if extra := self.network.losses:  # from regularisers and layers
                values["regularization"] = sum(extra)
                total = total + values["regularization"]
            values = {"loss": total, **values}
            scaled = total * share if self.optimizer is self._inner else self.optimizer.scale_loss(total * share)
            return scaled, {name: keras.ops.cast(value, "float32") * share for name, value in values.items()}

        gradients, values = self._backend.gradients(loss, self.trained, self.frozen)
        if all(gradient is None for gradient in gradients):
            raise detached(self.project)
        silent = [variable for variable, gradient in zip(self.trained, gradients, strict=True) if gradient is None]
        self.weights_without_gradient = {variable.path: math.prod(variable.shape) for variable in silent}
        return gradients, values

    def _joined(self, gradients: list[Any], values: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return the means over the devices, and make what each has changed by itself (BatchNorm's) its mean."""
        if self.replicas.count == 1:
            return gradients, values
        there = [g for g in gradients if g is not None]
        means = iter(self.replicas.mean([*there, *values.values(), *(v.value for v in self._differing)]))
        joined = [None if g is None else next(means) for g in gradients]
        values = {name: next(means) for name in values}
        for variable in self._differing:
            variable.assign(next(means))
        return joined, values

    def _update(self, gradients: list[Any], rate: Any, step: Any, finite: Any | None, progress: Progress) -> None:
        self._begun.assign(step)
        self._inner.learning_rate.assign(rate)
        self._backend.apply(self.optimizer, gradients, self.trained)
        if self.average is not None:
            self.average.update(step, finite)
        if self._after_step is not None:
            self._after_step(self.network, progress)


def moment_of(step: int, epoch: int, seed: int) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Return what differs between steps besides batch and rate: step, epoch, and 64 bits of random seed."""
    random = stream_seed(seed, step)
    return np.array([step, epoch, random & _WORD, random >> 32], np.uint32)


def build_optimizer(project: Project, trained: list[keras.Variable], config: TrainConfig) -> keras.optimizers.Optimizer:
    """Return the project's optimizer, or that of `train.optimizer`; raise BadInput if it would do the runner's work."""
    learning = project.learning()
    if learning.adjust is not None:
        raise BadInput(
            f"project {project.name}: `adjust` is for PyTorch; in Keras an optimizer takes schedules: leave it out"
        )
    optimizer = None if learning.optimizer is None else learning.optimizer(trained)
    if optimizer is None:
        decay = config.weight_decay
        if config.optimizer == "sgd":
            momentum = config.momentum
            return keras.optimizers.SGD(config.learning_rate, momentum, nesterov=momentum > 0, weight_decay=decay)
        return keras.optimizers.AdamW(config.learning_rate, weight_decay=decay)
    refuse_unused_optimizer(project, config)
    where = f"project {project.name}: its optimizer"
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise BadInput(f"{where} scales the loss: leave that to precision.mode float16")
    for option, setting in _INSTEAD.items():
        if getattr(optimizer, option):
            raise BadInput(f"{where} has {option}: use {setting} instead")
    if not isinstance(optimizer.learning_rate, keras.Variable):
        raise BadInput(
            f"{where} has a schedule as its learning rate: give it a number, and describe its course in `schedule`"
        )
    return optimizer


def host_arrays(batch: Arrays, backend: Backend) -> Tensors:
    """Copy a batch to the device; raise OutOfDeviceMemory."""
    with backend.allocating():
        return {name: backend.tensor(array) for name, array in batch.items()}


def _variables(project: Project, network: keras.Model) -> tuple[list[keras.Variable], list[keras.Variable]]:
    """Return the variables that the optimizer changes (`Learning.parameter_groups` may name them), and the others."""
    parameter_groups = project.learning().parameter_groups
    chosen = None if parameter_groups is None else parameter_groups(network)
    trained = list(network.trainable_variables if chosen is None else chosen)
    own = {id(variable) for variable in trained}
    return trained, [variable for variable in network.variables if id(variable) not in own]


def _global_norm(gradients: list[Any]) -> Any:
    ops = keras.ops
    return ops.sqrt(sum(ops.sum(ops.square(ops.cast(g, "float32"))) for g in gradients if g is not None))


def _samples(tensors: Tensors) -> int:
    return next(int(t.shape[0]) for t in tensors.values() if len(t.shape))


def _cut(tensors: Tensors, count: int, first: int, size: int) -> tuple[Tensors, Tensors]:
    """Return the `first` samples, and the others as (parts, size, …).

    Raises BadInput if a tensor's first axis is not the batch's.
    """
    begin, rest = dict(tensors), dict(tensors)
    for name, tensor in tensors.items():
        if len(tensor.shape):
            if tensor.shape[0] != count:
                raise wrong_first_axis(name, tensor.shape, count)
            begin[name] = tensor[:first]
            rest[name] = keras.ops.reshape(tensor[first:], (-1, size, *keras.ops.shape(tensor)[1:]))
    return begin, rest
