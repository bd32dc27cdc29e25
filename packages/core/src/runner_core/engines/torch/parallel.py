"""How one network trains in several processes: whole in each (DDP), or a part of every weight in each (FSDP).

Either way a project's `step` runs inside the forward pass of one module around the network, so that it sees the network
itself, with all its attributes and methods, and may call it, or parts of it, as often as it likes.

Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020; Zhao et al., "PyTorch
FSDP: Experiences on Scaling Fully Sharded Data Parallel", VLDB 2023.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import distributed, nn
from torch.func import functional_call

from runner_core._errors import BadInput
from runner_core.config import TrainConfig
from runner_core.project import Project
from runner_core.protocols import Precision, Step, Tensors

_BYTES_A_WEIGHT = 16
"""In float32: the weight, its gradient, and Adam's two averages."""
_SHARE_OF_MEMORY = 0.25
"""Of a device's, that these may take before `auto` divides them."""


class Parallel(Protocol):
    """`train` and `evaluate` call `function(*arguments)`, which computes with the network; `read` calls one that reads
    its weights, and computes nothing."""

    name: str

    def train(self, function: Callable[..., Any], *arguments: Any) -> Any: ...

    def evaluate(self, function: Callable[..., Any], *arguments: Any) -> Any: ...

    def read(self, function: Callable[..., Any], *arguments: Any) -> Any: ...


class Single:
    """One process: nothing is put in between."""

    name = "single"

    def train(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    evaluate = read = train


class Replicated:
    """Every process has the whole network, and the mean of all gradients (DistributedDataParallel)."""

    name = "ddp"

    def __init__(self, network: nn.Module) -> None:
        around = _Around(network, _only_to_learn_from)
        # What a step leaves out (a mask token when nothing is masked) is noticed, rather than waited for. As there is
        # always something, PyTorch does not warn that there is nothing.
        around.unused = nn.Parameter(torch.zeros(1, device=next(network.parameters()).device))
        self._wrapped = nn.parallel.DistributedDataParallel(around, find_unused_parameters=True)

    def train(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self._wrapped(function, *arguments)

    def evaluate(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    read = evaluate


class Sharded:
    """Every process keeps a part of each weight, its gradient and its optimizer state (`fully_shard`). The weights of
    one of the project's `shard_units` are gathered while it computes; the others' for the whole step."""

    name = "fsdp"

    def __init__(self, project: Project, network: nn.Module, device: torch.device, precision: Precision) -> None:
        """Raises BadInput for what cannot be divided."""
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
        for unit in project.shard_units(network):
            fully_shard(unit, mesh=mesh)
        # Resharded always: the root's weights would otherwise stay whole after a validation, and not be seen to change.
        fully_shard(self._root, mesh=mesh, reshard_after_forward=True)

    def train(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self._root(function, *arguments)

    evaluate = train

    def read(self, function: Callable[..., Any], *arguments: Any) -> Any:
        named = {**dict(self._network.named_parameters()), **dict(self._network.named_buffers())}
        whole = {f"network.{name}": gathered(tensor.detach()) for name, tensor in named.items()}
        return functional_call(_Around(self._network), whole, (function, *arguments))


class _Around(nn.Module):
    """A module whose forward pass is whatever it is asked to do with the network."""

    def __init__(self, network: nn.Module, returned: Callable[[Any], Any] = lambda value: value) -> None:
        super().__init__()
        self.network = network
        self._returned = returned

    def forward(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self._returned(function(*arguments))


def _only_to_learn_from(step: Any) -> Any:
    """The loss keeps its graph; of a weight on which only a prediction depends no gradient is waited for."""
    if not isinstance(step, Step):
        return step
    terms = {name: value.detach() if isinstance(value, torch.Tensor) else value for name, value in step.terms.items()}
    return Step(step.loss, terms, None, step.costs)


def parallel(
    project: Project, network: nn.Module, device: torch.device, precision: Precision, memory: int, ranks: int
) -> Parallel:
    """How `train.strategy` says; `memory`: bytes of one device. The network's parameters may be other objects then."""
    if ranks == 1:
        return Single()
    strategy = chosen(project.config.train, network, memory)
    return Sharded(project, network, device, precision) if strategy == "fsdp" else Replicated(network)


def chosen(config: TrainConfig, network: nn.Module, memory: int) -> str:
    """auto: ddp, or fsdp where what belongs to the weights would take more than a quarter of a device's memory."""
    if config.strategy != "auto":
        return config.strategy
    learned = sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad)
    return "fsdp" if learned * _BYTES_A_WEIGHT > _SHARE_OF_MEMORY * memory else "ddp"


# ---------------------------------------------------------------- tensors of which each process has a part


def gathered(tensor: torch.Tensor) -> torch.Tensor:
    """The whole of a divided tensor, on every process, which all must ask for; others as they are."""
    full = getattr(tensor, "full_tensor", None)
    return tensor if full is None else full()


def own(tensor: torch.Tensor) -> torch.Tensor:
    """This process's part of a divided tensor, in the same memory; others as they are."""
    local = getattr(tensor, "to_local", None)
    return tensor if local is None else local()


def divided(whole: Tensors, like: Tensors) -> Tensors:
    """Tensors that every process has, divided as those of the same names in `like` are; as they are where those are
    not, or have other shapes."""
    return {name: _divided(tensor, like.get(name)) for name, tensor in whole.items()}


def _divided(whole: torch.Tensor, like: Any) -> torch.Tensor:
    mesh = getattr(like, "device_mesh", None)
    if mesh is None or getattr(whole, "shape", None) != like.shape:
        return whole
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(whole.to(like.device), mesh, like.placements)
