"""Keras networks: build one, name its weights, average them, and compare two."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
from keras.src.backend.common import global_state

from runner_core.base.errors import BadInput
from runner_core.contract import Array, Precision, Step
from runner_core.contract.project import Project
from runner_core.contract.run import OtherWeights
from runner_core.contract.start import StartWeights
from runner_core.engines.keras import precision
from runner_core.engines.keras.replicas import One, Replicas
from runner_core.engines.weights import MovingAverage, given_weights, matched, refuse_no_fit


class Bound:
    """A network bound to training or to evaluation, for a project's `step` and `infer`.

    Its layers are bound too, however they are reached; called by themselves, Keras would run them in evaluation mode
    even in training. Calls inside the network's own methods are not bound, because those pass `training` on.
    """

    def __init__(self, network: keras.Layer, training: bool) -> None:
        self._network, self._training = network, training

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        return self._network(*inputs, **{"training": self._training, **options})

    def __getattr__(self, name: str) -> Any:
        return self._bound(getattr(self._network, name))

    def get_layer(self, *which: Any, **options: Any) -> Any:
        return self._bound(self._network.get_layer(*which, **options))

    def _bound(self, found: Any) -> Any:
        if isinstance(found, keras.Layer):
            return Bound(found, self._training)
        if isinstance(found, (list, tuple)) and any(isinstance(one, keras.Layer) for one in found):
            return [self._bound(one) for one in found]
        return found


def build(
    project: Project,
    policy: Precision,
    seed: int | None = None,
    start: StartWeights | None = None,
    replicas: Replicas | None = None,
) -> keras.Model:
    """Return a new network under `policy`, with the initial weights of a training if `seed` is given.

    The weights of `start` replace those that they fit. The network is on all devices of `replicas`.

    Layer names do not depend on what this process made before. Raises BadInput for a network without weights.
    """
    keras.utils.clear_session(free_memory=False)
    if seed is not None:
        keras.utils.set_random_seed(seed % (1 << 32))
    precision.set_policy(policy)
    with (replicas or One()).changing():
        network = project.model(policy)
    if not network.built or not network.variables:
        raise BadInput(
            f"project {project.name}: `model` returned a network that has no weights yet; begin it with keras.Input, "
            "or call it once on a keras.Input"
        )
    initialise = project.learning().initialise
    if seed is not None and initialise is not None:
        initialise(network)
    if start is not None and not start.restored:
        start_from(network, project, start)
    precision.keep_float32(network, policy)
    return network


def start_from(network: keras.Model, project: Project, start: StartWeights) -> None:
    """Set the weights that `start` has in their shapes; raise BadInput if there are none.

    Random streams (whole numbers) stay those of the seed.
    """
    given = given_weights(start, network, project)
    own = {name: v for name, v in named(network.variables).items() if is_float(v)}
    shapes = {n: str(np.shape(array)) for n, array in given.items() if np.asarray(array).dtype.kind == "f"}
    start.fit, names = matched({n: str(tuple(v.shape)) for n, v in own.items()}, shapes)
    refuse_no_fit(start, {name: int(np.prod(v.shape)) for name, v in own.items()})
    for name, source in names.items():
        own[name].assign(given[source])


def named(variables: Iterable[keras.Variable]) -> dict[str, keras.Variable]:
    """Return variables by path, with dots; a repeated path gets a number."""
    found: dict[str, keras.Variable] = {}
    for variable in variables:
        path = name = variable.path.replace("/", ".")
        number = 1
        while name in found:
            name, number = f"{path}_{number}", number + 1
        found[name] = variable
    return found


def arrays(variables: Mapping[str, keras.Variable]) -> dict[str, Array]:
    """Return copies on the host."""
    return {name: np.array(keras.ops.convert_to_numpy(v.value)) for name, v in variables.items()}


def assign(variables: Mapping[str, keras.Variable], values: Mapping[str, Any]) -> None:
    """Assign values to variables; raise OtherWeights if names or shapes differ."""
    missing = [name for name in variables if name not in values]
    unknown = [name for name in values if name not in variables]
    wrong = [n for n, v in variables.items() if n in values and tuple(v.shape) != tuple(np.shape(values[n]))]
    if missing or unknown or wrong:
        parts = [("it lacks", missing), ("it also has", unknown), ("their shapes differ in", wrong)]
        faults = "; ".join(f"{what} {_few(names)}" for what, names in parts if names)
        raise OtherWeights(f"the weights do not fit this project's network: {faults}")
    for name, variable in variables.items():
        variable.assign(values[name])


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def is_float(variable: keras.Variable) -> bool:
    return "float" in str(variable.dtype)


class Average(MovingAverage):
    """Moving average of the weights and of floating-point state (BatchNorm's)."""

    def __init__(self, network: keras.Model, decay: float) -> None:
        self.decay = decay
        self._live = {name: v for name, v in named(network.variables).items() if is_float(v)}
        with keras.name_scope("average"):
            self._kept = {  # copies, because Keras would rename a TensorFlow variable
                name: keras.Variable(
                    keras.ops.copy(v.value), dtype=v.dtype, trainable=False, name=name.replace(".", "_")
                )
                for name, v in self._live.items()
            }

    @property
    def variables(self) -> list[keras.Variable]:
        return list(self._kept.values())

    def update(self, step: Any, finite: Any | None = None) -> None:
        """Update after optimizer step `step` (from 0), unless `finite` (0-d, bool) is False."""
        ops = keras.ops
        t = ops.cast(step, "float32")
        weight = 1 - ops.minimum(self.decay, (2 + t) / (11 + t))
        if finite is not None:
            weight = ops.where(finite, weight, 0.0)
        for name, average in self._kept.items():
            average.assign(average + ops.cast(weight, average.dtype) * (self._live[name] - average))

    def _swap(self) -> None:
        for name, average in self._kept.items():
            live = self._live[name]
            own = keras.ops.copy(live.value)
            live.assign(average.value)
            average.assign(own)

    def state(self) -> dict[str, Array]:
        return arrays(self._kept)

    def load(self, values: Mapping[str, Any]) -> None:
        assign(self._kept, values)


def put(network: keras.Model, average: Mapping[str, Any]) -> None:
    """Copy an average into a network for good."""
    assign({name: v for name, v in named(network.variables).items() if is_float(v)}, average)


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


def compared(step: Step) -> list[Array]:
    """Return the prediction's tensors, or else the loss, as float64 on the host: what `distance` compares."""
    tensors = [t for t in keras.tree.flatten(step.prediction) if keras.ops.is_tensor(t)] or [step.loss]
    return [np.asarray(keras.ops.convert_to_numpy(keras.ops.cast(tensor, "float32")), np.float64) for tensor in tensors]
