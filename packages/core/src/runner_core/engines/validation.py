"""The validation of a network under training, its metrics, and a number that marks a sample's decision."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Protocol

import numpy as np

from runner_core.base.errors import BadInput
from runner_core.config import RunConfig
from runner_core.contract import Array, Arrays, Divisible, HostBatch, Metric, Step, Tensors
from runner_core.contract.project import Project


class Totals(Protocol):
    """Sums over the batches of one validation, which stay on the device until they are read."""

    predicted: bool
    """True if there was any prediction for metrics to read."""

    def add(self, step: Step, count: int) -> None:
        """Add a batch of `count` samples."""
        ...

    def read(self) -> dict[str, float]:
        """Return mean loss and terms, and extremes of the decision, by name; waits for the device."""
        ...


class Validation:
    """Computes a validation, in smaller batches once memory has run out.

    In evaluation mode samples do not affect each other, so the size of a batch does not matter.
    """

    def __init__(
        self,
        metrics: Sequence[Metric],
        compute: Callable[[HostBatch], tuple[Tensors, Step]],
        out_of_memory: type[Exception],
        free: Callable[[], None],
        say: Callable[[str], None],
        exchange: Callable[[Arrays], Sequence[Arrays]] | None = None,
    ) -> None:
        """Store the metrics, and the functions that compute and free.

        `compute` takes a batch (or a part of it) to the device and through the network. `free` gives unused memory back
        to the device. `exchange` returns the arrays of all processes, if each validates a share.
        """
        self._exchange = exchange
        self._metrics = metrics
        self._compute, self._out_of_memory, self._free, self._say = compute, out_of_memory, free, say
        self._size: int | None = None

    def __call__(
        self, batches: Iterable[HostBatch], totals: Totals, done: Callable[[HostBatch], None]
    ) -> dict[str, float]:
        """Return totals and metrics over all batches; `done` releases a batch.

        Raises BadInput if one sample is too large, or if two metrics have the same name.
        """
        for metric in self._metrics:
            metric.reset()
        for batch in batches:
            if not batch.count:  # where weights are sharded, all processes must call the network equally often
                self._compute(batch._replace(count=1))
            for tensors, step, count in self._parts(batch):
                totals.add(step, count)
                if step.prediction is not None:
                    for metric in self._metrics:
                        metric.update(step.prediction, tensors)
                del tensors, step  # the next part needs their memory
            done(batch)
        if self._exchange is not None:
            self._join(totals, self._exchange)
        return read_metrics(self._metrics if totals.predicted else (), totals.read())

    def _join(self, totals: Totals, exchange: Callable[[Arrays], Sequence[Arrays]]) -> None:
        """Replace the totals and metrics of this process's share by those of all."""
        parts = [part for part in (totals, *self._metrics) if isinstance(part, Divisible)]
        own = {f"{number}.{name}": array for number, part in enumerate(parts) for name, array in part.state().items()}
        every = exchange(own)
        for number, part in enumerate(parts):
            start = f"{number}."
            part.merge([{n.removeprefix(start): a for n, a in one.items() if n.startswith(start)} for one in every])

    def _parts(self, batch: HostBatch) -> Iterator[tuple[Tensors, Step, int]]:
        """Yield tensors, step and number of samples of each part of a batch."""
        begin = 0
        while begin < batch.count:
            end = batch.count if self._size is None else min(batch.count, begin + self._size)
            arrays = {name: array[begin:end] for name, array in batch.arrays.items()}
            try:
                tensors, step = self._compute(HostBatch(arrays, end - begin, batch.release))
            except self._out_of_memory:
                pass  # retried outside this block: the exception keeps the failed step's memory alive
            else:
                yield tensors, step, end - begin
                del tensors, step  # the next part needs their memory
                begin = end
                continue
            self._shrink(end - begin)

    def _shrink(self, tried: int) -> None:
        self._free()
        if tried == 1:
            raise BadInput("validation runs out of device memory even with validate.batch_size 1: use a smaller model")
        self._size = (tried + 1) // 2
        self._say(
            f"out of device memory with {tried} samples at once in validation; from here on it goes in batches of "
            f"{self._size} (validate.batch_size)"
        )


def default_metrics(project: Project, config: RunConfig) -> list[Metric]:
    """Return the project's own metrics."""
    return list(project.metrics())


def read_metrics(metrics: Iterable[Metric], known: Mapping[str, float]) -> dict[str, float]:
    """Return `known` and the values of all metrics: the only read from the device.

    Raises BadInput if two metrics have the same name.
    """
    values = dict(known)
    for metric in metrics:
        for name, value in metric.compute().items():
            if name in values:
                raise BadInput(f"two metrics are called {name!r}; rename one of them")
            values[name] = float(value)
    return values


@lru_cache(maxsize=8)
def mark_weights(shape: Sequence[int]) -> Array:
    """Return weights (float32, `shape`) between -1 and 1 without a pattern, the same in every process."""
    count = int(np.prod(shape, dtype=np.int64))
    scattered = np.arange(1, count + 1, dtype=np.uint32) * np.uint32(2654435761)  # Knuth's multiplicative hash
    scattered ^= scattered >> np.uint32(15)
    scattered *= np.uint32(2246822519)
    return (scattered.astype(np.float32) / np.float32(2**31) - 1).reshape(shape)
