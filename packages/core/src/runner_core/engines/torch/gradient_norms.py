"""Gradient norms of loss terms with respect to the prediction, measured in the training step itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from runner_core.contract import Json, Metric, Progress, Step, Tensors
from runner_core.contract.project import Project
from runner_core.engines.gradient_norms import FIRST, HALF_SCALE, MEASURED_AT, GradientLog, Measured, changed
from runner_core.engines.torch.accelerator import free


class GradientNorms(GradientLog):
    """Measure at the steps `MEASURED_AT` and in the `FIRST` steps of each term, and wait for the device there.

    `metrics` are those of the validation; they are reset. Unless this process trains `alone`, only the norms are
    measured: for all else the processes would have to ask each other.
    """

    def __init__(self, project: Project, metrics: Sequence[Metric], alone: bool) -> None:
        super().__init__()
        self._metrics, self._alone = metrics, alone
        self._marked = project.health().ignored
        self._measured: int | None = None
        self._times: dict[str, int] = {}
        """Number of measurements of each term."""

    def around(self, step: Callable[..., Step]) -> Callable[..., Step]:
        """Return a project's `step` that measures in training, for DDP, which hands on the loss's graph alone."""

        def measured(network: nn.Module, batch: Tensors, progress: Progress) -> Step:
            found = step(network, batch, progress)
            if torch.is_grad_enabled():
                self.measure(progress.step, found, batch)
            return found

        return measured

    def measure(self, number: int, step: Step, batch: Tensors) -> None:
        """Measure once in the step after `number` finished ones, on its first micro-batch. `step` keeps its graph."""
        if number == self._measured or not (number in MEASURED_AT or self._is_new(step)):
            return
        self._measured = number
        for name in step.terms:
            self._times[name] = self._times.get(name, 0) + 1
        try:
            self.add(self._measure(step, batch))
        except torch.OutOfMemoryError:  # the step itself may have enough
            if not self._alone:
                raise
            free(step.loss.device)

    def _is_new(self, step: Step) -> bool:
        return any(self._times.get(name, 0) < FIRST for name in step.terms)

    def state(self) -> Json:
        return {**super().state(), "times": dict(self._times)}

    def load(self, state: Mapping[str, Json]) -> None:
        super().load(state)
        self._times = dict(state.get("times", {}))

    def taught(self, number: int, network: nn.Module, trained: Sequence[nn.Parameter]) -> None:
        """Note once in the same steps, after the backward pass, which trained weights have no gradient.

        An optimizer may also hold frozen weights (`requires_grad`), which do not count.
        """
        if self._alone and number in MEASURED_AT:
            silent = {id(parameter) for parameter in trained if parameter.requires_grad and parameter.grad is None}
            named = network.named_parameters() if silent else ()
            found = {name: parameter.numel() for name, parameter in named if id(parameter) in silent}
            foreign = len(silent) - len(found)
            self.look({**found, **({"weights that are not the network's": foreign} if foreign else {})})

    def _measure(self, step: Step, batch: Tensors) -> Measured:
        found = Measured()
        outputs = step.prediction if step.outputs is None else step.outputs
        parts = [part for part in tensors_in(outputs) if part.requires_grad]
        for name, term in step.terms.items():
            if not (isinstance(term, Tensor) and term.requires_grad):
                found.detached.append(name)
            elif (norm := gradient_norm(term, parts)) is not None:
                found.norms[name] = norm
        if not self._alone:
            return Measured(found.norms)
        if self._marked is not None and isinstance(step.prediction, Tensor) and step.prediction.requires_grad:
            found.ignored = self._at_ignored(step.loss, step.prediction, batch, self._marked(batch))
        return found

    def _at_ignored(
        self, loss: Tensor, prediction: Tensor, batch: Tensors, marked: Any | None
    ) -> dict[str, Any] | None:
        """Return None if nothing is ignored, or if the loss does not depend on the prediction."""
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
        return {"share": float(marked.float().mean()), "gradient": there / largest if largest else 0.0, "metrics": seen}


def gradient_norm(term: Tensor, parts: Sequence[Tensor]) -> float | None:
    """Return the norm of the gradient over all parts; None if the term does not depend on any of them."""
    found = [norm(gradient) for gradient in _gradients(term, parts) if gradient is not None]
    return float(torch.stack(found).norm()) / _scale(parts) if found else None


def norm(gradient: Tensor) -> Tensor:
    """Return the norm in float32, summed in float32 or better."""
    wide = torch.promote_types(gradient.dtype, torch.float32)
    return torch.linalg.vector_norm(gradient, dtype=wide).float()


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
