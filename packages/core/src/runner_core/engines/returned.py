"""Is what a project's `step` returns a Step with a loss to learn from? Else the words that help; any engine."""

from __future__ import annotations

from typing import Any

from runner_core._errors import BadInput
from runner_core.project import Project
from runner_core.protocols import Step


def refuse_no_step(project: Project, returned: Any) -> None:
    """Raises BadInput for what is no Step, or has a loss that is not one number (0-d)."""
    if not isinstance(returned, Step):
        kind = type(returned).__name__
        raise BadInput(f"project {project.name}: `step` must return Step(loss, terms, prediction); it returned {kind}")
    shape = getattr(returned.loss, "shape", None)
    if shape is None:
        raise _no_loss(project, f"it is of type {type(returned.loss).__name__}")
    rank = shape.rank if hasattr(shape, "rank") else len(shape)  # TensorFlow may not know a shape while it traces
    if rank:
        raise _no_loss(project, f"it has shape {tuple(shape)}: take its mean")


def detached(project: Project) -> BadInput:
    """The error for a loss without gradients."""
    return _no_loss(project, "no weight changes it: it was detached, or computed without the network")


def _no_loss(project: Project, why: str) -> BadInput:
    return BadInput(
        f"project {project.name}: the loss that `step` returns must be one number that depends on the weights; {why}"
    )
