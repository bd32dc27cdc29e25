"""Measure the cost of the loss without the network, by a step in which recorded network outputs are replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from runner_core.contract import Progress, Tensors
from runner_core.contract.project import Project


def loss_seconds(
    project: Project,
    network: nn.Module,
    tensors: Tensors,
    progress: Progress,
    count: int,
    cast: AbstractContextManager[object],
) -> float | None:
    """Return the mean seconds of `project.step` and its backward pass to the network's outputs, over `count` runs.

    `tensors` is the result of `on_device`. Returns None if the step computes its loss from anything other than results
    of calling the network, or its parts and methods. The network runs once, in training mode.
    """
    tape = _Tape()
    network_played: Any = _Played(network, tape)
    with cast:
        loss = project.step(network_played, tensors, progress).loss
    if not tape.outputs or not loss.requires_grad:
        return None
    tape.recording = False
    loss.backward()
    device = next(iter(network.parameters())).device
    begun = _now(device)
    for _ in range(count):
        tape.rewind()
        with cast:
            loss = project.step(network_played, tensors, progress).loss
        loss.backward()
    return (_now(device) - begun) / count


class _Tape:
    """Outputs of the network's calls in one step, in order; each is returned as a leaf, where gradients end."""

    def __init__(self) -> None:
        self.recording = True
        self.outputs: list[Any] = []
        self._coming: Iterator[Any] = iter(())

    def play(self, call: Callable[[], Any]) -> Any:
        if not self.recording:
            return next(self._coming)
        output = pytree.tree_map(_leaf, call())
        self.outputs.append(output)
        return output

    def rewind(self) -> None:
        for output in self.outputs:
            for leaf in pytree.tree_leaves(output):
                if isinstance(leaf, Tensor):
                    leaf.grad = None
        self._coming = iter(self.outputs)


class _Played:
    """A network, or a part or method of one, that returns recorded outputs when it is called."""

    def __init__(self, real: Any, tape: _Tape) -> None:
        self._real, self._tape = real, tape

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        return self._tape.play(lambda: self._real(*inputs, **options))

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        return _Played(found, self._tape) if callable(found) else found


def _leaf(value: Any) -> Any:
    return value.detach().requires_grad_(value.requires_grad) if isinstance(value, Tensor) else value


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return perf_counter()
