"""Time and gradient norm of loss terms: measured by the project, kept until the log is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter

import torch
from torch import Tensor

from runner_core.base.errors import BadInput
from runner_core.contract import Cost, Json
from runner_core.contract.project import Project
from runner_core.engines.pulls import HALF_SCALE
from runner_core.engines.torch.steplog import read


def measured(
    term: Callable[[], Tensor], prediction: Tensor | Sequence[Tensor], weight: float = 1.0
) -> tuple[Tensor, Cost]:
    """Return a loss term, as `term()` computes it from `prediction`, and its `Cost`, for the project's `step`.

    The value (0-d) keeps its graph, to be added to the loss. `Cost.gradient` (0-d float32) is the norm of `weight`
    times its gradient with respect to the prediction, all tensors together where there are several (the answers of
    deep supervision): 0 where the term does not depend on it, or where no gradients are computed. `Cost.seconds` are
    those of the term and of its gradient, not of the network.

    It waits for the device before and after, so measure at few steps: every 50th, say. Not in the first, in which
    kernels are loaded and functions compiled.

    >>> logits = torch.tensor([0.0, 3.0], requires_grad=True)
    >>> value, cost = measured(lambda: logits.square().mean(), logits, weight=2.0)
    >>> value.item(), cost.gradient.item()
    (4.5, 6.0)
    """
    parts = [prediction] if isinstance(prediction, Tensor) else list(prediction)
    scale = HALF_SCALE if any(part.dtype == torch.float16 for part in parts) else 1.0
    begun = _now(parts[0])
    value = term()
    wanted = [part for part in parts if part.requires_grad]
    gradients: Sequence[Tensor | None] = ()
    if value.requires_grad and wanted:
        outer = torch.full_like(value, scale)
        gradients = torch.autograd.grad(value, wanted, outer, retain_graph=True, allow_unused=True)
    seconds = _now(parts[0]) - begun
    norms = [norm(g) for g in gradients if g is not None]
    total = torch.linalg.vector_norm(torch.stack(norms)) if norms else torch.zeros((), device=value.device)
    return value, Cost(total * (abs(weight) / scale), seconds)


def norm(gradient: Tensor) -> Tensor:
    """Return the norm in float32, summed in float32 or better."""
    wide = torch.promote_types(gradient.dtype, torch.float32)
    return torch.linalg.vector_norm(gradient, dtype=wide).float()


def _now(tensor: Tensor) -> float:
    """Return the time in seconds, once the device has finished its work."""
    if tensor.device.type == "cuda":
        torch.cuda.synchronize(tensor.device)
    return perf_counter()


class Costs:
    """The newest costs that a project's `step` returned; they stay on the device until they are read."""

    def __init__(self, project: Project) -> None:
        self._project = project.name
        self._newest: dict[str, Cost] = {}

    def keep(self, costs: Mapping[str, Cost]) -> None:
        """Keep the costs of a step. Raises BadInput for a value that is no `Cost`."""
        for name, cost in costs.items():
            if not isinstance(cost, Cost):
                raise BadInput(
                    f"project {self._project}: `step` must return its costs as Cost(gradient, seconds) by name; "
                    f"{name!r} is {type(cost).__name__}"
                )
        if costs:
            self._newest = {
                name: Cost(*(v.detach() if isinstance(v, Tensor) else v for v in cost)) for name, cost in costs.items()
            }

    def take(self) -> dict[str, Json] | None:
        """Return the log's entry for costs that are new since the last call; wait for the device if there are any."""
        self._settle()
        newest, self._newest = self._newest, {}
        if not newest:
            return None
        milliseconds = {name: round(1000 * cost.seconds, 4) for name, cost in newest.items()}
        return {
            "gradient_norm": {name: cost.gradient for name, cost in newest.items()},
            "timing": {"milliseconds": milliseconds},
        }

    def state(self) -> Json:
        """Return the costs that no log has yet, for the checkpoint; those that follow from the clock under "timing"."""
        self._settle()
        parts = {"gradient": 0, "timing": 1}
        return {part: {name: cost[i] for name, cost in self._newest.items()} for part, i in parts.items()}

    def load(self, state: Mapping[str, Json]) -> None:
        seconds = state.get("timing", {})
        self._newest = {name: Cost(norm, seconds[name]) for name, norm in state.get("gradient", {}).items()}

    def _settle(self) -> None:
        tensors = [value for cost in self._newest.values() for value in cost if isinstance(value, Tensor)]
        if tensors:
            numbers = iter(read(tensors))
            self._newest = {
                name: Cost(*(next(numbers) if isinstance(value, Tensor) else value for value in cost))
                for name, cost in self._newest.items()
            }
