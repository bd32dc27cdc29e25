"""Files of a checkpoint in safetensors, and a training's state as one flat table of tensors."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError

from runner_core.contract import Array, Json, State, Tensors
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
        self.write_files(folder, state)

    def write_files(self, folder: Path, state: State) -> Sequence[Path]:
        """Do what `write` does, and return the files."""
        tensors, shared = self.apart(state.tensors)
        text = json.dumps({"shared": shared, "values": state.values})
        (folder / STATE).write_text(text, encoding="utf-8")
        return [folder / STATE, *self.write_tensors(folder, tensors)]

    def write_tensors(self, folder: Path, tensors: Tensors, ending: str = ".safetensors") -> Sequence[Path]:
        """Write tensors that share no memory, in one file for each of `PARTS`, and return the files."""
        parts: dict[str, Tensors] = {}
        for name, tensor in tensors.items():
            part, inner = _place(name)
            parts.setdefault(part, {})[inner] = tensor
        for part, content in parts.items():
            self._save(content, folder / f"{part}{ending}")
            # safetensors makes files that only their owner can read: give them the folder's usual permissions
            (folder / f"{part}{ending}").chmod(folder.stat().st_mode & 0o666)
        return [folder / f"{part}{ending}" for part in parts]

    def read(self, folder: Path, device: str = "cpu") -> State:
        """Read the files; raise Damaged if this format did not write them."""
        with damaged_if_wrong(folder, folder / STATE):
            content = json.loads((folder / STATE).read_text(encoding="utf-8"))
            tensors = self.read_tensors(folder, device)
            for name, twin in content["shared"].items():
                tensors[name] = tensors[twin]
            if not isinstance(content["values"], dict):
                raise ValueError("its `values` are not a mapping")
            return State(content["values"], tensors)

    def read_tensors(self, folder: Path, device: str, ending: str = ".safetensors") -> Tensors:
        """Return the tensors that `write_tensors` wrote; raise Damaged if it did not."""
        tensors: Tensors = {}
        for part in PARTS:
            file = folder / f"{part}{ending}"
            if file.is_file():
                with damaged_if_wrong(folder, file):
                    tensors |= {_name(part, inner): tensor for inner, tensor in self.load(file, device).items()}
        return tensors

    def _save(self, tensors: Tensors, file: Path) -> None:
        try:
            self.save(tensors, file)
        except SafetensorError as error:
            code = re.search(r"os error (\d+)", str(error))
            raise OSError(int(code[1]) if code else 0, str(error), str(file)) from error


@contextmanager
def damaged_if_wrong(folder: Path, file: Path) -> Iterator[None]:
    """Turn the errors of reading a file of a checkpoint into Damaged."""
    try:
        yield
    except Damaged:
        raise
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged(f"{file} is damaged or was changed: {why(error)}. {remedy(folder)}") from error


def _place(name: str) -> tuple[str, str]:
    """Split a dotted name into (part, name in it)."""
    first, _, rest = name.partition(".")
    return (first, rest) if first in ("model", "ema") and rest else ("training", name)


def _name(part: str, inner: str) -> str:
    return inner if part == "training" else f"{part}.{inner}"


# JSON has no tensors, arrays, tuples or keys that are not strings: each is an object with one of these keys.
TENSOR, ARRAY, TUPLE, PAIRS = "__tensor__", "__array__", "__tuple__", "__pairs__"
_MARKS = (TENSOR, ARRAY, TUPLE, PAIRS)

Keep = Callable[[Any], Any]
"""Returns the engine's tensor in the form to keep, or None if the value is not a tensor."""


def flatten(tree: Any, keep: Keep, wrap: Callable[[Array], Any]) -> tuple[Json, Tensors]:
    """Return (JSON, tensors by dotted name) of nested dicts, lists and tuples of tensors, arrays and JSON values.

    `wrap` makes the engine's tensor from a NumPy array. Raises TypeError for anything else.

    >>> flatten({"a": np.ones(2), "b": [1, None]}, lambda leaf: None, np.asarray)[0]
    {'a': {'__array__': 'a'}, 'b': [1, None]}
    """
    tensors: Tensors = {}
    return _Flattener(keep, wrap, tensors)(tree, ""), tensors


class _Flattener:
    def __init__(self, keep: Keep, wrap: Callable[[Array], Any], tensors: Tensors) -> None:
        self._keep, self._wrap, self._tensors = keep, wrap, tensors

    def __call__(self, tree: Any, name: str) -> Json:
        while name in self._tensors:  # {"a.b": …, "a": {"b": …}}
            name += "_"
        kept = self._keep(tree)
        if kept is not None:
            self._tensors[name] = kept
            return {TENSOR: name}
        if isinstance(tree, np.ndarray):
            self._tensors[name] = self._wrap(np.array(tree, order="C"))
            return {ARRAY: name}
        if isinstance(tree, dict):
            inner = {key: self(value, f"{name}.{key}" if name else str(key)) for key, value in tree.items()}
            plain = all(isinstance(key, str) and key not in _MARKS for key in inner)
            return inner if plain else {PAIRS: [[key, value] for key, value in inner.items()]}
        if isinstance(tree, (list, tuple)):
            items = [self(value, f"{name}.{i}") for i, value in enumerate(tree)]
            return items if isinstance(tree, list) else {TUPLE: items}
        if isinstance(tree, np.generic):
            return tree.item()
        if tree is None or isinstance(tree, (bool, int, float, str)):
            return tree
        raise TypeError(f"{name or 'state'}: a checkpoint cannot hold {type(tree).__name__}")


def unflatten(json: Json, tensors: Tensors, unwrap: Callable[[Any], Array]) -> Any:
    """Return the nested state that `flatten` was given; `unwrap` undoes its `wrap`."""
    if isinstance(json, list):
        return [unflatten(value, tensors, unwrap) for value in json]
    if not isinstance(json, dict):
        return json
    match list(json.items()):
        case [(str(mark), name)] if mark in (TENSOR, ARRAY):
            found = tensors[name] if mark == TENSOR else unwrap(tensors[name])
        case [(str(mark), items)] if mark == TUPLE:
            found = tuple(unflatten(value, tensors, unwrap) for value in items)
        case [(str(mark), pairs)] if mark == PAIRS:
            found = {key: unflatten(value, tensors, unwrap) for key, value in pairs}
        case items:
            found = {key: unflatten(value, tensors, unwrap) for key, value in items}
    return found
