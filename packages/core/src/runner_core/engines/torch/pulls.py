"""Gradient norms of loss terms with respect to the prediction, measured in the training step itself."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from runner_core.contract import Metric, Step, Tensors
from runner_core.contract.project import Project, overrides
from runner_core.engines.pulls import HALF_SCALE, MEASURED_AT, Measured, PullLog, changed
from runner_core.engines.torch.costs import norm


class Pulls(PullLog):
    """Measure at the steps `MEASURED_AT`, and wait for the device there.

    `metrics`: those of the validation; they are reset.
    """

    def __init__(self, project: Project, metrics: Sequence[Metric]) -> None:
        super().__init__()
        self._project, self._metrics = project, metrics
        self._ignores = overrides(project, "ignored")
        self._measured: int | None = None

    def measure(self, number: int, step: Step, batch: Tensors) -> None:
        """Measure once in the step after `number` finished ones, on its first micro-batch. `step` keeps its graph."""
        if number not in MEASURED_AT or number == self._measured:
            return
        self._measured = number
        try:
            self.add(self._measure(step, batch))
        except torch.OutOfMemoryError:  # the step itself may have enough
            torch.cuda.empty_cache()

    def taught(self, number: int, network: nn.Module, trained: Sequence[nn.Parameter]) -> None:
        """Note once in the same steps, after the backward pass, which trained weights have no gradient.

        An optimizer may also hold frozen weights (`requires_grad`), which do not count.
        """
        if number in MEASURED_AT:
            silent = {id(parameter) for parameter in trained if parameter.requires_grad and parameter.grad is None}
            named = network.named_parameters() if silent else ()
            found = {name: parameter.numel() for name, parameter in named if id(parameter) in silent}
            foreign = len(silent) - len(found)
            self.look({**found, **({"weights that are not the network's": foreign} if foreign else {})})

    def _measure(self, step: Step, batch: Tensors) -> Measured:
        found = Measured()
        parts = [part for part in tensors_in(step.prediction) if part.requires_grad]
        for name, term in step.terms.items():
            if not (isinstance(term, Tensor) and term.requires_grad):
                found.detached.append(name)
            elif name not in step.costs and (pull := _pull(term, parts)) is not None:
                found.pulls[name] = pull
        if self._ignores and len(parts) == 1 and parts[0] is step.prediction:
            found.ignored = self._at_ignored(step.loss, parts[0], batch)
        return found

    def _at_ignored(self, loss: Tensor, prediction: Tensor, batch: Tensors) -> dict[str, Any] | None:
        """Return None if nothing is ignored, or if the loss does not depend on the prediction."""
        marked = self._project.ignored(batch)
        if marked is None or not marked.any():
            return None
        gradient = _gradients(loss, [prediction])[0]
        if gradient is None:
            return None
        size, marked = gradient.abs(), marked.expand(gradient.shape)
        largest, there = float(size.max()), float(size.where(marked, 0).max())
        if not math.isfinite(largest):  # it overflowed
            return None
        with torch.no_grad():
            shown = prediction.detach()
            seen = changed(self._metrics, shown, torch.where(marked, -shown, shown), batch)
        return {"share": float(marked.float().mean()), "pull": there / largest if largest else 0.0, "metrics": seen}


def _pull(term: Tensor, parts: Sequence[Tensor]) -> float | None:
    """Return the norm of the gradient over all parts; None if the term does not depend on any of them."""
    found = [gradient for gradient in _gradients(term, parts) if gradient is not None]
    return float(torch.stack([norm(gradient) for gradient in found]).norm()) / _scale(parts) if found else None


def _gradients(value: Tensor, parts: Sequence[Tensor]) -> Sequence[Tensor | None]:
    """Return the gradients of `_scale` times the value."""
    if not parts:
        return ()
    outer = torch.full_like(value, _scale(parts))
    return torch.autograd.grad(value, parts, outer, retain_graph=True, allow_unused=True)


def _scale(parts: Sequence[Tensor]) -> float:
    return HALF_SCALE if any(part.dtype == torch.float16 for part in parts) else 1.0


def tensors_in(prediction: Any) -> Iterator[Tensor]:
    """Return the tensors in a prediction: one, or several by name or in a row."""
    if isinstance(prediction, Tensor):
        yield prediction
    elif isinstance(prediction, Mapping):
        for part in prediction.values():
            yield from tensors_in(part)
    elif isinstance(prediction, (list, tuple)):
        for part in prediction:
            yield from tensors_in(part)
