"""Checkpoints of torch: `engines.checkpoint` with torch's tensors, which may share memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from runner_core.contract import Tensors
from runner_core.engines.checkpoint import SafetensorsFiles


class SafetensorsFormat(SafetensorsFiles):
    """`CheckpointFormat` for torch."""

    def save(self, tensors: Tensors, file: Path) -> None:
        save_file(tensors, file)

    def load(self, file: Path, device: str) -> Tensors:
        return load_file(file, device=device)

    def apart(self, tensors: Tensors) -> tuple[Tensors, dict[str, str]]:
        return apart(tensors)


def apart(tensors: Tensors) -> tuple[Tensors, dict[str, str]]:
    """Return contiguous tensors that share no memory, and the names of those that equal another one."""
    own: Tensors = {}
    shared: dict[str, str] = {}
    first: dict[Any, str] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        place = (tensor.device, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
        if tensor.numel() and place in first:
            shared[name] = first[place]
            continue
        first[place] = name
        # A part of another tensor's memory is written as a tensor of its own.
        storage = tensor.untyped_storage().data_ptr()
        own[name] = tensor.clone().contiguous() if storage in storages else tensor.contiguous()
        storages.add(storage)
    return own, shared
