"""The ways in which several processes share one network: DDP and FSDP."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import nn

from runner_core.config import TrainConfig
from runner_core.contract import Precision
from runner_core.contract.project import Project
from runner_core.contract.setup import SHARDED
from runner_core.contract.start import StartWeights
from runner_core.engines.for_torch import refuse_deterministic, shard_count
from runner_core.engines.torch.ddp import Replicated
from runner_core.engines.torch.fsdp import Sharded
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
    """Names of the weights that the first step, or one that `agree` saw, left out in some process; None: not known."""

    @property
    def exchange(self) -> Mapping[str, str]:
        """The form in which processes exchange tensors in a step, by the setting that decides it."""
        ...

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
        """Finish the gradients of a backward pass, which may have left out weights."""
        ...

    def agree(self) -> str | None:
        """Return a note if steps since the last call left out weights that they were to use; waits for the device.

        All processes call it after the same step. Raises BadInput, in all, with `exchange.unused` none.
        """
        ...


class Single:
    """The way of a single process: functions are called directly."""

    name = "single"
    unused: list[str] | None = None
    exchange: Mapping[str, str] = {}

    def train(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    evaluate = read = train

    def withholding(self) -> AbstractContextManager[None]:
        return nullcontext()

    def settle(self, unused: Sequence[str] | None = None) -> None:
        return None

    def check(self) -> None:
        return None

    agree = check


def parallel(
    project: Project,
    network: nn.Module,
    device: torch.device,
    precision: Precision,
    memory: int,
    ranks: int,
    kept: Set[nn.Module] = frozenset(),
    hosts: Sequence[str] = (),
) -> Parallel:
    """Return the way that `train.strategy` selects.

    `memory` is the bytes of one device, `hosts` the machine of each process; `kept` see `Sharded`.

    The network's parameters may be other objects afterwards.
    """
    if ranks == 1:
        return Single()
    train, exchange = project.config.train, project.config.exchange
    strategy = chosen(train, network, memory)
    if strategy in SHARDED:
        shards = shard_count(exchange.shard_devices, hosts, ranks) if strategy == "hsdp" else None
        return Sharded(project, network, device, precision, kept, shards)
    refuse_deterministic(project.config)
    # A compiled network is to be wrapped before its first step: inside DDP it becomes several graphs, outside one.
    searches = train.deterministic or (train.compile == "on" and exchange.unused == "auto")
    unused = "find" if searches else exchange.unused
    return Replicated(network, unused, exchange.gradients != "micro_batch", exchange.reduce)


def chosen(config: TrainConfig, network: nn.Module, memory: int) -> str:
    """Return the strategy; auto means ddp, or fsdp if the weights' data would take over a quarter of the memory."""
    if config.strategy != "auto":
        return config.strategy
    learned = sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad)
    return "fsdp" if learned * _BYTES_A_WEIGHT > _SHARE_OF_MEMORY * memory else "ddp"


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
            if parameter.ndim in CHANNELS_LAST:
                parameter.data = _channels_last(parameter.data)
    return network


def _channels_last(weight: torch.Tensor) -> torch.Tensor:
    """Return the weights of a convolution channels last.

    Those of one input channel lie in both layouts, and PyTorch takes them for channels first, until their strides tell.
    Then a GPU would compute the first norm, of the largest tensors, channels first: with batch norm in bfloat16 that
    takes several times as long. On a CPU they stay as they are, so that its results stay the same bits.
    """
    found = weight.contiguous(memory_format=CHANNELS_LAST[weight.ndim])
    if weight.shape[1] > 1 or weight.device.type == "cpu":
        return found
    rows, _, *sides = found.stride()
    return found.as_strided(found.shape, (rows, 1, *sides))
