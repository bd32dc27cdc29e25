"""What differs between TensorFlow and JAX: devices, compilation, gradients, memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import keras

from runner_core._errors import BadInput
from runner_core.config import TrainConfig
from runner_core.engines.phases import Operation
from runner_core.protocols import Array, Device

Function = Callable[..., Any]


class OutOfDeviceMemory(Exception):
    """The device has no memory left for what was to be computed."""


class Tape(Protocol):
    """Inside (a context manager), records what is computed of the tensors that it watches."""

    def __enter__(self) -> Any: ...

    def __exit__(self, *error: Any) -> Any: ...

    def watch(self, tensor: Any) -> None: ...

    def gradient(self, target: Any, sources: Any, output_gradients: Any) -> Any:
        """None where `target` does not depend on `sources`. May be asked more than once."""
        ...


class Backend(Protocol):
    name: str
    blocks: bool
    """Can several steps go to the device at once?"""

    def device(self, asked: str) -> Device:
        """Where `train.device` says to compute; BadInput when that is not there."""
        ...

    def configure(self, config: TrainConfig, device: Device, tf32: bool) -> None:
        """Threads, determinism, tf32; before anything is computed."""
        ...

    def tensor(self, array: Array) -> Any:
        """A tensor with memory of its own, on the device: the array may be overwritten afterwards."""
        ...

    def seed(self, words: Any) -> None:
        """What a step draws without a seed follows from `words` (2,) from here on; where that is possible at all."""
        ...

    def allocating(self) -> AbstractContextManager[None]:
        """Inside, the framework's own errors of memory that ran out are OutOfDeviceMemory."""
        ...

    def compiled(self, function: Function, variables: Sequence[keras.Variable], xla: bool) -> Function:
        """`function` (tensors → nested tensors, which may assign to `variables`), traced once for each shape.

        Raises OutOfDeviceMemory.
        """
        ...

    def gradients(
        self, loss: Callable[[], tuple[Any, Any]], variables: Sequence[keras.Variable], others: Sequence[keras.Variable]
    ) -> tuple[list[Any], Any]:
        """Gradients of the first of what `loss()` returns by `variables` (None: it does not depend on one), and the
        second. `others`: what it may assign to besides."""
        ...

    def tape(self) -> Tape | None:
        """A new one; None where gradients are not taken that way."""
        ...

    def apply(self, optimizer: keras.optimizers.Optimizer, gradients: list[Any], trained: list[keras.Variable]) -> None:
        """The optimizer's update of `trained`."""
        ...

    def over(self, body: Function, stacked: Any) -> Any:
        """`body` for each slice of nested tensors along their first axis, one after another; its outputs, stacked."""
        ...

    def fold(self, body: Callable[[Any, Any], Any], total: Any, count: int) -> Any:
        """`total` (nested tensors) after `total = body(total, i)` for each i below `count`, one after another."""
        ...

    def after(self, tensors: Sequence[Any], then: Callable[[], Any]) -> Any:
        """What `then` returns, computed (and assigned) once all `tensors` are there."""
        ...

    def watch(self, tensor: Any) -> Callable[[], bool]:
        """Has the device computed `tensor`?"""
        ...

    def free(self) -> None:
        """Give memory that nobody uses back to the device, where that can be asked for."""
        ...

    def peak_memory(self, device: Device) -> int: ...

    def held(self, device: Device) -> int:
        """Bytes of the device's memory that the driver and other processes have."""
        ...

    def peak_bytes(self, function: Function, like: tuple[Any, ...]) -> int | None:
        """Most bytes that tensors take at once while `function` (as `compiled` returned it) runs, counted without
        running it; None where that cannot be said. `like`: its arguments, each tensor as (shape, NumPy's dtype)."""
        ...

    def on_gpu(self) -> bool:
        """Does it compute on one?"""
        ...

    def settle(self) -> None:
        """Wait until the device has done all it was given."""
        ...

    def operations(self, function: Function, arguments: tuple[Any, ...]) -> list[Operation]:
        """What `function` is made of; empty where that cannot be said."""
        ...

    def trace(self, folder: Path) -> AbstractContextManager[None]:
        """The backend's own profiler inside; what it found is in `folder` afterwards."""
        ...

    def versions(self) -> dict[str, str]: ...


@cache
def backend() -> Backend:
    """The one that Keras was imported with. Raises BadInput for another than these two."""
    name = keras.backend.backend()
    if name == "tensorflow":
        from runner_core.engines.keras.tensorflow import TensorFlow

        return TensorFlow()
    if name == "jax":
        from runner_core.engines.keras.jax import Jax

        return Jax()
    raise BadInput(f"KERAS_BACKEND is {name}: set it to tensorflow (the default) or jax")
