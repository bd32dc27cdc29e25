"""The devices of this process, each of which has the network and a share of every batch (`tf.distribute`).

A step is traced once for each device. Each computes gradients of its samples; their means, like those of the numbers
and of BatchNorm's statistics, go to all, and each device updates its own copy of the weights in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import keras

from runner_core.contract import Tensors


class Replicas(Protocol):
    """The way in which a step is computed on the devices of this process."""

    count: int

    def holding(self) -> AbstractContextManager[Any]:
        """Make the variables that are made inside on every device."""
        ...

    def changing(self) -> AbstractContextManager[Any]:
        """Do the same; what is not trained may change on each device by itself, until `mean` makes it equal."""
        ...

    def prepare(self, optimizer: keras.optimizers.Optimizer) -> None:
        """Let the optimizer take gradients that `mean` has joined."""
        ...

    def each(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that calls `step` on each device, with the same arguments, and returns the first result."""
        ...

    def share(self, arrays: Tensors) -> Tensors:
        """Return the samples of the device that is computing."""
        ...

    def stream(self, words: Any) -> Any:
        """Return the random seed (2,) of the device that is computing; the first device has `words`."""
        ...

    def mean(self, tensors: Sequence[Any]) -> list[Any]:
        """Return the means of each device's tensors over all devices, on each device."""
        ...

    def changed(self, variables: Iterable[keras.Variable]) -> list[keras.Variable]:
        """Return those that differ between devices after a step, and whose mean is to be taken."""
        ...

    def spread(self, variables: Iterable[keras.Variable]) -> None:
        """Give each device its own random streams, after the variables were set to those of the first one."""
        ...


class One:
    """A single device: nothing is put in between."""

    count = 1

    def holding(self) -> AbstractContextManager[Any]:
        return nullcontext()

    changing = holding

    def prepare(self, optimizer: keras.optimizers.Optimizer) -> None:
        return None

    def each(self, step: Callable[..., Any]) -> Callable[..., Any]:
        return step

    def share(self, arrays: Tensors) -> Tensors:
        return arrays

    def stream(self, words: Any) -> Any:
        return words

    def mean(self, tensors: Sequence[Any]) -> list[Any]:
        return list(tensors)

    def changed(self, variables: Iterable[keras.Variable]) -> list[keras.Variable]:
        return []

    def spread(self, variables: Iterable[keras.Variable]) -> None:
        return None
