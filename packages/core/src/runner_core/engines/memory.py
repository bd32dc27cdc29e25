"""The messages of any engine's trainer when the device's memory does not suffice."""

from __future__ import annotations

from collections.abc import Sequence

from runner_core.base.errors import BadInput
from runner_core.config import TrainConfig
from runner_core.contract.project import Project


class NoRoom(BadInput):
    """The device's memory does not suffice."""


def too_large(count: int, fits: int | None) -> BadInput:
    """Return the error for a step that cannot be split; `fits` is the result of `MicroBatches._largest`."""
    whole = f"train.batch_size: a batch of {count} samples does not fit into the device's memory"
    if fits == 0:
        return BadInput(f"{whole}, nor does any smaller one: use a smaller model or smaller samples")
    remedy = "use a smaller one" if fits is None else f"--train.batch-size {fits} fits"
    return BadInput(f"{whole}, and this project's step may not be split without changing what is learned; {remedy}")


def no_room(doing: str, batch_size: int) -> NoRoom:
    """Return the error for a lack of memory in work that cannot be retried."""
    return NoRoom(
        f"out of device memory in {doing}, with train.batch_size {batch_size}: use a smaller --train.batch-size, or a "
        "smaller model"
    )


def network_too_large() -> NoRoom:
    """Return the error for a network that does not fit, before any batch is involved."""
    return NoRoom(
        "the network alone does not fit into the device's memory, whatever train.batch_size is: use a smaller model"
    )


def smaller(tried: int, size: int, step: int) -> str:
    """Return the message when micro-batches become smaller in optimizer step `step` (from 1)."""
    return (
        f"out of device memory with {tried} samples at once in step {step}; from here on each step "
        f"goes in micro-batches of {size}, which learn the same"
    )


def micro_batch(project: Project, config: TrainConfig) -> int:
    """Return the samples of a micro-batch.

    Raises BadInput for `train.accumulate` in a project whose batches may not be split.
    """
    if config.accumulate > 1 and not project.learning().splittable:
        raise BadInput(
            f"train.accumulate {config.accumulate}: project {project.name} does not allow it. Its network or loss "
            "looks at the whole batch (BatchNorm, a loss over the batch), so that micro-batches would learn "
            "something else (Learning.splittable is False); use train.accumulate 1"
        )
    return -(-config.batch_size // max(1, config.accumulate))


def wrong_first_axis(name: str, shape: Sequence[int], count: int) -> BadInput:
    """Return the error for a tensor of `on_device` that cannot be split into micro-batches."""
    return BadInput(
        f"on_device returned {name!r} of shape {tuple(shape)} for a batch of {count} samples: it cannot "
        "be cut into micro-batches. The first axis of every tensor is the batch's; constants belong in "
        "`statistics` or the model"
    )
