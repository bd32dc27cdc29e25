"""The JAX backend of Keras: the same steps, compiled by XLA everywhere."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import keras

from runner_core.base.errors import BadInput
from runner_core.config import TrainConfig
from runner_core.contract import Array, Device
from runner_core.contract.phases import Operation
from runner_core.contract.team import Place
from runner_core.engines.device import cpu, gpu_number
from runner_core.engines.keras.backend import Function, OutOfDeviceMemory
from runner_core.engines.keras.replicas import One


class Jax:
    """`Backend` for JAX; compiled functions take the values of variables and return the changed ones."""

    name = "jax"
    blocks = False

    def device(self, asked: str) -> Device:
        gpus = [device for device in jax.devices() if device.platform == "gpu"]
        index = gpu_number(asked, len(gpus), "JAX")
        if index is None:
            jax.config.update("jax_default_device", jax.devices("cpu")[0])
            return cpu("JAX on a CPU is many times slower than TensorFlow: leave KERAS_BACKEND unset, or use a GPU")
        jax.config.update("jax_default_device", gpus[index])
        ampere = float(getattr(gpus[index], "compute_capability", "0")) >= 8
        limit = (gpus[index].memory_stats() or {}).get("bytes_limit", 0)
        name = gpus[index].device_kind
        return Device("cuda", index, name=name, memory_bytes=limit, bfloat16=ampere, tf32=ampere)

    def spread(self, asked: str, count: int) -> None:
        raise BadInput(f"train.devices {count}: only TensorFlow trains on several; leave KERAS_BACKEND unset")

    def take(self, asked: str, place: Place) -> None:
        raise BadInput("only TensorFlow trains in several processes; leave KERAS_BACKEND unset")

    def meet(self, addresses: Sequence[str], number: int, patience: float) -> str:
        return "JAX trains alone"

    def unreachable(self, error: BaseException) -> bool:
        return False

    def replicas(self, device: Device, count: int) -> One:
        return One()

    def configure(self, config: TrainConfig, device: Device, tf32: bool) -> None:
        if config.threads is not None:
            raise BadInput("train.threads: JAX has no such setting; leave it out")
        jax.config.update("jax_default_matmul_precision", "tensorfloat32" if tf32 else "float32")

    def tensor(self, array: Array) -> Any:
        return jax.device_put(array.copy())  # a copy, because on a CPU it may share memory with the array

    def seed(self, words: Any) -> None:
        """Do nothing; in a compiled step Keras refuses to draw without a seed."""

    @contextmanager
    def allocating(self) -> Iterator[None]:
        try:
            yield
            return
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
        raise OutOfDeviceMemory

    def compiled(self, function: Function, variables: Sequence[keras.Variable], xla: bool) -> Function:
        @jax.jit
        def pure(values: list[Any], *arguments: Any) -> Any:
            with keras.StatelessScope(list(zip(variables, values, strict=True))) as scope:
                output = function(*arguments)
            return output, [_current(scope, v, value) for v, value in zip(variables, values, strict=True)]

        @functools.wraps(function)
        def run(*arguments: Any) -> Any:
            with self.allocating():
                output, values = pure([variable.value for variable in variables], *arguments)
            for variable, value in zip(variables, values, strict=True):
                variable.assign(value)
            return output

        return run

    def gradients(
        self, loss: Callable[[], tuple[Any, Any]], variables: Sequence[keras.Variable], others: Sequence[keras.Variable]
    ) -> tuple[list[Any], Any]:
        outside = [variable.value for variable in others]

        def pure(values: list[Any]) -> Any:
            mapping = [*zip(variables, values, strict=True), *zip(others, outside, strict=True)]
            with keras.StatelessScope(mapping) as scope:
                scalar, more = loss()
            return scalar, (more, [_current(scope, v, old) for v, old in zip(others, outside, strict=True)])

        found, (more, changed) = jax.grad(pure, has_aux=True)([variable.value for variable in variables])
        for variable, value in zip(others, changed, strict=True):
            variable.assign(value)
        return found, more

    def tape(self) -> None:
        return None

    def apply(self, optimizer: keras.optimizers.Optimizer, gradients: list[Any], trained: list[keras.Variable]) -> None:
        if not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            optimizer.apply(gradients, trained)
            return
        state = optimizer.variables  # it branches, and only its stateless form is written for JAX's branches
        values = optimizer.stateless_apply([v.value for v in state], gradients, [v.value for v in trained])
        for variable, value in zip([*trained, *state], [*values[0], *values[1]], strict=True):
            variable.assign(value)

    def over(self, body: Function, stacked: Any) -> Any:
        raise NotImplementedError

    def fold(self, body: Callable[[Any, Any], Any], total: Any, count: int) -> Any:
        for i in range(count):  # JAX's own loop would not see what is assigned to variables
            total = body(total, i)
        return total

    def after(self, tensors: Sequence[Any], then: Callable[[], Any]) -> Any:
        return then()  # a failed step leaves no trace: its values never reach the variables

    def watch(self, tensor: Any) -> Callable[[], bool]:
        return tensor.is_ready

    def free(self) -> None:
        """Do nothing; JAX frees unused memory at once."""

    def peak_memory(self, device: Device) -> int:
        stats = jax.config.jax_default_device.memory_stats() if device.kind == "cuda" else None
        return int((stats or {}).get("peak_bytes_in_use", 0))

    def held(self, device: Device) -> int:
        return 0  # `memory_stats` reports only this process's memory

    def peak_bytes(self, function: Function, like: tuple[Any, ...]) -> None:
        return None  # only the compiled step could tell, and compiling takes too long

    def on_gpu(self) -> bool:
        return jax.default_backend() == "gpu"

    def settle(self) -> None:
        jax.block_until_ready(jax.live_arrays())

    def operations(self, function: Function, arguments: tuple[Any, ...]) -> list[Operation]:
        return []  # XLA replaces the traced operations by others

    @contextmanager
    def trace(self, folder: Path) -> Iterator[None]:
        with jax.profiler.trace(str(folder)):
            yield

    def versions(self) -> dict[str, str]:
        return {"jax": jax.__version__}


def _current(scope: keras.StatelessScope, variable: keras.Variable, otherwise: Any) -> Any:
    value = scope.get_current_value(variable)
    return otherwise if value is None else value
