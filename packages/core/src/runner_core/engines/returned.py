"""Check what a project's `step`, `infer`, `snapshots` and `watch` return, for any engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from runner_core.base.errors import BadInput
from runner_core.config import TrainConfig
from runner_core.contract import Array, Arrays, Infer, Step
from runner_core.contract.project import Project
from runner_core.output.pictures import is_picture


def refuse_no_step(project: Project, returned: Any) -> None:
    """Raise BadInput unless `returned` is a Step whose loss is one number (0-d)."""
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
    """Return the error for a loss without gradients."""
    return _no_loss(project, "no weight changes it: it was detached, or computed without the network")


def _no_loss(project: Project, why: str) -> BadInput:
    return BadInput(
        f"project {project.name}: the loss that `step` returns must be one number that depends on the weights; {why}"
    )


def checked_infer(project: Project, infer: Infer) -> Infer:
    """Return `infer`, which now refuses arrays that are no batch, and a project's answers that are none."""

    def checked(arrays: Arrays) -> Arrays:
        if not isinstance(arrays, Mapping) or not arrays:
            raise BadInput(f"project {project.name}: `infer` takes arrays by name; it got {type(arrays).__name__}")
        shapes = {name: np.shape(array) for name, array in arrays.items()}
        told = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        if () in shapes.values() or len({shape[0] for shape in shapes.values()}) > 1:
            raise BadInput(
                f"project {project.name}: `infer` takes a batch: arrays with one number of samples along their first "
                f"axis. It got {told}. Write array[None] for a batch of one record"
            )
        try:
            return infer(arrays)
        except Exception as error:
            error.add_note(f"`infer` of project {project.name} was given the batch {told}")
            raise

    return checked


def outputs(project: Project, returned: Any) -> Mapping[str, Any]:
    """Return what `Project.infer` returned; raise BadInput unless it has tensors by name."""
    if not isinstance(returned, Mapping):
        kind = type(returned).__name__
        raise BadInput(
            f'project {project.name}: `infer` must return tensors by name, {{"prediction": model(batch["image"])}} for '
            f"example; it returned {kind}"
        )
    for name, tensor in returned.items():
        if len(getattr(tensor, "shape", ())) == 0:
            raise BadInput(
                f"project {project.name}: {name!r}, which `infer` returned, is no tensor with the samples along its "
                "first axis"
            )
    return returned


def snapshots(project: Project, model: Any, batch: Any) -> Mapping[str, Array]:
    """Return the project's pictures; raise BadInput for anything else."""
    draw = project.pictures().snapshots
    found: Any = {} if draw is None else draw(model, batch)
    where = f"project {project.name}: `snapshots` must return pictures (H, W, 3) uint8 by name"
    if not isinstance(found, Mapping):
        raise BadInput(f"{where}; it returned {type(found).__name__}")
    for name, picture in found.items():
        if not is_picture(picture):
            shape, dtype = getattr(picture, "shape", ""), getattr(picture, "dtype", type(picture).__name__)
            raise BadInput(f"{where}; {name!r} is {shape} {dtype}")
    return found


MOST = 10_000
"""Most numbers that one validation may add to the log."""


def watch(project: Project, network: Any) -> Arrays:
    """Return copies of the arrays from the project's `watch`; raise BadInput unless they are small and numeric."""
    own = project.pictures().watch
    found: Any = {} if own is None else own(network)
    where = f"project {project.name}: `watch` must return small NumPy arrays of numbers by name"
    if not isinstance(found, Mapping):
        raise BadInput(f"{where}; it returned {type(found).__name__}")
    for name, array in found.items():
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
            raise BadInput(f"{where}; {name!r} is {getattr(array, 'dtype', type(array).__name__)}")
    if (size := sum(array.size for array in found.values())) > MOST:
        raise BadInput(
            f"{where}, at most {MOST:,} of them, because every validation adds them to the log; it gave {size:,}"
        )
    return {name: array.copy() for name, array in found.items()}  # copies, because weights change or are swapped


def refuse_unused_optimizer(project: Project, config: TrainConfig) -> None:
    """Raise BadInput if the user chose an optimizer and the project has its own."""
    if config.optimizer != TrainConfig.optimizer:
        raise BadInput(f"project {project.name} has its own optimizer: leave train.optimizer out")
