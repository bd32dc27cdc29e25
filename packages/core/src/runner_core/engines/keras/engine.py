"""The Keras engine: the backend and its device, and trained networks from checkpoints, ready to predict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import keras
import numpy as np

from runner_core.base.errors import BadInput
from runner_core.config import RunConfig
from runner_core.contract import Array, Arrays, Device, Infer, State, Tensors, Trained
from runner_core.contract.phases import Phases
from runner_core.contract.project import Project
from runner_core.contract.records import Statistics
from runner_core.contract.setup import Data, Setup
from runner_core.contract.team import Alone, Place, Team
from runner_core.engines import returned
from runner_core.engines.export import describe
from runner_core.engines.keras.backend import Backend, OutOfDeviceMemory
from runner_core.engines.keras.checkpoint import flatten, unflatten
from runner_core.engines.keras.network import Bound, arrays, assign, build, named, put
from runner_core.engines.keras.start import read_weights
from runner_core.engines.keras.trainer import KerasTrainer
from runner_core.engines.memory import network_too_large
from runner_core.engines.team import GrpcTeam


class KerasEngine:
    """`Engine` for Keras 3."""

    name = "keras"

    def __init__(self, project: Project, config: RunConfig) -> None:
        self.project = project
        self.config = config

    @cached_property
    def backend(self) -> Backend:
        return backend()

    def device(self) -> Device:
        """Return the device that `train.device` names; raise BadInput if it does not exist."""
        return self.backend.device(self.config.train.device)

    def trainer(self, setup: Setup, data: Data, steps: int) -> KerasTrainer:
        """Make a new model and optimizer for `steps` optimizer steps, on the device, under `setup.precision`."""
        self._configure(setup)
        try:
            with self.backend.allocating():
                return KerasTrainer(setup, data, steps, self.backend, self._xla(setup.device))
        except OutOfDeviceMemory:
            raise network_too_large() from None

    def read_weights(self, file: Path) -> Tensors:
        """Return the weights in a .safetensors or .keras file, by name; raise BadInput if it holds none."""
        return read_weights(file)

    def join(self, place: Place) -> Team:
        """Compute on the devices of this process, or meet the others; raise BadInput if devices are not there."""
        if place.count > 1:
            return self._team(place)
        self.backend.spread(self.config.train.device, place.devices)
        return Alone(place.devices)

    def _team(self, place: Place) -> Team:
        """Return the team of processes that compute together. Raises BadInput if they cannot reach each other."""
        patience, backend = self.config.train.patience_seconds, self.backend
        backend.take(self.config.train.device, place)
        self.device()
        team = GrpcTeam(place, patience, backend.unreachable)
        failures = team.every(backend.meet(team.addresses, team.number, patience))
        if any(failures):
            known = "; ".join(f"process {n} on {m.host}: {a}" for n, (m, a) in enumerate(team.named()))
            raise BadInput(
                f"the {team.count} processes met, but not all reached each other's TensorFlow within {patience:g} s: "
                f"{next(filter(None, failures))}. They serve it at {known}, so these ports must be open between them"
            )
        return team

    def state_of(self, setup: Setup, weights: Tensors, statistics: Statistics) -> State:
        """Return the state of a run whose network has just these weights; raise OtherWeights if they do not fit it.

        Random streams of the network, which weights from elsewhere lack, are those of a new network.
        """
        own = arrays(named(build(setup.project, setup.precision).variables))
        streams = {name: array for name, array in own.items() if array.dtype.kind != "f" and name not in weights}
        tree = {"model": {**streams, **weights}, "ema": None, "statistics": dict(statistics)}
        values, tensors = flatten(tree)
        state = State({"keras": values}, tensors)
        self._network(setup, state)
        return state

    def phases(self, trainer: KerasTrainer) -> Phases:
        """Return the object that measures the parts of the trainer's steps."""
        from runner_core.engines.keras.phases import KerasPhases

        return KerasPhases(trainer, *trainer.measured())

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Allocate ordinary memory, because both backends copy from it before they return."""
        return np.empty(shape, dtype)

    def pin(self, memory: Array) -> None:
        """Do nothing; see `allocate`."""

    def load(self, setup: Setup, state: State) -> Trained:
        """Return the network of a checkpoint (averaged weights if there are some), ready to predict.

        It computes under `setup.precision`, which is set before the network is made. Weights are float32 in every
        checkpoint.
        """
        self._configure(setup)
        return self._ready(setup, *self._network(setup, state))

    def untrained(self, setup: Setup, state: State) -> Trained:
        """Return the network before the first step of the checkpoint's run, made anew from its seed and start."""
        self._configure(setup)
        statistics = setup.project.statistics = unflatten(state)["statistics"]
        return self._ready(
            setup, build(setup.project, setup.precision, self.config.train.seed, setup.start), statistics
        )

    def _ready(self, setup: Setup, network: keras.Model, statistics: Statistics) -> Trained:
        """Return a network with the function that predicts with it."""
        network.trainable = False
        infer = make_infer(setup.project, network, statistics, self.backend, self._xla(setup.device))
        return Trained(network, infer, statistics)

    def export(self, setup: Setup, state: State, folder: Path) -> Sequence[Path]:
        """Export as the project does, else as model.keras (for `keras.models.load_model`) and model.json.

        Returns the written files.
        """
        network, statistics = self._network(setup, state)
        folder.mkdir(parents=True, exist_ok=True)
        written = setup.project.export(network, folder)
        return written or _export(setup, network, statistics, folder)

    def versions(self) -> dict[str, str]:
        return {"keras": keras.__version__, **self.backend.versions()}

    def _configure(self, setup: Setup) -> None:
        self.backend.configure(self.config.train, setup.device, setup.precision.compute == "tf32")

    def _xla(self, device: Device) -> bool:
        """Return True if XLA compiles; by default only on a GPU.

        On a CPU, XLA takes minutes to compile 3-D networks, and the result is slower.
        """
        asked = self.config.train.compile
        return asked == "on" or (asked == "auto" and device.kind == "cuda")

    def _network(self, setup: Setup, state: State) -> tuple[keras.Model, Statistics]:
        """Return the network with the weights that validation saw."""
        saved = unflatten(state)
        setup.project.statistics = saved["statistics"]
        network = build(setup.project, setup.precision)
        assign(named(network.variables), saved["model"])
        if saved["ema"] is not None:
            put(network, saved["ema"])
        return network, saved["statistics"]


def _export(setup: Setup, network: keras.Model, statistics: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write the network in Keras's own format, and what is needed to use it."""
    network.save(folder / "model.keras")
    return [folder / "model.keras", describe(setup, statistics, folder)]


def make_infer(
    project: Project, network: keras.Model, statistics: Mapping[str, Any], backend: Backend, xla: bool
) -> Infer:
    """Return the `Infer` function of a network."""
    bound = Bound(network, training=False)

    def forward(arrays: Tensors) -> Tensors:
        found = project.infer(bound, project.on_device(dict(arrays), dict(statistics), None))
        return dict(returned.outputs(project, found))

    compiled = backend.compiled(forward, network.variables, xla)

    def infer(arrays: Arrays) -> Arrays:
        try:
            with backend.allocating():
                output = compiled({name: backend.tensor(array) for name, array in arrays.items()})
        except OutOfDeviceMemory:
            raise BadInput("out of device memory in prediction: use a smaller validate.batch_size") from None
        return {name: _host(tensor) for name, tensor in output.items()}

    return returned.checked_infer(project, infer)


def _host(tensor: Any) -> np.ndarray[Any, np.dtype[Any]]:
    if keras.backend.standardize_dtype(tensor.dtype) in ("bfloat16", "float16"):
        tensor = keras.ops.cast(tensor, "float32")
    return np.array(keras.ops.convert_to_numpy(tensor))


@cache
def backend() -> Backend:
    """Return the backend that Keras was imported with; raise BadInput unless it is TensorFlow or JAX."""
    name = keras.backend.backend()
    if name == "tensorflow":
        from runner_core.engines.keras.tensorflow import TensorFlow

        return TensorFlow()
    if name == "jax":
        from runner_core.engines.keras.jax import Jax

        return Jax()
    raise BadInput(f"KERAS_BACKEND is {name}: set it to tensorflow (the default) or jax")
