"""Turn a trained network into a function from host arrays to host arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import nn

from runner_core.contract import Array, Arrays, Infer
from runner_core.contract.project import Project
from runner_core.contract.records import Statistics
from runner_core.engines.torch import ranks
from runner_core.engines.torch.ema import Average
from runner_core.engines.torch.state import read_generators, write_generators


@contextmanager
def evaluating(network: nn.Module, average: Average | None) -> Iterator[None]:
    """Use evaluation mode, with the averaged weights if there are some; restore every submodule's mode afterwards."""
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
    """Enter `evaluating` without gradients and with each process alone; restore all random generators afterwards."""
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
    """Return the `Infer` function of a network.

    `cast` is the precision's autocast context. `mode` is entered around every call.
    """

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
