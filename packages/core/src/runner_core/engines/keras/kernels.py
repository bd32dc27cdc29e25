"""Compute the first step of a Keras training to compare it: as it is trained, eagerly in float32, or with rounding."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import keras
import numpy as np

from runner_core.contract import Array, Arrays, Progress, Tensors
from runner_core.contract.kernels import Observed, Updated, Way
from runner_core.engines.keras.backend import Backend
from runner_core.engines.keras.learning import Learning, moment_of
from runner_core.engines.keras.network import arrays, assign, is_float, named
from runner_core.engines.kernels import EPS, jitter

_FLOAT32_ERROR = 64 * EPS["float32"]
"""Rounding of a layer in float32: of several operations, each of which may add thousands of numbers in any order."""
_NORMS = (
    keras.layers.BatchNormalization,
    keras.layers.GroupNormalization,
    keras.layers.LayerNormalization,
)
"""Layers whose plain kernels add many numbers one after the other. Where these are alike, as a scan's background, the
roundings are too: TensorFlow's variance of 65,536 numbers was off by 4e-4, where XLA's was right."""
_UPDATES = 2
_DROPOUT = (
    keras.layers.Dropout,
    keras.layers.SpatialDropout1D,
    keras.layers.SpatialDropout2D,
    keras.layers.SpatialDropout3D,
    keras.layers.GaussianDropout,
    keras.layers.GaussianNoise,
    keras.layers.AlphaDropout,
)


class Comparing:
    """The first step of a training, computed again and again to be compared; its network trains no more.

    Nothing is dropped out, because compiled code draws other random numbers.
    """

    def __init__(self, learning: Learning, backend: Backend, xla: bool) -> None:
        self._learning, self._backend = learning, backend
        self._begun = arrays(self._trained())
        self._compiled = backend.compiled(self.compared_step, learning.variables, xla)
        for layer in learning.network._flatten_layers():
            if isinstance(layer, _DROPOUT):
                setattr(layer, "stddev" if isinstance(layer, keras.layers.GaussianNoise) else "rate", 0.0)

    def observe(self, batch: Tensors, way: Way) -> Observed:
        """Return what a step computes for a batch on the device, with the network's weights a few percent away.

        Each call starts from the weights and the state that the network began with.
        """
        begun, found, learning = time.perf_counter(), Observed(), self._learning
        trained = self._trained()
        state = {n: v for n, v in named(learning.network.variables).items() if is_float(v) and n not in trained}
        assign(trained, {name: jitter(name, array, way.weights) for name, array in self._begun.items()})
        before = arrays(state)
        with self._backend.allocating():  # not compiled: XLA draws other random numbers
            tensors = learning.prepared(batch, moment_of(0, 0, learning.config.seed))
        run = self.compared_step if way.plain else self._compiled

        def from_the_start() -> Any:
            assign(state, before)
            return run(tensors)

        around = _layers(learning.network, found, way) if way.plain else nullcontext()
        with around, self._backend.allocating():
            scale, values, gradients = _finite(learning, from_the_start)
        found.values = {("the loss" if n == "loss" else f"the term {n}"): _host(v) for n, v in values.items()}
        found.gradients = {
            name: _host(gradients[_place(v, learning.trained)]) / np.float32(scale) for name, v in trained.items()
        }
        found.values.update({f"buffer {name}": array for name, array in arrays(state).items()})
        assign(state, before)
        found.seconds = time.perf_counter() - begun
        return found

    def _trained(self) -> dict[str, keras.Variable]:
        learning = self._learning
        return {name: v for name, v in named(learning.network.variables).items() if _among(v, learning.trained)}

    def compared_step(self, tensors: Tensors) -> Any:
        """Return the loss with its terms, and the gradient of each trained weight."""
        learning = self._learning
        found, values = learning.gradients(tensors, Progress(0, learning.steps, 0))
        pairs = zip(learning.trained, found, strict=True)
        return values, [keras.ops.zeros_like(v.value) if g is None else keras.ops.cast(g, "float32") for v, g in pairs]


def update(learning: Learning, gradients: Arrays, before: Arrays | None, backend: Backend, xla: bool) -> Updated:
    """Return the weights and their average after `_UPDATES` updates with these gradients.

    With `before`, the updates start from these weights, and nothing is compiled.
    """
    trained = {name: v for name, v in named(learning.network.variables).items() if name in gradients}
    if before is not None:
        assign(trained, before)
    begun, steps = arrays(trained), []
    average_before = {} if learning.average is None else dict(learning.average.state())

    def run(given: dict[str, Any], step: Any) -> Any:
        by_variable = {id(trained[name]): gradient for name, gradient in given.items()}
        progress = Progress(keras.ops.cast(step, "float32"), 100, 0)
        learning._update([by_variable[id(v)] for v in learning.trained], learning.base_rate, step, None, progress)
        return keras.ops.cast(step, "float32")

    compiled = run if before is not None else backend.compiled(run, learning.variables, xla)
    for step in range(_UPDATES):
        scale = 1.0 if learning.optimizer is learning._inner else _scale(learning)
        given = {name: backend.tensor(np.asarray(g * np.float32(scale), np.float32)) for name, g in gradients.items()}
        compiled(given, np.int32(step))
        steps.append(arrays(trained))
    average = {} if learning.average is None else dict(learning.average.state())
    return Updated(begun, steps, average_before, average)


def _among(variable: keras.Variable, variables: list[keras.Variable]) -> bool:
    return any(variable is one for one in variables)


def _place(variable: keras.Variable, variables: list[keras.Variable]) -> int:
    return next(number for number, one in enumerate(variables) if one is variable)


def _finite(learning: Learning, run: Callable[[], Any]) -> tuple[float, Any, Any]:
    """Return the loss scale, and what `run` returns under it; float16 scales by less until nothing overflows."""
    while True:
        scale = 1.0 if learning.optimizer is learning._inner else _scale(learning)
        values, gradients = run()
        if scale <= 1.0 or all(np.isfinite(_host(g)).all() for g in gradients):
            return scale, values, gradients
        learning.optimizer.dynamic_scale.assign(scale / 16)


def _scale(learning: Learning) -> float:
    return float(keras.ops.convert_to_numpy(learning.optimizer.dynamic_scale))


def _host(tensor: Any) -> Array:
    return np.array(keras.ops.convert_to_numpy(keras.ops.cast(tensor, "float32")), np.float32)


@contextmanager
def _layers(network: keras.Model, found: Observed, way: Way) -> Iterator[None]:
    """Let all layers compute in float32 inside this context; note their calls, and round what they return.

    A layer's results are rounded to the dtype that it computes in otherwise. With the first rounding, `_NORMS` compute
    in float64: how far their plain kernels are from it is an error that right kernels have.
    """
    leaves = [layer for layer in network._flatten_layers(include_self=False) if "call" not in vars(layer)]
    leaves = [layer for layer in leaves if not layer._flatten_layers(include_self=False, recursive=False)]
    policies = {id(layer): (layer, layer.dtype_policy) for layer in network._flatten_layers()}
    random = None if way.rounding is None else keras.random.SeedGenerator(way.rounding)
    order: dict[str, int] = {}
    for layer in leaves:
        error = 2 * EPS[layer.compute_dtype] if layer.compute_dtype in ("bfloat16", "float16") else _FLOAT32_ERROR
        name = (layer.path or layer.name).replace("/", ".")
        object.__setattr__(
            layer, "call", _noting(layer.call, name, found if way.layers else None, order, random, error)
        )
    for layer, _ in policies.values():
        layer.dtype_policy = "float64" if way.rounding == 0 and isinstance(layer, _NORMS) else "float32"
    try:
        yield
    finally:
        for layer in leaves:
            object.__delattr__(layer, "call")
        for layer, policy in policies.values():
            layer.dtype_policy = policy
        found.order = order


def _noting(
    call: Callable[..., Any], name: str, layers: Observed | None, order: dict[str, int], random: Any, error: float
) -> Callable[..., Any]:
    @functools.wraps(call)
    def run(*args: Any, **kwargs: Any) -> Any:
        output = call(*args, **kwargs)
        output = keras.tree.map_structure(_narrowed, output)
        order.setdefault(name, len(order))
        if layers is not None and keras.ops.is_tensor(output):
            layers.outputs[name] = _host(output)
        return output if random is None else keras.tree.map_structure(lambda t: _rounded(t, random, error), output)

    return run


def _narrowed(tensor: Any) -> Any:
    """Return a tensor of float64 in float32."""
    wide = keras.ops.is_tensor(tensor) and keras.backend.standardize_dtype(tensor.dtype) == "float64"
    return keras.ops.cast(tensor, "float32") if wide else tensor


def _rounded(tensor: Any, random: Any, error: float) -> Any:
    """Return a tensor whose values, and whose gradient's, are off at random."""
    if not (keras.ops.is_tensor(tensor) and "float" in keras.backend.standardize_dtype(tensor.dtype)):
        return tensor

    def off(value: Any) -> Any:
        noise = keras.random.uniform(keras.ops.shape(value), -error, error, dtype="float32", seed=random)
        return value * (1 + keras.ops.cast(noise, value.dtype))

    @keras.ops.custom_gradient
    def round_both(value: Any) -> Any:
        def gradient(*upstream: Any, **options: Any) -> Any:
            given = upstream[0] if upstream else options["upstream"]
            return off(given)

        return off(value), gradient

    return round_both(tensor)
