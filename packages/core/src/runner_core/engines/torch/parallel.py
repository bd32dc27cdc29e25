"""Several processes that train one network: how they meet, and how DDP and FSDP share it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch import distributed, nn
from torch.func import functional_call

from runner_core.base.errors import BadInput
from runner_core.config import TrainConfig
from runner_core.contract import Json, Precision, Step, Tensors
from runner_core.contract.project import Project
from runner_core.contract.start import StartWeights
from runner_core.contract.team import Place
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

    def train(self, function: Callable[..., Any], *arguments: Any) -> Any: ...

    def evaluate(self, function: Callable[..., Any], *arguments: Any) -> Any: ...

    def read(self, function: Callable[..., Any], *arguments: Any) -> Any: ...


class Single:
    """One process: functions are called directly."""

    name = "single"

    def train(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    evaluate = read = train


class Replicated:
    """Every process has the whole network, and the mean of all gradients (DistributedDataParallel)."""

    name = "ddp"

    def __init__(self, network: nn.Module) -> None:
        around = _Around(network, _only_to_learn_from)
        # A weight that a step does not use (a mask token when nothing is masked) is found, rather than waited for. This
        # parameter is never used, so PyTorch does not warn that all are.
        around.unused = nn.Parameter(torch.zeros(1, device=next(network.parameters()).device))
        self._wrapped = nn.parallel.DistributedDataParallel(around, find_unused_parameters=True)

    def train(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self._wrapped(function, *arguments)

    def evaluate(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    read = evaluate


class Sharded:
    """Every process keeps a part of each weight, its gradient and its optimizer state (`fully_shard`).

    The weights of each of the project's `shard_units` are gathered while it computes, the other weights for the whole
    step.
    """

    name = "fsdp"

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
        self._root = _Around(network)
        shard_units = project.learning().shard_units
        for unit in () if shard_units is None else shard_units(network):
            fully_shard(unit, mesh=mesh)
        # Always reshard: otherwise the root's weights would stay whole after a validation, and not show changes.
        fully_shard(self._root, mesh=mesh, reshard_after_forward=True)

    def train(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self._root(function, *arguments)

    evaluate = train

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


def parallel(
    project: Project, network: nn.Module, device: torch.device, precision: Precision, memory: int, ranks: int
) -> Parallel:
    """Return the way that `train.strategy` selects; `memory` is the bytes of one device.

    The network's parameters may be other objects afterwards.
    """
    if ranks == 1:
        return Single()
    strategy = chosen(project.config.train, network, memory)
    return Sharded(project, network, device, precision) if strategy == "fsdp" else Replicated(network)


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


def divided(whole: Tensors, like: Tensors) -> Tensors:
    """Return whole tensors, sharded like those of the same names in `like`.

    Tensors stay as they are if those are not sharded or have other shapes.
    """
    return {name: _divided(tensor, like.get(name)) for name, tensor in whole.items()}


def _divided(whole: torch.Tensor, like: Any) -> torch.Tensor:
    mesh = getattr(like, "device_mesh", None)
    if mesh is None or getattr(whole, "shape", None) != like.shape:
        return whole
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(whole.to(like.device), mesh, like.placements)


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


_HOSTS = timedelta(days=30)
"""Timeout longer than the first process prepares data; an ended process is noticed at once anyway."""
_DEVICES = timedelta(hours=2)
"""Timeout longer than a checkpoint takes; only this ends nccl's wait for a lost process on another machine."""


class TorchTeam:
    """A team of processes; its construction waits for all, and torch's default process group exists until `leave`."""

    def __init__(self, place: Place, device: torch.device) -> None:
        self.number, self.count, self.first = place.number, place.count, place.number == 0
        backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
        met, _, _ = next(distributed.rendezvous(place.rendezvous, place.number, place.count))
        self._store = distributed.PrefixStore(f"attempt-{place.attempt}", met)
        with _unheard():
            self._meet(backend, device)
        self._exchange: tuple[Any, torch.Tensor] | None = None

    def _meet(self, backend: str, device: torch.device) -> None:
        distributed.init_process_group(
            backend,
            store=distributed.PrefixStore("training", self._store),
            rank=self.number,
            world_size=self.count,
            timeout=_HOSTS if device.type == "cpu" else _DEVICES,
            device_id=None if device.type == "cpu" else device,
        )
        # Separate groups, so that messages between hosts do not wait behind gradients.
        self._hosts = distributed.new_group(backend="gloo", timeout=_HOSTS)

    def share(self, value: Json) -> Json:
        return self.every(value if self.first else None)[0]

    def every(self, value: Json) -> list[Json]:
        text = torch.frombuffer(bytearray(json.dumps(value, default=float).encode()), dtype=torch.uint8)
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.count)]
        distributed.all_gather(lengths, torch.tensor([len(text)]), group=self._hosts)
        longest = max(int(length) for length in lengths)
        texts = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.count)]
        padded = torch.cat([text, torch.zeros(longest - len(text), dtype=torch.uint8)])
        distributed.all_gather(texts, padded, group=self._hosts)
        return [json.loads(bytes(t[: int(n)].tolist())) for t, n in zip(texts, lengths, strict=True)]

    def noticed(self, number: int) -> int:
        before = self._settled()
        tensor = torch.tensor([number])
        work = distributed.all_reduce(tensor, distributed.ReduceOp.MAX, group=self._hosts, async_op=True)
        self._exchange = work, tensor
        return before

    def _settled(self) -> int:
        if self._exchange is None:
            return 0
        work, tensor = self._exchange
        work.wait()
        self._exchange = None
        return int(tensor)

    def speaks(self) -> bool:
        try:
            return self._store.add("spoken", 1) == 1
        except RuntimeError:  # the process with the store is gone, and its end is what matters
            return False

    def lost(self, error: BaseException) -> bool:
        if not isinstance(error, RuntimeError):
            return False
        return isinstance(error, distributed.DistError) or any(name in str(error) for name in ("gloo", "NCCL"))

    def leave(self) -> None:
        self._settled()
        distributed.barrier(self._hosts)  # so that no process is waiting when the first connection closes
        distributed.destroy_process_group()


@contextmanager
def _unheard() -> Iterator[None]:
    """Suppress gloo's messages in standard output about connections."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)
