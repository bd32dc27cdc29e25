"""Measure the parts of a PyTorch trainer's steps.

On a CPU everything is done when a call returns, and the host's clock measures it. On a GPU each mark is an event in the
stream of its work. The parts are what the device did from one mark to the next, gaps included, and nothing waits for
it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from time import perf_counter, perf_counter_ns
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

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
from runner_core.engines.device import chunks
from runner_core.engines.torch.accelerator import free, has_streams, timed_event, wait

if TYPE_CHECKING:
    from runner_core.engines.torch.trainer import TorchTrainer


class TorchPhases:
    """`Phases` for PyTorch."""

    def __init__(self, trainer: TorchTrainer) -> None:
        self._trainer = trainer
        self._clock = _Clock(trainer.device)
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
        wait(self._trainer.device)

    def host_seconds(self, batch: HostBatch, step: int) -> float:
        self.settle()
        begun = perf_counter()
        self._trainer.train_step(_kept(batch), step)
        return perf_counter() - begun

    def loss_seconds(self, batch: HostBatch, step: int, count: int) -> float | None:
        replay, parts = self._trainer.replay(batch, step)
        seconds = replay.seconds(count)
        return None if seconds is None else parts * seconds

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
        if self._trainer.device.type == "cpu":
            os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else it reports on the terminal that there is no GPU
        with torch.profiler.profile(record_shapes=True, acc_events=True) as profiler:
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
            trainer.phase = trainer.learning.phase = clock
            try:
                yield
            finally:
                trainer.phase = trainer.learning.phase = unnoticed
                network._compiled_call_impl = whole


class _Clock:
    """Marks the ends of parts, and returns the time between them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.inside = False
        """True while the project's `step` runs; networks also compute in the backward pass (recomputed layers)."""
        self._marks: list[tuple[str, int, Any]] = []

    def __call__(self, part: str) -> None:
        """Note the end of a part, called by the trainer."""
        self.mark(part)
        self.inside = part in (AUGMENT, BACKWARD)  # after a micro-batch's backward pass comes the next

    def mark(self, part: str) -> None:
        event = None if self._device.type == "cpu" else timed_event(self._device)
        self._marks.append((part, perf_counter_ns(), event))

    def clear(self) -> None:
        """Start the clock."""
        self._marks, self.inside = [], False
        self.mark("")

    def read(self) -> list[dict[str, float]]:
        """Return seconds by part of each step; waits for the device."""
        wait(self._device)
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


DTYPES = {
    "float32": torch.float32,
    "tf32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
"""Dtypes of matrix products, by precision."""


def limits(device: torch.device, precision: str, seconds: float = 0.3) -> Limits:
    """Measure the limits in `precision`, and in bfloat16 if the device can use it; `seconds` for each number."""
    gpu = device.type != "cpu"
    others = ("tf32", "bfloat16") if device.type == "cuda" else ("bfloat16",)
    size = 4096 if gpu else 1024
    flops = {name: matrix_rate(device, name, size, seconds) for name in dict.fromkeys((precision, *others))}
    copied = 2**28 if gpu else 2**26
    return Limits(
        flops,
        copy_rate(device, copied, seconds),
        operation_seconds(device, seconds),
        transfer_rate(device, copied, seconds) if has_streams(device) else None,
    )


def matrix_rate(device: torch.device, precision: str, size: int, seconds: float) -> float:
    """Return the floating-point operations per second of a product of square matrices."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        a, b = (torch.randn(size, size, device=device).to(DTYPES[precision]) for _ in range(2))
        out = torch.empty_like(a)
        return 2 * size**3 / min(chunks(lambda: torch.mm(a, b, out=out), partial(wait, device), 1, seconds))
    finally:
        torch.set_float32_matmul_precision(before)


def copy_rate(device: torch.device, size: int, seconds: float) -> float:
    """Return the bytes per second, read and written, of a copy of `size` bytes within the device."""
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / min(chunks(lambda: target.copy_(source), partial(wait, device), 1, seconds))


def transfer_rate(device: torch.device, size: int, seconds: float) -> float:
    """Return the bytes per second from page-locked memory to a GPU."""
    host = torch.zeros(size, dtype=torch.uint8, pin_memory=True)
    there = torch.empty_like(host, device=device)
    return size / min(chunks(lambda: there.copy_(host, non_blocking=True), partial(wait, device), 1, seconds))


def operation_seconds(device: torch.device, seconds: float) -> float:
    """Return the seconds of the smallest operation, in a chain that is also differentiated."""
    one = torch.ones(1, device=device, requires_grad=True)

    def some() -> None:
        value = one
        for _ in range(50):
            value = value * 1.5
        value.backward()

    count = len(operations(some))
    return min(chunks(some, partial(wait, device), 1, seconds)) / count


def operations(work: Callable[[], None]) -> list[Operation]:
    """Return every operation on tensors that `work` starts, in order, without views, which do nothing.

    Foreign kernels (Triton, extensions) count only by their tensors.
    """
    with _Counted() as counted:
        work()
    return counted.operations


class _Counted(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Operation] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        view = any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)
        if not view:
            count = flop_registry.get(func._overloadpacket)
            flops = 0 if count is None else int(count(*args, **kwargs, out_val=out))
            tensors = (leaf for leaf in tree_leaves((args, kwargs, out)) if isinstance(leaf, torch.Tensor))
            self.operations.append(Operation(flops, sum(t.numel() * t.element_size() for t in tensors)))
        return out
