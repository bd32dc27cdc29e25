"""Measure the cost of the loss without the network, by a step in which recorded network outputs are replayed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from runner_core.contract import Progress, Step, Tensors
from runner_core.contract.project import Project
from runner_core.engines.torch.accelerator import timed_event, wait

_TRIES = 3


class Replay:
    """A project's step, computed again and again from the outputs that the network gave once, in training mode.

    `tensors` is the result of `on_device`. `possible` is False if the step computes its loss from anything other than
    results of calling the network, or its parts and methods, or if it needs the network itself.
    """

    def __init__(
        self,
        project: Project,
        network: nn.Module,
        tensors: Tensors,
        progress: Progress,
        cast: AbstractContextManager[object],
    ) -> None:
        self._tape, self._cast = _Tape(), cast
        self._device = next(iter(network.parameters())).device
        played: Any = _Played(network, self._tape)
        self._run: Callable[[], Step] = partial(project.step, played, tensors, progress)
        try:
            loss = self.step().loss
        except (
            AttributeError,
            TypeError,
        ):  # what stands in for the network is no module
            self.possible = False
            return
        self.possible = bool(self._tape.outputs) and bool(loss.requires_grad)
        self._tape.recording = False
        if self.possible:
            loss.backward()  # also loads kernels and compiles functions

    def step(self) -> Step:
        """Return the step with its graph, which ends at the network's outputs."""
        self._tape.rewind()
        with self._cast:
            return self._run()

    def seconds(self, count: int) -> float | None:
        """Return the mean seconds of the step and its backward pass, over `count` runs; None if it is not possible."""
        if not self.possible:
            return None
        begun = self._now()
        for _ in range(count):
            self.step().loss.backward()
        return (self._now() - begun) / count

    def terms(self) -> dict[str, tuple[float, float, float]]:
        """Return the seconds of each term and of its gradient, the shortest of several runs, and the gradient's norm.

        The gradient is with respect to the network's outputs. `loss` is all terms together, as they are weighted.
        Terms without a graph are left out.
        """
        leaves = [leaf for output in self._tape.outputs for leaf in _differentiable(output)]
        tries = [self._timed(leaves) for _ in range(_TRIES)] if self.possible and leaves else []
        found: dict[str, tuple[float, float, float]] = {}
        for name, (*_, norm) in tries[-1].items() if tries else ():
            forward, backward = (min(times) for times in zip(*(one[name][:2] for one in tries), strict=True))
            found[name] = forward, backward, norm
        return found

    def _timed(self, leaves: list[Tensor]) -> dict[str, tuple[float, float, float]]:
        timeline, begun = _Timeline(self._device), self._now()
        with timeline:
            step = self.step()
        whole = self._now() - begun
        forward = timeline.seconds({name: term for name, term in step.terms.items() if _is_differentiable(term)})
        found: dict[str, tuple[float, float, float]] = {}
        for name, seconds in {**forward, "loss": whole}.items():
            begun = self._now()
            term = step.loss if name == "loss" else step.terms[name]
            gradients = torch.autograd.grad(term, leaves, retain_graph=True, allow_unused=True)
            taken = self._now() - begun
            norms = [torch.linalg.vector_norm(g.float()) for g in gradients if g is not None]
            found[name] = seconds, taken, float(torch.linalg.vector_norm(torch.stack(norms))) if norms else 0.0
        return found

    def _now(self) -> float:
        wait(self._device)
        return perf_counter()


class _Call(NamedTuple):
    """A call of torch: when it began and ended, and the numbers of the graph's nodes that it made."""

    begun: Any
    ended: Any
    first: int
    after: int


class _Timeline(TorchFunctionMode):
    """Note when the nodes of the graph are made, so that terms which are computed in a row are told apart."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device
        self._calls: list[_Call] = []
        self._note(self._stamp(), _next_node())

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        first, begun = _next_node(), self._stamp()
        result = func(*args, **(kwargs or {}))
        self._note(begun, first)
        return result

    def _note(self, begun: Any, first: int) -> None:
        if not self._calls or _next_node() > first:
            self._calls.append(_Call(begun, self._stamp(), first, _next_node()))

    def seconds(self, terms: Mapping[str, Tensor]) -> dict[str, float]:
        """Return the time from the first to the last operation of each term; what terms share counts for the first."""
        until, end = self._calls[0].first, _next_node()
        self._calls.append(_Call(self._stamp(), self._stamp(), end, end + 1))
        wait(self._device)
        nodes = {name: [n for n in map(_number, _graph(term)) if until <= n < end] for name, term in terms.items()}
        found = dict.fromkeys(terms, 0.0)
        for name, numbers in sorted(nodes.items(), key=lambda item: max(item[1], default=-1)):
            if own := [number for number in numbers if number >= until]:
                found[name] = self._between(self._made(min(own))[0], self._made(max(own))[1])
                until = max(own) + 1
        return found

    def _made(self, node: int) -> tuple[Any, Any]:
        """Return when a node was made; those of autograd functions that are not torch's are made between calls."""
        at = bisect_right(self._calls, node, key=lambda call: call.after)
        call = self._calls[at]
        return (call.begun, call.ended) if call.first <= node else (self._calls[at - 1].ended, call.begun)

    def _stamp(self) -> Any:
        return perf_counter() if self._device.type == "cpu" else timed_event(self._device)

    def _between(self, begun: Any, ended: Any) -> float:
        return float(ended - begun if self._device.type == "cpu" else begun.elapsed_time(ended) / 1e3)


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

    def __iter__(self) -> Iterator[Any]:
        return (_Played(part, self._tape) for part in self._real)

    def __getitem__(self, which: Any) -> Any:
        return _Played(self._real[which], self._tape)

    def __len__(self) -> int:
        return len(self._real)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        return _Played(found, self._tape) if callable(found) else found


def _leaf(value: Any) -> Any:
    return value.detach().requires_grad_(value.requires_grad) if isinstance(value, Tensor) else value


def _is_differentiable(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def _differentiable(values: Any) -> Iterator[Tensor]:
    return (leaf for leaf in pytree.tree_leaves(values) if _is_differentiable(leaf))


def _next_node() -> int:
    """Return the number of the graph's next node; they count up in the order in which nodes are made."""
    return int(torch._C._autograd._get_sequence_nr())


def _number(node: Any) -> int:
    return int(node._sequence_nr())


def _graph(tensor: Tensor) -> set[Any]:
    """Return the nodes of the tensor's graph."""
    found, waiting = set[Any](), [tensor.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in found:
            found.add(node)
            waiting += [following for following, _ in node.next_functions]
    return found
