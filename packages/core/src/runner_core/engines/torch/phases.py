"""Measure the parts of a PyTorch trainer's steps.

On a CPU everything is done when a call returns, and the host's clock measures it. On a GPU each mark is an event in the
stream of its work. The parts are what the device did from one mark to the next, gaps included, and nothing waits for
it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from time import perf_counter, perf_counter_ns
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from runner_core.contract import HostBatch
from runner_core.contract.phases import (
    AUGMENT,
    BACKWARD,
    FORWARD,
    LOSS,
    WAIT,
    Limits,
    LossCost,
    Operation,
    unnoticed,
)
from runner_core.engines.torch.limits import limits, operations
from runner_core.engines.torch.oom import free

if TYPE_CHECKING:
    from runner_core.engines.torch.trainer import TorchTrainer


class TorchPhases:
    """`Phases` for PyTorch."""

    def __init__(self, trainer: TorchTrainer) -> None:
        self._trainer = trainer
        self._cuda = trainer.device.type == "cuda"
        self._clock = _Clock(self._cuda)
        self._watched = ExitStack()
        self._outer: list[nn.Module] = [trainer.network]
        """Modules of the network that the project's `step` calls itself; the others run inside these."""

    def prepare(self, batch: HostBatch, step: int) -> int:
        """Take one step to find the modules that `step` calls; a compiled network is called as a whole."""
        if self._compiled:
            return 0
        found: dict[nn.Module, None] = {}
        with self._watching(list(self._trainer.network.modules()), found.setdefault):
            self._trainer.train_step(_kept(batch), step)
        self._outer = list(found)
        return 1

    def watch(self) -> None:
        self._watched.enter_context(self._watching(self._outer))
        self._clock.clear()

    def take(self) -> list[dict[str, float]]:
        self._watched.close()
        return self._clock.read()

    def settle(self) -> None:
        if self._cuda:
            torch.cuda.synchronize(self._trainer.device)

    def host_seconds(self, batch: HostBatch, step: int) -> float:
        self.settle()
        begun = perf_counter()
        self._trainer.train_step(_kept(batch), step)
        return perf_counter() - begun

    def losses(self, batch: HostBatch, step: int) -> dict[str, LossCost]:
        """Return the cost of each term with its gradient at the network's output; `loss` is all of them together.

        Terms without a graph are left out.
        """
        try:
            replay, parts = self._trainer.replay(batch, step)
            terms = replay.terms()
        except torch.OutOfMemoryError:
            return {}
        return {name: LossCost(parts * (own + back), norm, own > 0) for name, (own, back, norm) in terms.items()}

    def operations(self, batch: HostBatch, step: int) -> list[Operation]:
        """Return the operations of a step, or [] for a compiled network, whose operations cannot be seen here."""
        return [] if self._compiled else operations(lambda: self._trainer.train_step(_kept(batch), step))

    def limits(self, precision: str) -> Limits:
        free(self._trainer.device)
        return limits(self._trainer.device, precision)

    @contextmanager
    def trace(self, folder: Path) -> Iterator[None]:
        """Write trace.json for chrome://tracing, Perfetto, and TensorBoard's profiler plugin."""
        kinds = [torch.profiler.ProfilerActivity.CPU]
        if self._cuda:
            kinds.append(torch.profiler.ProfilerActivity.CUDA)
        else:
            os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else it reports on the terminal that there is no GPU
        with torch.profiler.profile(activities=kinds, record_shapes=True, acc_events=True) as profiler:
            yield
            self.settle()
        profiler.export_chrome_trace(str(folder / "trace.json"))

    @property
    def _compiled(self) -> bool:
        return self._trainer.network._compiled_call_impl is not None

    @contextmanager
    def _watching(
        self, modules: Sequence[nn.Module], called: Callable[[nn.Module], Any] = lambda module: None
    ) -> Iterator[None]:
        """Send the trainer's marks, and those of the outermost `modules`, to the clock; `called` gets these modules."""
        trainer, clock = self._trainer, self._clock
        network, depth = trainer.network, 0

        def before(*_: Any) -> None:
            nonlocal depth
            if clock.inside:
                if depth == 0:
                    clock.mark(LOSS)
                depth += 1

        def after(module: nn.Module, *_: Any) -> None:
            nonlocal depth
            if clock.inside:
                depth -= 1
                if depth == 0:
                    clock.mark(FORWARD)
                    called(module)

        whole = network._compiled_call_impl

        def compiled(*inputs: Any, **options: Any) -> Any:
            before()
            output = whole(*inputs, **options)
            after(network)
            return output

        with ExitStack() as hooks:
            if whole is None:
                for module in modules:
                    hooks.callback(module.register_forward_pre_hook(before).remove)
                    hooks.callback(module.register_forward_hook(after).remove)
            else:  # hooks would cause a new compilation
                network._compiled_call_impl = compiled
            trainer.phase = clock
            try:
                yield
            finally:
                trainer.phase, network._compiled_call_impl = unnoticed, whole


class _Clock:
    """Marks the ends of parts, and returns the time between them."""

    def __init__(self, cuda: bool) -> None:
        self._cuda = cuda
        self.inside = False
        """True while the project's `step` runs; networks also compute in the backward pass (recomputed layers)."""
        self._marks: list[tuple[str, int, Any]] = []

    def __call__(self, part: str) -> None:
        """Note the end of a part, called by the trainer."""
        self.mark(part)
        self.inside = part in (AUGMENT, BACKWARD)  # after a micro-batch's backward pass comes the next

    def mark(self, part: str) -> None:
        event = None
        if self._cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
        self._marks.append((part, perf_counter_ns(), event))

    def clear(self) -> None:
        """Start the clock."""
        self._marks, self.inside = [], False
        self.mark("")

    def read(self) -> list[dict[str, float]]:
        """Return seconds by part of each step; waits for the device."""
        if self._cuda:
            torch.cuda.synchronize()
        steps: list[dict[str, float]] = []
        for (_, begun, start), (part, ended, stop) in pairwise(self._marks):
            seconds = (ended - begun) / 1e9 if stop is None else start.elapsed_time(stop) / 1e3
            if part == WAIT or not steps:
                steps.append({})
            steps[-1][part] = steps[-1].get(part, 0.0) + seconds
        self._marks = []
        return steps


def _kept(batch: HostBatch) -> HostBatch:
    """Return the batch in a form from which the trainer may take any number of steps."""
    return HostBatch(batch.arrays, batch.count, lambda: None)
