"""Convert nested training state to JSON and named tensors and back, for any engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from runner_core.contract import Array, Json, Tensors

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
