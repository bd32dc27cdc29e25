"""Nested training state ↔ JSON and named tensors; and the state of the default random generators."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from runner_core.protocols import Json, Tensors

# JSON has no tensors, arrays, tuples or keys that are not strings: each is an object with one of these keys.
TENSOR, ARRAY, TUPLE, PAIRS = "__tensor__", "__array__", "__tuple__", "__pairs__"


def flatten(tree: Any, name: str = "") -> tuple[Json, Tensors]:
    """(JSON, tensors by dotted name) of nested dicts, lists and tuples of tensors, NumPy arrays and JSON values.

    Raises TypeError for anything else.

    >>> flatten({"a": torch.ones(2), "b": [1, None]}, "x")[0]
    {'a': {'__tensor__': 'x.a'}, 'b': [1, None]}
    """
    tensors: Tensors = {}
    return _flatten(tree, name, tensors), tensors


def _flatten(tree: Any, name: str, tensors: Tensors) -> Json:
    while name in tensors:  # {"a.b": …, "a": {"b": …}}
        name += "_"
    if isinstance(tree, torch.Tensor):
        tensors[name] = tree.detach()
        return {TENSOR: name}
    if isinstance(tree, np.ndarray):
        tensors[name] = torch.from_numpy(np.array(tree, order="C"))
        return {ARRAY: name}
    if isinstance(tree, dict):
        inner = {key: _flatten(value, f"{name}.{key}" if name else str(key), tensors) for key, value in tree.items()}
        plain = all(isinstance(key, str) and key not in _READERS for key in inner)
        return inner if plain else {PAIRS: [[key, value] for key, value in inner.items()]}
    if isinstance(tree, (list, tuple)):
        items = [_flatten(value, f"{name}.{i}", tensors) for i, value in enumerate(tree)]
        return items if isinstance(tree, list) else {TUPLE: items}
    if isinstance(tree, np.generic):
        return tree.item()
    if tree is None or isinstance(tree, (bool, int, float, str)):
        return tree
    raise TypeError(f"{name or 'state'}: a checkpoint cannot hold {type(tree).__name__}")


def unflatten(json: Json, tensors: Tensors) -> Any:
    """The nested state that `flatten` was given."""
    if isinstance(json, list):
        return [unflatten(value, tensors) for value in json]
    if not isinstance(json, dict):
        return json
    kind = next(iter(json), None)
    if kind in _READERS and len(json) == 1:
        return _READERS[kind](json[kind], tensors)
    return {key: unflatten(value, tensors) for key, value in json.items()}


_READERS: dict[Any, Callable[[Any, Tensors], Any]] = {
    TENSOR: lambda name, tensors: tensors[name],
    ARRAY: lambda name, tensors: tensors[name].cpu().numpy(),
    TUPLE: lambda items, tensors: tuple(unflatten(value, tensors) for value in items),
    PAIRS: lambda pairs, tensors: {key: unflatten(value, tensors) for key, value in pairs},
}


def seed_generators(seed: int) -> None:
    """Seed the generators that a project's own code may use (dropout, initial weights)."""
    torch.manual_seed(seed)
    np.random.seed(seed % (1 << 32))  # noqa: NPY002 - for code that is not ours
    random.seed(seed)


def read_generators(device: torch.device, everything: bool = True) -> dict[str, Any]:
    """State of torch's default generators (host and device) and, with `everything`, of NumPy's and Python's."""
    state: dict[str, Any] = {"torch": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    if everything:
        state["numpy"] = np.random.get_state()  # noqa: NPY002
        state["python"] = random.getstate()
    return state


def write_generators(state: dict[str, Any], device: torch.device) -> None:
    """Put generators back to where `read_generators` saw them."""
    torch.set_rng_state(state["torch"].cpu())
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"].cpu(), device)
    if "numpy" in state:
        np.random.set_state(state["numpy"])  # noqa: NPY002
        random.setstate(state["python"])
