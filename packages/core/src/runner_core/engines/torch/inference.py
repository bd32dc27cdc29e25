"""Run a trained network: on host arrays, beside a training, or exported for use without runner."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import ModuleType

import torch
from safetensors.torch import save_file
from torch import nn

from runner_core.contract import Array, Arrays, Infer, Json
from runner_core.contract.project import Project
from runner_core.contract.records import Statistics
from runner_core.engines.torch import ranks
from runner_core.engines.torch.checkpoint import read_generators, write_generators
from runner_core.engines.torch.weights import Average


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


def export_standalone(
    network: nn.Module, folder: Path, description: Mapping[str, Json], source: ModuleType
) -> list[Path]:
    """Write model.safetensors, model.json (`description`) and network.py, a copy of `source`; return the files.

    `source` is the module of the network's class, and imports nothing but PyTorch.
    """
    folder.mkdir(parents=True, exist_ok=True)
    weights, settings, code = folder / "model.safetensors", folder / "model.json", folder / "network.py"
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in network.state_dict().items()}, weights)
    settings.write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")
    code.write_text(Path(str(source.__file__)).read_text(encoding="utf-8"), encoding="utf-8")
    return [weights, settings, code]
