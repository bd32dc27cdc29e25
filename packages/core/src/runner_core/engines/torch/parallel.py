"""How several processes share one network: DDP and FSDP."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import torch
from torch import distributed, nn
from torch.func import functional_call

from runner_core.base.errors import BadInput
from runner_core.config import TrainConfig
from runner_core.contract import Array, Precision, Step, Tensors
from runner_core.contract.project import Project
from runner_core.contract.start import StartWeights
from runner_core.engines.torch.start import start_from

_BYTES_A_WEIGHT = 16
"""Bytes of a float32 weight, its gradient, and Adam's two averages."""
_SHARE_OF_MEMORY = 0.25
"""Share of a device's memory that these may take before `auto` shards them."""


class Parallel(Protocol):
    """Way to run functions on the network.

    `train` and `evaluate` call `function(*arguments)`, which computes with the network. `read` calls a function that
    reads its weights and computes nothing.
    """

    name: str
    unused: list[str] | None
    """Names of the weights that the first step left out in some process; None if it is not known."""

    def train(self, function: Callable[..., Any], *arguments: Any) -> Any: ...

    def evaluate(self, function: Callable[..., Any], *arguments: Any) -> Any: ...

    def read(self, function: Callable[..., Any], *arguments: Any) -> Any: ...

    def withholding(self) -> AbstractContextManager[None]:
        """Return a context in which gradients are not exchanged yet: another micro-batch of the step follows."""
        ...

    def settle(self, unused: Sequence[str] | None = None) -> None:
        """Finish the gradients of the first step; `unused` is what it found if it was in an earlier process."""
        ...

    def check(self) -> None:
        """Raise BadInput if the gradients of a step are not those of all processes."""
        ...


class Single:
    """One process: functions are called directly."""

    name = "single"
    unused: list[str] | None = None

    def train(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    evaluate = read = train

    def withholding(self) -> AbstractContextManager[None]:
        return nullcontext()

    def settle(self, unused: Sequence[str] | None = None) -> None:
        return None

    def check(self) -> None:
        return None


class Replicated:
    """Every process has the whole network, and the mean of all gradients (DistributedDataParallel).

    A weight that a step does not use (a mask token when nothing is masked) has to be found, or DDP waits for its
    gradient. The search takes time in every step, so the first step, computed without DDP, tells whether to search.

    Args:
        network: The network.
        unused: `exchange.unused`.
        at_once: Exchange gradients once per step, not after each micro-batch.
    """

    name = "ddp"

    def __init__(self, network: nn.Module, unused: str = "auto", at_once: bool = True) -> None:
        self._around = _Around(network, _only_to_learn_from)
        self._learned = {name: p for name, p in network.named_parameters() if p.requires_grad}
        self._at_once, self._left_out = at_once, set[str]()
        self.unused: list[str] | None = None
        self._wrapped: nn.parallel.DistributedDataParallel | None = None
        if unused != "auto":
            self._wrap(unused == "find")
        else:
            for tensor in (*network.parameters(), *network.buffers()):  # as DDP does
                _in_place(tensor.detach(), lambda whole: distributed.broadcast(whole, 0))

    def _wrap(self, finds: bool) -> None:
        self._finds = finds
        if finds:  # This parameter is never used, so PyTorch does not warn that all are.
            self._around.unused = nn.Parameter(torch.zeros(1, device=next(self._around.parameters()).device))
        self._wrapped = nn.parallel.DistributedDataParallel(self._around, find_unused_parameters=finds)

    def train(self, function: Callable[..., Any], *arguments: Any) -> Any:
        if self._wrapped is not None:
            return self._wrapped(function, *arguments)
        step = self._around(function, *arguments)
        if isinstance(step, Step):
            reached = _reached(step.loss)
            self._left_out |= {name for name, parameter in self._learned.items() if id(parameter) not in reached}
        return step

    def evaluate(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    read = evaluate

    @contextmanager
    def withholding(self) -> Iterator[None]:
        with self._wrapped.no_sync() if self._wrapped is not None and self._at_once else nullcontext():
            yield

    @torch.no_grad()
    def settle(self, unused: Sequence[str] | None = None) -> None:
        if self._wrapped is not None:
            return
        if unused is None:
            unused = self._averaged()
        self.unused = list(unused)
        self._wrap(bool(unused))

    def _averaged(self) -> list[str]:
        """Average the gradients of the first step; return the names of the weights that some process left out."""
        learned, count = self._learned, distributed.get_world_size()
        flags = [[name in self._left_out for name in learned], [p.grad is None for p in learned.values()]]
        counts = torch.tensor(flags, dtype=torch.int32, device=next(iter(learned.values())).device)
        distributed.all_reduce(counts)
        left_out, without = counts.tolist()
        for parameter, processes in zip(learned.values(), without, strict=True):
            if processes < count:  # otherwise the optimizer leaves it alone, as with one process
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                _in_place(parameter.grad.div_(count), distributed.all_reduce)
        return [name for name, processes in zip(learned, left_out, strict=True) if processes]

    def check(self) -> None:
        if self._wrapped is None or self._finds:
            return
        try:
            self._wrapped.reducer._rebuild_buckets()  # as the next step would, which is too late: this one is used now
        except RuntimeError as error:
            names = [name for name, parameter in self._learned.items() if parameter.grad is None]
            some = ", ".join(names[:4]) + (" …" if len(names) > 4 else "") if names else "some of the weights"
            raise BadInput(
                f"process {distributed.get_rank()} has no gradient of {some} in this step, which every step was to use "
                "(exchange.unused none, or the first step used all): --resume the run with --exchange.unused find"
            ) from error


class Sharded:
    """Every process keeps a part of each weight, its gradient and its optimizer state (`fully_shard`).

    The weights of each of the project's `shard_units` are gathered while it computes, the other weights for the whole
    step.
    """

    name = "fsdp"
    unused: list[str] | None = None

    def __init__(self, project: Project, network: nn.Module, device: torch.device, precision: Precision) -> None:
        """Shard the network; raise BadInput for weights that cannot be sharded."""
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        if precision.loss_scaling:
            raise BadInput("train.strategy fsdp does not go with precision.mode float16: use bfloat16, or ddp")
        for name, parameter in network.named_parameters():
            if parameter.ndim == 0:
                raise BadInput(f"train.strategy fsdp cannot divide {name}, a single number: give it the shape (1,)")
            parameter.data = parameter.data.contiguous()  # it knows no other layout (channels last)
        mesh = init_device_mesh(device.type, (distributed.get_world_size(),))
        self._network = network
        self._at_once = project.config.exchange.gradients == "step"
        self._root: Any = _Around(network)
        shard_units = project.learning().shard_units
        for unit in () if shard_units is None else shard_units(network):
            fully_shard(unit, mesh=mesh)
        # Always reshard: otherwise the root's weights would stay whole after a validation, and not show changes.
        fully_shard(self._root, mesh=mesh, reshard_after_forward=True)

    def train(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self._root(function, *arguments)

    evaluate = train

    @contextmanager
    def withholding(self) -> Iterator[None]:
        if not self._at_once:
            yield
            return
        self._root.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            self._root.set_requires_gradient_sync(True)

    def settle(self, unused: Sequence[str] | None = None) -> None:
        return None

    def check(self) -> None:
        return None

    def read(self, function: Callable[..., Any], *arguments: Any) -> Any:
        named = {**dict(self._network.named_parameters()), **dict(self._network.named_buffers())}
        whole = {f"network.{name}": gathered(tensor.detach()) for name, tensor in named.items()}
        return functional_call(_Around(self._network), whole, (function, *arguments))


class _Around(nn.Module):
    """A module whose forward pass runs any function on the network."""

    def __init__(self, network: nn.Module, returned: Callable[[Any], Any] = lambda value: value) -> None:
        super().__init__()
        self.network = network
        self._returned = returned

    def forward(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self._returned(function(*arguments))


def _only_to_learn_from(step: Any) -> Any:
    """Return the step with a graph only for the loss, so that DDP awaits no gradient for a weight of the prediction."""
    if not isinstance(step, Step):
        return step
    terms = {name: value.detach() if isinstance(value, torch.Tensor) else value for name, value in step.terms.items()}
    return Step(step.loss, terms)


def _reached(loss: torch.Tensor) -> set[int]:
    """Return the ids of the weights that get a gradient from `loss`."""
    found: set[int] = set()
    seen, waiting = set[Any](), [loss.grad_fn]
    while waiting:
        node: Any = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if type(node).__name__ == "AccumulateGrad":
            found.add(id(node.variable))
        waiting += [function for function, _ in node.next_functions]
    return found


def _in_place(tensor: torch.Tensor, collective: Callable[[torch.Tensor], Any]) -> None:
    """Run a collective on a tensor of any layout."""
    whole = tensor.contiguous()
    collective(whole)
    if whole is not tensor:
        tensor.copy_(whole)


def parallel(
    project: Project, network: nn.Module, device: torch.device, precision: Precision, memory: int, ranks: int
) -> Parallel:
    """Return the way that `train.strategy` selects; `memory` is the bytes of one device.

    The network's parameters may be other objects afterwards.
    """
    if ranks == 1:
        return Single()
    train, exchange = project.config.train, project.config.exchange
    if chosen(train, network, memory) == "fsdp":
        return Sharded(project, network, device, precision)
    # Without the search, DDP orders its buckets anew after its first step. A resumed run would have the former order
    # in its first step, so sums over three or more processes would round differently there.
    unused = "find" if exchange.unused == "auto" and train.deterministic else exchange.unused
    return Replicated(network, unused, at_once=exchange.gradients != "micro_batch")


def chosen(config: TrainConfig, network: nn.Module, memory: int) -> str:
    """Return the strategy; auto means ddp, or fsdp if the weights' data would take over a quarter of the memory."""
    if config.strategy != "auto":
        return config.strategy
    learned = sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad)
    return "fsdp" if learned * _BYTES_A_WEIGHT > _SHARE_OF_MEMORY * memory else "ddp"


# ---------------------------------------------------------------- tensors of which each process has a part


def gathered(tensor: torch.Tensor) -> torch.Tensor:
    """Return the whole of a sharded tensor, on every process, which all must call; others are returned as they are."""
    full = getattr(tensor, "full_tensor", None)
    return tensor if full is None else full()


def own(tensor: torch.Tensor) -> torch.Tensor:
    """Return this process's part of a sharded tensor, in the same memory; others are returned as they are."""
    local = getattr(tensor, "to_local", None)
    return tensor if local is None else local()


def is_rows(tensor: torch.Tensor) -> bool:
    """Return True if each process has some rows of the tensor, which no other process has."""
    placements: Sequence[Any] = getattr(tensor, "placements", ())
    return len(placements) == 1 and bool(placements[0].is_shard(0))


class Rows:
    """A tensor whose rows are in several files, in order; read when it is known which ones are needed."""

    def __init__(self, parts: Sequence[torch.Tensor], shape: Sequence[int]) -> None:
        """Raise ValueError if the parts do not add up to the shape."""
        self._parts, self.shape = parts, torch.Size(shape)
        if not parts or torch.Size([sum(len(part) for part in parts), *parts[0].shape[1:]]) != self.shape:
            raise ValueError(f"the parts of a tensor of shape {tuple(shape)} do not add up")
        self.dtype = parts[0].dtype

    def take(self, begin: int, end: int) -> torch.Tensor:
        """Return the rows from `begin` to `end`."""
        found, first = [], 0
        for part in self._parts:
            rows = part[max(0, begin - first) : max(0, end - first)]
            first += len(part)
            if len(rows):
                found.append(rows)
        return torch.cat(found) if found else self._parts[0][:0]

    def whole(self) -> torch.Tensor:
        return self.take(0, self.shape[0])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        array: Array = self.whole().numpy()
        return array if dtype is None else array.astype(dtype)


def divided(whole: Tensors, like: Tensors) -> Tensors:
    """Return whole tensors, or their `Rows`, sharded like those of the same names in `like`.

    Tensors are whole if those are not sharded or have other shapes.
    """
    return {name: _divided(tensor, like.get(name)) for name, tensor in whole.items()}


def _divided(whole: torch.Tensor | Rows, like: Any) -> torch.Tensor:
    mesh = getattr(like, "device_mesh", None)
    if isinstance(whole, Rows):
        if not is_rows(like) or whole.shape != like.shape:
            whole = whole.whole()
        else:
            return _own_rows(whole, like)
    if mesh is None or getattr(whole, "shape", None) != like.shape:
        return whole
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(whole.to(like.device), mesh, like.placements)


def _own_rows(rows: Rows, like: Any) -> torch.Tensor:
    """Return a tensor sharded like `like`, of which each process reads only its own rows."""
    from torch.distributed.tensor import DTensor

    each = -(-rows.shape[0] // like.device_mesh.size())  # as `torch.chunk` divides
    begin = min(each * like.device_mesh.get_local_rank(), rows.shape[0])
    own_rows = rows.take(begin, begin + len(own(like))).to(like.device)
    return DTensor.from_local(own_rows, like.device_mesh, like.placements, shape=like.shape, stride=like.stride())


CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def fresh(project: Project, policy: Precision, start: StartWeights | None) -> nn.Module:
    """Return a network in its initial state for training, with the weights of `start` as far as they fit."""
    network: nn.Module = project.model(policy)
    initialise = project.learning().initialise
    if initialise is not None:
        initialise(network)
    if start is not None and not start.restored:
        start_from(network, project, start)
    return network


def place(network: nn.Module, project: Project, device: torch.device) -> nn.Module:
    """Move the network to the device, with its convolutions' weights channels last if the settings ask for it."""
    network.to(device)
    if project.config.train.channels_last == "on":
        for parameter in network.parameters():
            layout = CHANNELS_LAST.get(parameter.ndim)
            if layout is not None:
                parameter.data = parameter.data.contiguous(memory_format=layout)
    return network
