"""The PyTorch engine: the device, the backends' settings, and trained networks, to predict with or to export."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

from runner_core.base.errors import BadInput
from runner_core.config import RunConfig
from runner_core.contract import Array, Arrays, Device, Infer, Json, State, Tensors, Trained
from runner_core.contract.phases import Phases
from runner_core.contract.project import Project
from runner_core.contract.records import Statistics
from runner_core.contract.run import OtherWeights
from runner_core.contract.setup import Data, Setup
from runner_core.contract.team import Place
from runner_core.engines import returned
from runner_core.engines.device import cpu, gpu_number, refuse_missing_gpus, unusable
from runner_core.engines.export import describe, let_others_read
from runner_core.engines.for_torch import shard_count
from runner_core.engines.torch import accelerator, precision, weights
from runner_core.engines.torch.checkpoint import (
    apart,
    flatten,
    read_generators,
    refuse_other_dtypes,
    seed_generators,
    unflatten,
    write_generators,
)
from runner_core.engines.torch.memory import network_fits
from runner_core.engines.torch.parallel import fresh, place
from runner_core.engines.torch.start import read_weights
from runner_core.engines.torch.team import TorchTeam
from runner_core.engines.torch.trainer import TorchTrainer
from runner_core.engines.torch.transfer import allocate, pin


class TorchEngine:
    """`Engine` for PyTorch."""

    name = "torch"

    def __init__(self, project: Project, config: RunConfig) -> None:
        if config.train.steps_per_execution > 1:
            raise BadInput("train.steps_per_execution is for Keras; PyTorch takes one step at a time: leave it out")
        self.project = project
        self.config = config
        self._place: Place | None = None
        if config.train.deterministic:
            # read when CUDA starts (docs.nvidia.com/cuda/cublas, "Results reproducibility")
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

    def device(self) -> Device:
        """Return the device that `train.device` names; raise BadInput if it does not exist."""
        asked = self.config.train.device
        kind, found = accelerator.found()
        number = gpu_number(asked, found, "PyTorch", _unseen(), kind)
        if self._place is not None:
            number = _gpu_of(self._place, asked, found)
        if number is not None:
            return accelerator.described(kind, number, found)
        return cpu(_unseen() if asked == "auto" else "")

    def join(self, place: Place) -> TorchTeam:
        """Meet the other processes of a training.

        Raises BadInput if there is no device for each, or if hsdp cannot divide them into equal groups.
        """
        self._place = place
        team = TorchTeam(place, torch_device(self.device()), self.config.train.patience_seconds)
        if self.config.train.strategy == "hsdp" and place.count > 1:  # before the data are prepared
            shard_count(self.config.exchange.shard_devices, [member.host for member in team.members], place.count)
        return team

    def trainer(self, setup: Setup, data: Data, steps: int) -> TorchTrainer:
        """Make a new model and optimizer for `steps` optimizer steps, on the device, under `setup.precision`."""
        train = self.config.train
        if train.threads is not None:
            torch.set_num_threads(train.threads)
        torch.use_deterministic_algorithms(train.deterministic)
        torch.backends.cudnn.deterministic = train.deterministic
        torch.backends.cudnn.benchmark = not train.deterministic
        precision.set_backends(setup.precision)
        with network_fits():
            return TorchTrainer(setup, data, steps, torch_device(setup.device))

    def read_weights(self, file: Path) -> Tensors:
        """Return the weights in a .safetensors, .pt or .pth file, by name; raise BadInput if it holds none."""
        return read_weights(file)

    def state_of(self, setup: Setup, weights: Tensors, statistics: Statistics) -> State:
        """Return the state of a run whose network has just these weights; raise OtherWeights if they do not fit it."""
        tree = {"model": dict(weights), "ema": None, "statistics": dict(statistics)}
        values, tensors = flatten(tree)
        state = State({"torch": values}, tensors)
        self._network(setup, state)
        return state

    def phases(self, trainer: TorchTrainer) -> Phases:
        """Return the object that measures the parts of the trainer's steps."""
        from runner_core.engines.torch.phases import TorchPhases

        return TorchPhases(trainer)

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Allocate host memory that copies to the device fast (page-locked if it is a GPU)."""
        return allocate(shape, dtype, torch_device(self.device()))

    def pin(self, memory: Array) -> None:
        """Page-lock memory on CUDA for as long as this engine lives; do nothing on a CPU."""
        pin(memory, torch_device(self.device()), self)

    def load(self, setup: Setup, state: State) -> Trained:
        """Return the network of a checkpoint (averaged weights if there are some), ready to predict."""
        return self._ready(setup, *self._network(setup, state))

    def untrained(self, setup: Setup, state: State) -> Trained:
        """Return the network before the first step of the checkpoint's run, made anew from its seed and start."""
        statistics = setup.project.statistics = unflatten(state.values["torch"], state.tensors)["statistics"]
        device = torch_device(setup.device)
        generators = read_generators(device)
        try:
            seed_generators(self.config.train.seed)
            network = fresh(setup.project, setup.precision, setup.start)
        finally:
            write_generators(generators, device)
        return self._ready(setup, network, statistics)

    def _ready(self, setup: Setup, network: nn.Module, statistics: Statistics) -> Trained:
        """Return a network, in evaluation mode on the device, with the function that predicts with it."""
        device = torch_device(setup.device)
        with network_fits():
            place(network, setup.project, device).eval().requires_grad_(False)
        precision.set_backends(setup.precision)
        precision.keep_float32(network, setup.precision, device)
        cast = precision.autocast(setup.precision, device)
        infer = make_infer(setup.project, network, statistics, device=device, cast=cast)
        return Trained(network, infer, statistics)

    def export(self, setup: Setup, state: State, folder: Path) -> Sequence[Path]:
        """Export as the project does, else as model.safetensors and model.json; return the written files."""
        network, statistics = self._network(setup, state)
        folder.mkdir(parents=True, exist_ok=True)
        written = setup.project.export(network.eval(), folder)
        written = written or _export(setup, network, statistics, folder)
        let_others_read(written)
        return written

    def versions(self) -> dict[str, str]:
        """Return the versions of torch and the accelerator's libraries, and the thread count.

        The thread count changes the last bits of sums.
        """
        found = {"torch": torch.__version__, "torch threads": str(torch.get_num_threads())}
        return found | accelerator.versions()

    def _network(self, setup: Setup, state: State) -> tuple[nn.Module, Statistics]:
        """Return the network on the host, with the weights that validation saw."""
        saved = unflatten(state.values["torch"], state.tensors)
        setup.project.statistics = saved["statistics"]
        network = setup.project.model(setup.precision)
        try:
            refuse_other_dtypes(saved["model"], network.state_dict())
            network.load_state_dict(saved["model"])
            if saved["ema"] is not None:
                weights.put(network, saved["ema"])
        except (RuntimeError, KeyError) as error:
            raise OtherWeights(f"the weights do not fit this project's network: {error}") from error
        return network, saved["statistics"]


def make_infer(
    project: Project,
    network: nn.Module,
    statistics: Statistics,
    *,
    device: torch.device,
    cast: AbstractContextManager[object] | None,
) -> Infer:
    """Return the `Infer` function of a network; `cast` is the precision's autocast context."""

    @torch.no_grad()
    def infer(arrays: Arrays) -> Arrays:
        batch = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
        batch = project.on_device(batch, statistics, None)
        with cast or nullcontext():
            output = returned.outputs(project, project.infer(network, batch))
        return {name: _host(tensor) for name, tensor in output.items()}

    return returned.checked_infer(project, infer)


def _host(tensor: torch.Tensor) -> Array:
    if tensor.is_floating_point() and tensor.dtype not in (torch.float32, torch.float64):
        tensor = tensor.float()
    return tensor.cpu().numpy()


def torch_device(device: Device) -> torch.device:
    """Return the device, after making a GPU torch's current one.

    Streams, events and page-locked memory then belong to it.
    """
    if device.kind == "cpu":
        return torch.device("cpu")
    found = torch.device(device.kind, device.index)
    torch.accelerator.set_device_index(found)
    return found


def _gpu_of(place: Place, asked: str, found: int) -> int | None:
    """Return the number of this process's GPU, or None if all compute on the CPU; raise BadInput in every process."""
    refuse_missing_gpus(place.count, place.local_count, asked, found, "PyTorch", "" if found else _unseen())
    return None if asked == "cpu" else place.local


def _unseen() -> str:
    """Return a message if the machine has an NVIDIA GPU that torch cannot use, else ""."""
    if accelerator.found()[1]:
        return ""
    why = (
        "it is a build without CUDA"
        if torch.version.cuda is None
        else f"it needs a driver for CUDA {torch.version.cuda}"
    )
    return unusable(f"PyTorch {torch.__version__}", why)


def _export(setup: Setup, network: nn.Module, statistics: Statistics, folder: Path) -> list[Path]:
    """Write the weights and what is needed to use them: project, settings and statistics of its training data."""
    tensors, shared = apart(network.state_dict())
    save_file(tensors, folder / "model.safetensors")
    return [folder / "model.safetensors", describe(setup, statistics, folder, shared=shared)]


def export_standalone(
    network: nn.Module, folder: Path, description: Mapping[str, Json], source: ModuleType
) -> list[Path]:
    """Write model.safetensors, model.json (`description`) and network.py, a copy of `source`; return the files.

    `source` is the module of the network's class, and imports nothing but PyTorch.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors, settings, code = folder / "model.safetensors", folder / "model.json", folder / "network.py"
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in network.state_dict().items()}, tensors)
    settings.write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")
    code.write_text(Path(str(source.__file__)).read_text(encoding="utf-8"), encoding="utf-8")
    return [tensors, settings, code]
