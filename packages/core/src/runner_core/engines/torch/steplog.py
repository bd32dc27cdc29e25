"""Read losses as numbers, and check that weights stay finite."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from runner_core.base.errors import BadInput
from runner_core.contract import Tensors
from runner_core.contract.project import Project
from runner_core.contract.team import Team
from runner_core.engines.torch.parallel import own


def read(tensors: Sequence[torch.Tensor]) -> list[float]:
    """Return the numbers of 0-d tensors; waits for the device once."""
    try:
        return torch.stack(list(tensors)).tolist()
    except RuntimeError:  # several shapes or devices
        return [float(tensor) for tensor in tensors]


class Means:
    """Reads 0-d tensors that each of several processes has, as their means over the processes."""

    def __init__(self, project: Project, team: Team) -> None:
        self._project, self._team = project, team

    def __call__(self, tensors: Sequence[torch.Tensor]) -> list[float]:
        every = self._team.every(read(tensors))
        if len({len(values) for values in every}) > 1:
            raise BadInput(
                f"project {self._project.name}: `step` must return the same terms in every process, whatever is in its "
                "batch: give one that there is nothing to compute from as 0"
            )
        return [sum(values) / len(values) for values in zip(*every, strict=True)]


class Weights:
    """Tensors that were finite at the start and should stay so (a mask of −inf may be a buffer by design)."""

    def __init__(self, tensors: Tensors) -> None:
        parts = {name: own(t.detach()) for name, t in tensors.items()}
        self._tensors = {name: t for name, t in parts.items() if t.numel() and bool(t.isfinite().all())}

    def first_nonfinite(self) -> str | None:
        """Return the name of the first tensor with NaN or an infinity, or None; waits for the device once."""
        if not self._tensors:
            return None
        largest = torch._foreach_norm(list(self._tensors.values()), float("inf"))
        finite = torch.stack([norm.isfinite() for norm in largest]).tolist()
        return None if all(finite) else list(self._tensors)[finite.index(False)]
