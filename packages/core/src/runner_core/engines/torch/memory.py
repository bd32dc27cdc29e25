"""Memory of a training: what it takes, counted before the first step, and micro-batches when it runs out."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from runner_core.base.errors import BadInput
from runner_core.config import TrainConfig
from runner_core.contract import Progress, Tensors
from runner_core.contract.footprint import Footprint
from runner_core.contract.project import Project
from runner_core.engines.memory import micro_batch, network_too_large, no_room, smaller, too_large, wrong_first_axis
from runner_core.engines.torch import ranks
from runner_core.engines.torch.accelerator import (
    allocated,
    counts_memory,
    forget_peak,
    free,
    peak,
    runs_out,
    taken_by_others,
)
from runner_core.engines.torch.checkpoint import read_generators, write_generators
from runner_core.engines.torch.shards import own
from runner_core.engines.torch.weights import Average

Backward = Callable[[Tensors, Progress, float], dict[str, Any]]
"""Adds `share` times the gradients of the mean loss over a batch; returns loss and terms, times `share`."""


class Never(Exception):
    """Stands for the errors to retry if nothing is retried.

    With several processes, the others are in the middle of the same step.
    """


class Rewind:
    """A copy of what a step changes besides gradients: buffers (BatchNorm's statistics) and default generators."""

    def __init__(self, network: nn.Module, device: torch.device) -> None:
        self._device = device
        self._buffers = list(network.buffers())
        self._kept: list[torch.Tensor] = []
        self._generators: dict[str, Any] = {}

    @torch.no_grad()
    def mark(self) -> None:
        self._kept = [buffer.clone() for buffer in self._buffers]
        self._generators = read_generators(self._device)

    @torch.no_grad()
    def back(self) -> None:
        for buffer, kept in zip(self._buffers, self._kept, strict=True):
            buffer.copy_(kept)
        write_generators(self._generators, self._device)


class MicroBatches:
    """Computes gradients of a batch in parts of `size` samples, and in smaller parts once memory has run out.

    `forget` drops the gradients so far. `say` gets a message when the size shrinks. All micro-batches of a step but the
    last are computed in the context of `withholding`.
    """

    def __init__(
        self,
        project: Project,
        config: TrainConfig,
        network: nn.Module,
        device: torch.device,
        backward: Backward,
        forget: Callable[[], None],
        say: Callable[[str], None],
        withholding: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Set the size; raise BadInput for `train.accumulate` in a project whose batches may not be split."""
        self.size = micro_batch(project, config)
        self._batch_size, self._alone = config.batch_size, ranks.count() == 1
        again = project.learning().splittable and self._alone and runs_out(device)
        self._rewind = Rewind(network, device) if again else None
        self._device, self._backward, self._forget, self._say = device, backward, forget, say
        self._withholding = withholding

    def gradients(self, tensors: Tensors, count: int, progress: Progress) -> dict[str, Any]:
        """Add the gradients of the mean loss over `count` samples; return loss and terms."""
        while True:
            if self._rewind is not None:
                self._rewind.mark()
            try:
                if count <= self.size:
                    return self._backward(tensors, progress, 1.0)
                return self._in_parts(tensors, count, progress)
            except torch.OutOfMemoryError:
                pass  # retried outside this block: the exception keeps the failed step's memory alive
            self._shrink(tensors, count, progress)

    def _in_parts(self, tensors: Tensors, count: int, progress: Progress) -> dict[str, Any]:
        """Compute micro-batches, each weighted by its number of samples (the last may have fewer)."""
        total: dict[str, Any] = {}
        for begin in range(0, count, self.size):
            end = min(count, begin + self.size)
            with nullcontext() if end == count else self._withholding():
                values = self._backward(part(tensors, count, begin, end), progress, (end - begin) / count)
            total = {name: total.get(name, 0.0) + value for name, value in values.items()}
        return total

    def _shrink(self, tensors: Tensors, count: int, progress: Progress) -> None:
        """Halve the micro-batch and undo the failed step; raise BadInput if that is not possible."""
        self._free()
        if not self._alone:
            raise no_room("the network", self._batch_size)
        tried = min(self.size, count)
        if self._rewind is None or tried == 1:
            raise too_large(count, self._largest(tensors, count, tried // 2, progress))
        self._rewind.back()
        self.size = (tried + 1) // 2
        self._say(smaller(tried, self.size, progress.step + 1))

    def _largest(self, tensors: Tensors, count: int, size: int, progress: Progress) -> int | None:
        """Return the largest of size, size / 2, … samples that fit in a step; 0 for none, None for unknown."""
        while size:
            try:
                self._backward(part(tensors, count, 0, size), progress, 1.0)
                return size
            except torch.OutOfMemoryError:
                size //= 2
            except (BadInput, ValueError, RuntimeError):  # BatchNorm needs two samples, say
                return None
            self._free()
        return 0

    def _free(self) -> None:
        self._forget()
        free(self._device)


def part(tensors: Tensors, count: int, begin: int, end: int) -> Tensors:
    """Return samples begin…end of a batch of `count`; raise BadInput if a tensor's first axis is not the batch's."""
    for name, tensor in tensors.items():
        if isinstance(tensor, torch.Tensor) and tensor.ndim and len(tensor) != count:
            raise wrong_first_axis(name, tensor.shape, count)
    return {
        name: tensor[begin:end] if isinstance(tensor, torch.Tensor) and tensor.ndim else tensor
        for name, tensor in tensors.items()
    }


@contextmanager
def network_fits() -> Iterator[None]:
    """Report a lack of memory while a network is placed on the device, before any batch is involved."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise network_too_large() from None


Loss = Callable[[int], torch.Tensor]
"""Returns the loss of that many samples, with its graph; the call starts from a batch in host memory."""


def footprint(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    trained: list[nn.Parameter],
    average: Average | None,
    device: torch.device,
    micro: int,
    loss: Loss | None,
) -> Footprint:
    """Measure the memory of training; with `loss` None no step is measured.

    Buffers and generators are restored afterwards.
    """
    weights = _bytes({*network.parameters(), *network.buffers()})
    gradients = _bytes(p for p in trained if p.requires_grad)
    known: dict[str, Any] = {
        "weights": weights,
        "gradients": gradients,
        "optimizer": _optimizer_bytes(optimizer),
        "average": 0 if average is None else _bytes(average.state().values()),
        "micro": micro,
        "held": taken_by_others(device),
    }
    if loss is None:
        return Footprint(**known)
    taken: dict[int, int] = {}
    too_large = False
    with _undisturbed(network, device):
        for samples in _sizes(micro):
            try:
                taken[samples] = _measured(loss, samples, network, trained, device)
            except torch.OutOfMemoryError:
                too_large = True
                break
            except Exception:  # for example, one sample is too few for BatchNorm; the first step reports any real error
                continue
            finally:
                free(device)
            if len(taken) == 2:
                break
    if not taken:
        return Footprint(**known, too_large=True, how="measured") if too_large else Footprint(**known)
    (fewest, first), (most, last) = min(taken.items()), max(taken.items())
    # A single measurement cannot show what is constant, so all counts as growing with the batch.
    sample = (last - first) // (most - fewest) if most > fewest else max(0, last - gradients) // most
    fixed = max(0, last - most * sample - gradients)
    return Footprint(**known, fixed=fixed, sample=max(0, sample), how="measured")


def _sizes(micro: int) -> tuple[int, ...]:
    """Return batch sizes to try, smallest first, until two succeed; if two samples do not fit, one may."""
    return tuple(size for size in (1, 2, 4) if size <= micro)


def _measured(loss: Loss, samples: int, network: nn.Module, trained: list[nn.Parameter], device: torch.device) -> int:
    """Return the peak bytes of a forward and backward pass of `samples`: activations, gradients, the batch."""
    learned = [p for p in trained if p.requires_grad]
    if counts_memory(device):
        before = allocated(device)
        forget_peak(device)
        torch.autograd.grad(loss(samples), learned, allow_unused=True)
        most = peak(device) - before
        forget_peak(device)  # training's peak counts from here
        return most
    with Live([*network.parameters(), *network.buffers()]) as live:
        torch.autograd.grad(loss(samples), learned, allow_unused=True)
    return live.peak


class Live(TorchDispatchMode):
    """Tracks in `peak` the most bytes that tensors made inside this context hold at once.

    Memory that kernels allocate for themselves is not counted.
    """

    def __init__(self, known: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known = {tensor.untyped_storage()._cdata for tensor in known}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._see(leaf.untyped_storage())
        return result

    def _see(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._known:
            return
        self._known.add(key)
        size = storage.nbytes()
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._gone, key, size).atexit = False

    def _gone(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


@contextmanager
def _undisturbed(network: nn.Module, device: torch.device) -> Iterator[None]:
    """Restore buffers, generators and modes after this context, and avoid kernel search and compilation inside.

    Both take memory (and time) of their own.
    """
    rewind, search = Rewind(network, device), torch.backends.cudnn.benchmark
    rewind.mark()
    torch.backends.cudnn.benchmark = False
    try:
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        torch.backends.cudnn.benchmark = search
        rewind.back()


def _optimizer_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Return the bytes of the optimizer's state after a step.

    They are measured on a twin of the optimizer with parameters of the same shapes but without memory. If that fails,
    Adam's two averages are assumed.
    """
    found = [value for state in optimizer.state.values() for value in state.values()]
    if found:
        return _bytes(v for v in found if isinstance(v, torch.Tensor))
    try:
        return _of_twin(optimizer)
    except Exception:  # an optimizer that is made or works differently
        return 2 * _bytes(p for group in optimizer.param_groups for p in group["params"] if p.requires_grad)


def _of_twin(optimizer: torch.optim.Optimizer) -> int:
    plain = {"fused": None, "foreach": False, "capturable": False}
    groups = []
    for group in optimizer.param_groups:
        shapes = [nn.Parameter(torch.empty_like(p, device="meta")) for p in group["params"] if p.requires_grad]
        others = {name: value for name, value in group.items() if name != "params"}
        if shapes:
            groups.append({**others, **{name: plain[name] for name in plain if name in others}, "params": shapes})
    twin: Any = type(optimizer)(groups)
    for group in twin.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.empty_like(parameter)
    twin.step()
    values = [value for state in twin.state.values() for value in state.values()]
    return _bytes(v for v in values if isinstance(v, torch.Tensor))


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of tensors; of sharded tensors (FSDP) only this process's part."""
    return sum(t.numel() * t.element_size() for t in map(own, tensors))
