"""Interface to TensorFlow and JAX: devices, compilation, gradients, memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import keras

from runner_core.config import TrainConfig
from runner_core.contract import Array, Device
from runner_core.contract.phases import Operation
from runner_core.contract.team import Place

if TYPE_CHECKING:
    from runner_core.engines.keras.replicas import Replicas

Function = Callable[..., Any]


class OutOfDeviceMemory(Exception):
    """The device has not enough free memory for a computation."""


class Tape(Protocol):
    """A context manager that records what is computed from the tensors that it watches."""

    def __enter__(self) -> Any: ...

    def __exit__(self, *error: Any) -> Any: ...

    def watch(self, tensor: Any) -> None: ...

    def gradient(self, target: Any, sources: Any, output_gradients: Any) -> Any:
        """Return gradients, None if `target` does not depend on `sources`; may be called more than once."""
        ...


class Backend(Protocol):
    name: str
    blocks: bool
    """True if several steps can go to the device at once."""

    def device(self, asked: str) -> Device:
        """Return the device that `train.device` names; raise BadInput if it does not exist."""
        ...

    def spread(self, asked: str, count: int) -> None:
        """Let this process compute on `count` devices; raise BadInput if they are not there. Precedes `device`."""
        ...

    def take(self, asked: str, place: Place) -> None:
        """Let this one of several processes compute on a device of its own; raise BadInput if there is none.

        Precedes `device`.
        """
        ...

    def meet(self, addresses: Sequence[str], number: int, patience: float) -> str:
        """Compute as process `number` of those at these addresses; precedes everything but `device`.

        Returns "", or which process could not be reached within `patience` seconds, and why.
        """
        ...

    def unreachable(self, error: BaseException) -> bool:
        """Return True if the error means that another process is gone."""
        ...

    def replicas(self, device: Device, count: int) -> Replicas:
        """Return how a step is computed on `count` devices like this one."""
        ...

    def configure(self, config: TrainConfig, device: Device, tf32: bool) -> None:
        """Set threads, determinism and tf32 before anything is computed."""
        ...

    def tensor(self, array: Array) -> Any:
        """Return a tensor with its own memory on the device, so that the array may be overwritten afterwards."""
        ...

    def seed(self, words: Any) -> None:
        """Seed what a step draws without a seed from `words` (2,), if the backend can."""
        ...

    def allocating(self) -> AbstractContextManager[None]:
        """Turn the framework's own out-of-memory errors raised inside into OutOfDeviceMemory."""
        ...

    def compiled(self, function: Function, variables: Sequence[keras.Variable], xla: bool) -> Function:
        """Compile `function` (tensors → nested tensors, may assign to `variables`), traced once for each shape.

        The compiled function raises OutOfDeviceMemory.
        """
        ...

    def gradients(
        self, loss: Callable[[], tuple[Any, Any]], variables: Sequence[keras.Variable], others: Sequence[keras.Variable]
    ) -> tuple[list[Any], Any]:
        """Return gradients by `variables` of the first value that `loss()` returns, and the second value.

        A gradient is None if the loss does not depend on its variable. `loss` may also assign to `others`.
        """
        ...

    def tape(self) -> Tape | None:
        """Return a new tape, or None if gradients are not computed that way."""
        ...

    def apply(self, optimizer: keras.optimizers.Optimizer, gradients: list[Any], trained: list[keras.Variable]) -> None:
        """Update `trained` with the optimizer."""
        ...

    def over(self, body: Function, stacked: Any) -> Any:
        """Call `body` for each slice of nested tensors along their first axis, one by one; return stacked outputs."""
        ...

    def fold(self, body: Callable[[Any, Any], Any], total: Any, count: int) -> Any:
        """Apply `total = body(total, i)` for each i below `count`, in order, and return `total` (nested tensors)."""
        ...

    def after(self, tensors: Sequence[Any], then: Callable[[], Any]) -> Any:
        """Return the result of `then`, computed (and assigned) once all `tensors` exist."""
        ...

    def watch(self, tensor: Any) -> Callable[[], bool]:
        """Return a function that tells if the device has computed `tensor`."""
        ...

    def free(self) -> None:
        """Give unused memory back to the device, if the backend can."""
        ...

    def peak_memory(self, device: Device) -> int: ...

    def held(self, device: Device) -> int:
        """Return the bytes of the device's memory that the driver and other processes hold."""
        ...

    def peak_bytes(self, function: Function, like: tuple[Any, ...]) -> int | None:
        """Return the most bytes that tensors take at once while `function` runs, without running it, or None.

        `function` is a result of `compiled`. `like` holds its arguments, each tensor as (shape, NumPy's dtype). None
        means that the backend cannot tell.
        """
        ...

    def on_gpu(self) -> bool:
        """Return True if the backend computes on a GPU."""
        ...

    def settle(self) -> None:
        """Wait until the device has done all its work."""
        ...

    def operations(self, function: Function, arguments: tuple[Any, ...]) -> list[Operation]:
        """Return the operations of `function`, or [] if the backend cannot tell."""
        ...

    def trace(self, folder: Path) -> AbstractContextManager[None]:
        """Run the backend's own profiler inside, and write its results into `folder`."""
        ...

    def versions(self) -> dict[str, str]: ...
