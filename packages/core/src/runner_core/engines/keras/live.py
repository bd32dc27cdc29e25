"""Count the memory that a TensorFlow graph takes while it runs, from its operations, without computing anything."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

_SAME_MEMORY = {
    *("Identity", "Reshape", "Squeeze", "ExpandDims", "StopGradient", "PreventGradient", "Snapshot", "EnsureShape"),
    *("Bitcast", "IdentityN", "Enter", "Exit", "NextIteration"),
}
"""Operations whose output is their input, in the same memory."""
_IN_PLACE = {
    *("Relu", "LeakyRelu", "Elu", "Selu", "Sigmoid", "Tanh", "Exp", "Sqrt", "Rsqrt", "Square", "Neg", "Abs", "Log"),
    *("Add", "AddV2", "AddN", "Sub", "Mul", "RealDiv", "Maximum", "Minimum", "BiasAdd", "SelectV2", "Pow"),
    *("ReluGrad", "LeakyReluGrad", "SigmoidGrad", "TanhGrad", "SquaredDifference", "Cast"),
}
"""Operations that write into an input's memory if nothing else needs it any more."""
_NOTHING = {"Placeholder", "ReadVariableOp", "Const"}
"""Operations without memory of their own: the batch and variables exist before, and constants are few."""
_INSIDE = ("f", "body", "then_branch", "else_branch", "branches")
"""Attributes with the names of functions that an operation runs."""


def peak_bytes(graph: Any) -> int:
    """Return the most bytes that the tensors of `graph` hold at once, executed in the order of its creation.

    Tensors of unknown shape count as 0.
    """
    order = graph.get_operations()
    roots: dict[str, str] = {}
    last: dict[str, int] = {}
    for place, operation in enumerate(order):
        for tensor in operation.inputs:
            last[_root(tensor, roots)] = place
        if operation.type in _SAME_MEMORY and operation.inputs:
            for before, after in zip(operation.inputs, operation.outputs, strict=False):
                roots[after.name] = _root(before, roots)
    for tensor in tf.nest.flatten(graph.outputs):
        last[_root(tensor, roots)] = len(order)

    held: dict[str, int] = {}
    ending: dict[int, list[str]] = {}
    now = peak = 0
    for place, operation in enumerate(order):
        inner = sum(_inner(graph, operation))
        for tensor in operation.outputs:
            root = _root(tensor, roots)
            size = 0 if operation.type in _NOTHING or root in held or root not in last else _bytes(tensor)
            if not size:
                continue
            if operation.type in _IN_PLACE:
                ends = (r for t in operation.inputs if last[r := _root(t, roots)] == place and held.get(r) == size)
                if (reused := next(ends, None)) is not None:
                    now -= held.pop(reused)
            held[root] = size
            now += size
            ending.setdefault(last[root], []).append(root)
        peak = max(peak, now + inner)
        for root in ending.pop(place, ()):
            now -= held.pop(root, 0)
    return peak


def _root(tensor: Any, roots: dict[str, str]) -> str:
    return roots.get(tensor.name, tensor.name)


def _bytes(tensor: Any) -> int:
    if not tensor.shape.is_fully_defined() or tensor.dtype in (tf.resource, tf.variant, tf.string):
        return 0
    return int(np.prod(tensor.shape.as_list(), dtype=np.int64)) * int(tensor.dtype.size)


def _inner(graph: Any, operation: Any) -> list[int]:
    """Return the bytes of the functions that an operation runs; of branches only the largest."""
    sizes = []
    for name in operation.node_def.attr if operation.node_def.attr else ():
        if name not in _INSIDE:
            continue
        value = operation.node_def.attr[name]
        functions = [value.func.name] if value.HasField("func") else [f.name for f in value.list.func]
        inside = [graph._get_function(function) for function in functions]
        sizes.append(max((peak_bytes(f.graph) for f in inside if getattr(f, "graph", None) is not None), default=0))
    return [max(sizes)] if sizes else []
