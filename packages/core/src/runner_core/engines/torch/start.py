"""Weights of another training or of a file, put into a new PyTorch network."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from zipfile import ZipFile, is_zipfile

import torch
from safetensors.torch import load_file
from torch import nn

from runner_core.base.errors import BadInput
from runner_core.contract import Tensors
from runner_core.contract.project import Project
from runner_core.contract.start import StartWeights
from runner_core.engines.weights import given_weights, matched, refuse_no_fit

_HOLDERS = ("state_dict", "model_state_dict", "model", "teacher")
"""Keys below which other programs save a network's weights."""


@torch.no_grad()
def start_from(network: nn.Module, project: Project, start: StartWeights) -> None:
    """Set the weights and buffers that `start` has in their shapes; raise BadInput if there are none."""
    given = given_weights(start, network, project)
    own = {name: tensor for name, tensor in network.state_dict().items() if isinstance(tensor, torch.Tensor)}
    fit, names = matched({n: _shape(t) for n, t in own.items()}, {n: _shape(t) for n, t in given.items()})
    start.fit = fit
    refuse_no_fit(start, {name: tensor.numel() for name, tensor in own.items()})
    for name, source in names.items():
        own[name].copy_(given[source])


def _shape(tensor: torch.Tensor) -> str:
    """Return the shape in words; whole numbers do not fit where the network computes."""
    return f"{tuple(tensor.shape)}" if tensor.is_floating_point() else f"{tensor.dtype} {tuple(tensor.shape)}"


def read_weights(file: Path) -> Tensors:
    """Return the weights in a .safetensors, .pt or .pth file, by name; raise BadInput if it holds none."""
    try:
        safe = file.suffix == ".safetensors"
        if not safe:
            _refuse_inflated(file)
        stored = load_file(file) if safe else torch.load(file, map_location="cpu", weights_only=True)
    except BadInput:
        raise
    except UnpicklingError as error:
        raise BadInput(
            f"{file} holds more than tensors, which is not loaded: save its state dict alone, best as .safetensors"
        ) from error
    except Exception as error:  # readers raise any exception for a damaged file
        raise BadInput(f"{file} cannot be read as weights: {type(error).__name__}: {error}") from error
    if not isinstance(stored, Mapping):
        raise BadInput(f"{file} holds a {type(stored).__name__}, not weights by name")
    holder = next((stored[key] for key in _HOLDERS if isinstance(stored.get(key), Mapping)), stored)
    weights = {str(name): tensor for name, tensor in holder.items() if isinstance(tensor, torch.Tensor)}
    if not weights:
        raise BadInput(f"{file} holds no weights by name: save a state dict")
    for name, tensor in weights.items():
        if not _is_stored(tensor):
            raise BadInput(
                f"{file}: {name} {tuple(tensor.shape)} claims more values than the file holds; save a state dict "
                "of plain tensors (`.clone()`)"
            )
    return weights


def _is_stored(tensor: torch.Tensor) -> bool:
    """Return whether each value of a tensor is stored; a small file can claim one that fills the memory."""
    if tensor.layout is not torch.strided or tensor.is_meta:
        return False
    return tensor.numel() * tensor.element_size() <= tensor.untyped_storage().nbytes()


def _refuse_inflated(file: Path) -> None:
    """Raise BadInput if the parts of a zip archive are larger than the file: PyTorch stores them uncompressed."""
    if is_zipfile(file):
        with ZipFile(file) as archive:
            if sum(part.file_size for part in archive.infolist()) > file.stat().st_size:
                raise BadInput(f"{file} holds compressed parts, which PyTorch does not write: save the state dict anew")
