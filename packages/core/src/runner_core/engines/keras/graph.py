"""Count what a TensorFlow graph computes, and the most memory that it needs at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from runner_core.contract.phases import Operation

_NOTHING = {
    *("Const", "Identity", "IdentityN", "NoOp", "Placeholder", "ReadVariableOp", "Reshape", "Shape", "VarHandleOp"),
    *("ExpandDims", "Squeeze", "StopGradient", "PreventGradient", "Rank", "Size", "Enter", "Exit", "Merge", "Switch"),
}
"""Operations that move no data, or hardly any."""


def operations(graph: Any) -> list[Operation]:
    """Return the operations of a traced function's graph and of the functions that it calls.

    The body of a loop counts once.
    """
    return list(_operations(graph))


def _operations(graph: Any) -> Iterator[Operation]:
    called = {function.name: function for function in graph._functions.values()} if hasattr(graph, "_functions") else {}
    for op in _executed(graph):
        inner = [
            called[name] for name in _callees(op) if name in called and getattr(called[name], "graph", None) is not None
        ]
        if inner:
            for function in inner:
                yield from _operations(function.graph)
        elif op.type not in _NOTHING:
            tensors = [*op.inputs, *op.outputs]
            yield Operation(_flops(op), sum(_bytes(tensor) for tensor in tensors))


def _executed(graph: Any) -> Iterator[Any]:
    """Yield the operations that the graph's outputs and side effects depend on.

    Unused gradients are traced too, but are not among them.
    """
    waiting = [*(tensor.op for tensor in graph.outputs), *graph.control_outputs]
    seen: set[Any] = set()
    while waiting:
        op = waiting.pop()
        if op not in seen:
            seen.add(op)
            yield op
            waiting += [*(tensor.op for tensor in op.inputs), *op.control_inputs]


def _callees(op: Any) -> Iterator[str]:
    for name in ("f", "body", "then_branch"):
        try:
            found = op.get_attr(name)
        except ValueError:
            continue
        if hasattr(found, "name"):
            yield found.name


def _bytes(tensor: Any) -> int:
    shape = tensor.shape
    if shape.rank is None or not shape.is_fully_defined() or tensor.dtype.name in ("resource", "variant", "string"):
        return 0
    return int(shape.num_elements()) * int(tensor.dtype.size)


def _flops(op: Any) -> int:
    """Return the multiplications and additions of matrix products and convolutions, and of their gradients."""
    count = _COUNTED.get(op.type)
    try:
        return 0 if count is None else 2 * count(op)
    except (TypeError, ValueError):  # a shape that is only known when it runs
        return 0


def _einsum(op: Any) -> int:
    """Return the products of an einsum over two tensors: the product of the sizes of all its letters."""
    sizes: dict[str, int] = {}
    equation = op.get_attr("equation").decode()
    for letters, tensor in zip(equation.partition("->")[0].split(","), op.inputs, strict=True):
        if "." not in letters:
            sizes |= dict(zip(letters, map(int, tensor.shape), strict=True))
    return math.prod(sizes.values()) if len(op.inputs) == 2 else 0


def _count(tensor: Any) -> int:
    return int(tensor.shape.num_elements())


def _kernel(tensor: Any) -> int:
    """Return the products in one value of a convolution's output: kernel sizes times input channels."""
    return math.prod(int(size) for size in tensor.shape[:-1])


def _product(op: Any) -> int:
    turned = op.get_attr("transpose_a" if op.type == "MatMul" else "adj_x")
    return _count(op.outputs[0]) * int(op.inputs[0].shape[-2 if turned else -1])


_COUNTED: dict[str, Callable[[Any], int]] = {
    **dict.fromkeys(("Conv2D", "Conv3D"), lambda op: _count(op.outputs[0]) * _kernel(op.inputs[1])),
    **dict.fromkeys(
        ("Conv2DBackpropInput", "Conv3DBackpropInputV2"), lambda op: _count(op.inputs[2]) * _kernel(op.inputs[1])
    ),
    **dict.fromkeys(
        ("Conv2DBackpropFilter", "Conv3DBackpropFilterV2"), lambda op: _count(op.inputs[2]) * _kernel(op.outputs[0])
    ),
    "DepthwiseConv2dNative": lambda op: _count(op.outputs[0]) * math.prod(int(n) for n in op.inputs[1].shape[:2]),
    **dict.fromkeys(("MatMul", "BatchMatMulV2", "BatchMatMulV3"), _product),
    "Einsum": _einsum,
}
"""Functions that count the products of an operation, by its type."""


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
_NO_MEMORY = {"Placeholder", "ReadVariableOp", "Const"}
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
            size = 0 if operation.type in _NO_MEMORY or root in held or root not in last else _bytes(tensor)
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
