"""A trained network as a function from host arrays to host arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import nn

from runner_core.engines.torch import ranks
from runner_core.engines.torch.ema import Average
from runner_core.engines.torch.state import read_generators, write_generators
from runner_core.project import Project, Statistics
from runner_core.protocols import Array, Arrays, Infer


@contextmanager
def evaluating(network: nn.Module, average: Average | None) -> Iterator[None]:
    """Evaluation mode, with the averaged weights where there are some; every submodule's own mode afterwards."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        with nullcontext() if average is None else average.in_place():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def undisturbed(network: nn.Module, average: Average | None, device: torch.device) -> Iterator[None]:
    """`evaluating`, without gradients, each process for itself; all random generators afterwards as they were."""
    generators = read_generators(device)
    try:
        with torch.no_grad(), ranks.apart(), evaluating(network, average):
            yield
    finally:
        write_generators(generators, device)


def make_infer(
    project: Project,
    network: nn.Module,
    statistics: Statistics,
    *,
    device: torch.device,
    cast: AbstractContextManager[object] | None,
    mode: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Infer:
    """`protocols.Infer`. `cast`: the precision's autocast context; `mode`: entered around every call."""

    @torch.no_grad()
    def infer(arrays: Arrays) -> Arrays:
        batch = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
        with mode():
            batch = project.on_device(batch, statistics, None)
            with cast or nullcontext():
                output = project.infer(network, batch)
        return {name: _host(tensor) for name, tensor in output.items()}

    return infer


def _host(tensor: torch.Tensor) -> Array:
    if tensor.is_floating_point() and tensor.dtype not in (torch.float32, torch.float64):
        tensor = tensor.float()
    return tensor.cpu().numpy()
