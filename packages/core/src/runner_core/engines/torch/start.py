"""Weights of another training or of a file, put into a new PyTorch network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any
from zipfile import ZipFile, is_zipfile

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn

from runner_core.base.errors import BadInput
from runner_core.base.files import refuse_special_file
from runner_core.contract import Tensors
from runner_core.contract.project import Project
from runner_core.contract.start import StartWeights
from runner_core.engines.weights import given_weights, matched, refuse_no_fit

_HOLDERS = ("state_dict", "model_state_dict", "network_weights", "model", "teacher")
"""Keys below which other programs save a network's weights."""
_SCALAR: Any = np.float64(0).__reduce__()[0]
_NUMBERS: list[Any] = [
    np.dtype,
    *(type(np.dtype(kind)) for kind in ("f8", "f4", "i8", "i4", "?")),
    *((_SCALAR, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")),
]
"""NumPy's numbers, which training programs save beside the weights: a loss, the best score."""
_POINTER = b"version https://git-lfs"
_OLD_FORMAT = torch.serialization.MAGIC_NUMBER.to_bytes(10, "little")
"""Number near the start of files of PyTorch before 1.6; newer ones are zip archives."""


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
    stored = _read(file, load_file) if file.suffix == ".safetensors" else read_pth(file)
    if not isinstance(stored, Mapping):
        raise BadInput(f"{file} holds a {type(stored).__name__}, not weights by name")
    holder = next((stored[key] for key in _HOLDERS if isinstance(stored.get(key), Mapping)), stored)
    return stored_tensors(file, holder)


def stored_tensors(file: Path, holder: Mapping[Any, Any]) -> Tensors:
    """Return the tensors among a mapping's values; raise BadInput if there are none, or if one is not stored whole."""
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


def read_pth(file: Path) -> Any:
    """Return what a .pt or .pth file holds: tensors, numbers and text. Raises BadInput for anything else."""
    return _read(file, _unpickled)


def _unpickled(file: Path) -> Any:
    _refuse_inflated(file)
    with torch.serialization.safe_globals(_NUMBERS):
        return torch.load(file, map_location="cpu", weights_only=True)


def _read(file: Path, read: Callable[[Path], Any]) -> Any:
    try:
        with refuse_special_file(file).open("rb") as opened:
            if (head := opened.read(len(_POINTER))) == _POINTER:
                raise BadInput(f"{file} is a pointer of Git LFS, not the file itself: fetch it with `git lfs pull`")
        return read(file)
    except BadInput:
        raise
    except Exception as error:  # readers raise any exception for a damaged file
        if isinstance(error, _NO_PICKLE) and not is_zipfile(file) and _OLD_FORMAT not in head:
            raise BadInput(
                f"{file} cannot be read as weights: torch.save did not write it; give a file that it wrote, or a "
                ".safetensors"
            ) from error
        if isinstance(error, UnpicklingError):
            raise BadInput(
                f"{file} holds more than tensors, which is not loaded: save its state dict alone, best as .safetensors"
            ) from error
        raise BadInput(f"{file} cannot be read as weights: {type(error).__name__}: {error}") from error


_NO_PICKLE = (UnpicklingError, IndexError, EOFError, KeyError)
"""What PyTorch's reader raises for bytes that are no pickle."""


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
