"""Checkpoints as safetensors and JSON: nothing in them can run code when it is read.

state.json              values, and which tensors share their memory
model.safetensors       the network's weights, under their own names: other programs can read them
ema.safetensors         their moving average, where the run keeps one
training.safetensors    optimizer, generators, everything else
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from runner_core.checkpoint import Damaged
from runner_core.protocols import State, Tensors

PARTS = ("model", "ema", "training")
STATE = "state.json"


class SafetensorsFormat:
    """`protocols.CheckpointFormat` for torch."""

    def write(self, folder: Path, state: State) -> None:
        """Raises OSError, with its errno, when the disk is full."""
        tensors, shared = apart(state.tensors)
        text = json.dumps({"shared": shared, "values": state.values})
        (folder / STATE).write_text(text, encoding="utf-8")
        parts: dict[str, Tensors] = {}
        for name, tensor in tensors.items():
            part, inner = _place(name)
            parts.setdefault(part, {})[inner] = tensor
        for part, content in parts.items():
            _save(folder / f"{part}.safetensors", content)
            # safetensors makes files that only their owner can read: give them the folder's usual permissions
            (folder / f"{part}.safetensors").chmod((folder / STATE).stat().st_mode)

    def read(self, folder: Path, device: str = "cpu") -> State:
        """Raises Damaged when the files are not what this format writes."""
        try:
            content = json.loads((folder / STATE).read_text(encoding="utf-8"))
            tensors: Tensors = {}
            for part in PARTS:
                file = folder / f"{part}.safetensors"
                if file.is_file():
                    loaded = load_file(file, device=device)
                    tensors |= {_name(part, inner): tensor for inner, tensor in loaded.items()}
            for name, twin in content["shared"].items():
                tensors[name] = tensors[twin]
            return State(content["values"], tensors)
        except (FileNotFoundError, SafetensorError, ValueError, KeyError) as error:
            raise Damaged(f"{folder} is not a checkpoint that this runner can read: {error}") from error


def _place(name: str) -> tuple[str, str]:
    """(part, name in it) of a dotted name."""
    first, _, rest = name.partition(".")
    return (first, rest) if first in ("model", "ema") and rest else ("training", name)


def _name(part: str, inner: str) -> str:
    return inner if part == "training" else f"{part}.{inner}"


def apart(tensors: Tensors) -> tuple[Tensors, dict[str, str]]:
    """Tensors that share no memory, each contiguous; and names of those that are the same as another one."""
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


def _save(file: Path, tensors: dict[str, torch.Tensor]) -> None:
    try:
        save_file(tensors, file)
    except SafetensorError as error:
        code = re.search(r"os error (\d+)", str(error))
        raise OSError(int(code[1]) if code else 0, str(error), str(file)) from error
