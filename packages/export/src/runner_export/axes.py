"""The axes of a window that may have another length: they are found by trying, because exporters guess."""

from __future__ import annotations

from runner_core import Arrays

from runner_export.window import Graph, resized

Axes = dict[str, list[int | None]]
_STEPS = (1, 2, 4, 8, 16, 32)


def multiples(graph: Graph, example: Arrays) -> Axes:
    """Return for each axis of each input the number of which its length is a multiple; None if it is fixed.

    The first axis is the batch's. Another one may vary if eager PyTorch takes examples that are one and two steps
    longer.
    """
    found: Axes = {}
    for name, array in example.items():
        found[name] = [1, *(_multiple(graph, example, name, axis) for axis in range(1, array.ndim))]
    return found


def other_lengths(example: Arrays, found: Axes) -> Arrays:
    """Return the example with three samples, and one step longer along every axis that may vary."""
    out: Arrays = {}
    for name, array in example.items():
        for axis, multiple in enumerate(found[name]):
            length = 3 if axis == 0 else array.shape[axis] + (multiple or 0)
            array = resized(array, axis, length)
        out[name] = array
    return out


def _multiple(graph: Graph, example: Arrays, name: str, axis: int) -> int | None:
    length = example[name].shape[axis]
    if length == 1:
        return None
    for step in _STEPS:
        if length % step:
            return None
        if all(_runs(graph, {**example, name: resized(example[name], axis, length + n * step)}) for n in (1, 2)):
            return step
    return None


def _runs(graph: Graph, arrays: Arrays) -> bool:
    try:
        graph.infer(arrays)
    except Exception:  # whatever a network raises for a shape that it cannot take
        return False
    return True
