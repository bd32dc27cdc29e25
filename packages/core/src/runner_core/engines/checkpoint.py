"""Checkpoints as safetensors and JSON, for any engine; reading them cannot run code.

state.json              values, and which tensors share their memory model.safetensors       the network's weights,
under their own names, so that other programs can read them ema.safetensors         their moving average, if the run
keeps one training.safetensors    optimizer, generators, everything else
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from pathlib import Path

from safetensors import SafetensorError

from runner_core.contract import State, Tensors
from runner_core.contract.run import Damaged, remedy, why

PARTS = ("model", "ema", "training")
STATE = "state.json"


class SafetensorsFiles(ABC):
    """`CheckpointFormat` for any engine.

    An engine implements `save` and `load`, and `apart` if its tensors may share memory.
    """

    @abstractmethod
    def save(self, tensors: Tensors, file: Path) -> None: ...

    @abstractmethod
    def load(self, file: Path, device: str) -> Tensors: ...

    def apart(self, tensors: Tensors) -> tuple[Tensors, dict[str, str]]:
        """Return tensors that share no memory, and the names of those that equal another one."""
        return tensors, {}

    def write(self, folder: Path, state: State) -> None:
        """Write the files; raise OSError, with its errno, if the disk is full."""
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
        """Read the files; raise Damaged if this format did not write them."""
        try:
            file = folder / STATE
            content = json.loads(file.read_text(encoding="utf-8"))
            tensors: Tensors = {}
            for part in PARTS:
                file = folder / f"{part}.safetensors"
                if file.is_file():
                    loaded = self.load(file, device)
                    tensors |= {_name(part, inner): tensor for inner, tensor in loaded.items()}
            file = folder / STATE
            for name, twin in content["shared"].items():
                tensors[name] = tensors[twin]
            if not isinstance(content["values"], dict):
                raise ValueError("its `values` are not what they must be")
            return State(content["values"], tensors)
        except (OSError, SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise Damaged(f"{file}: {why(error)}: damaged or changed. {remedy(folder)}") from error

    def _save(self, tensors: Tensors, file: Path) -> None:
        try:
            self.save(tensors, file)
        except SafetensorError as error:
            code = re.search(r"os error (\d+)", str(error))
            raise OSError(int(code[1]) if code else 0, str(error), str(file)) from error


def _place(name: str) -> tuple[str, str]:
    """Split a dotted name into (part, name in it)."""
    first, _, rest = name.partition(".")
    return (first, rest) if first in ("model", "ema") and rest else ("training", name)


def _name(part: str, inner: str) -> str:
    return inner if part == "training" else f"{part}.{inner}"
