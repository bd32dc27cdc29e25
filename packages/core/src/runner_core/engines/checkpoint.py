"""Checkpoints as safetensors and JSON: nothing in them can run code when it is read. Any engine.

state.json              values, and which tensors share their memory
model.safetensors       the network's weights, under their own names: other programs can read them
ema.safetensors         their moving average, where the run keeps one
training.safetensors    optimizer, generators, everything else
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from pathlib import Path

from safetensors import SafetensorError

from runner_core.checkpoint import Damaged
from runner_core.protocols import State, Tensors

PARTS = ("model", "ema", "training")
STATE = "state.json"


class SafetensorsFiles(ABC):
    """`protocols.CheckpointFormat`; an engine gives `save`, `load` and, where tensors may share memory, `apart`."""

    @abstractmethod
    def save(self, tensors: Tensors, file: Path) -> None: ...

    @abstractmethod
    def load(self, file: Path, device: str) -> Tensors: ...

    def apart(self, tensors: Tensors) -> tuple[Tensors, dict[str, str]]:
        """Tensors that share no memory; and names of those that are the same as another one."""
        return tensors, {}

    def write(self, folder: Path, state: State) -> None:
        """Raises OSError, with its errno, when the disk is full."""
        tensors, shared = self.apart(state.tensors)
        text = json.dumps({"shared": shared, "values": state.values})
        (folder / STATE).write_text(text, encoding="utf-8")
        parts: dict[str, Tensors] = {}
        for name, tensor in tensors.items():
            part, inner = _place(name)
            parts.setdefault(part, {})[inner] = tensor
        for part, content in parts.items():
            self._save(content, folder / f"{part}.safetensors")
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
                    loaded = self.load(file, device)
                    tensors |= {_name(part, inner): tensor for inner, tensor in loaded.items()}
            for name, twin in content["shared"].items():
                tensors[name] = tensors[twin]
            return State(content["values"], tensors)
        except (FileNotFoundError, SafetensorError, ValueError, KeyError) as error:
            raise Damaged(f"{folder} is not a checkpoint that this runner can read: {error}") from error

    def _save(self, tensors: Tensors, file: Path) -> None:
        try:
            self.save(tensors, file)
        except SafetensorError as error:
            code = re.search(r"os error (\d+)", str(error))
            raise OSError(int(code[1]) if code else 0, str(error), str(file)) from error


def _place(name: str) -> tuple[str, str]:
    """(part, name in it) of a dotted name."""
    first, _, rest = name.partition(".")
    return (first, rest) if first in ("model", "ema") and rest else ("training", name)


def _name(part: str, inner: str) -> str:
    return inner if part == "training" else f"{part}.{inner}"
