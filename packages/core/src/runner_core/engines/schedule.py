"""The learning rate schedule: a pure function of the step, for any engine."""

from __future__ import annotations

import math
from collections.abc import Sequence

from runner_core.config import TrainConfig
from runner_core.contract import Progress
from runner_core.contract.project import Project

POWER = 0.9
"""Exponent of schedule poly (Chen et al. 2018, 10.1109/TPAMI.2017.2699184; nnU-Net has the same)."""


def factor(config: TrainConfig, progress: Progress) -> float:
    """Return the factor on the learning rate in the step after `progress.step` finished ones.

    It rises linearly over the first `warmup` share of the steps, then stays (constant), falls to 0 over the rest, or
    stays until it falls over the last `decay` share (wsd).

    >>> [round(factor(TrainConfig(warmup=0.5, schedule="linear"), Progress(s, 4, 0)), 3) for s in range(4)]
    [0.5, 1.0, 1.0, 0.5]
    >>> [factor(TrainConfig(warmup=0, schedule="wsd", decay=0.5), Progress(s, 4, 0)) for s in range(4)]
    [1.0, 1.0, 1.0, 0.5]
    """
    warm = round(config.warmup * progress.steps)
    if progress.step < warm:
        return (progress.step + 1) / warm
    if config.schedule == "constant":
        return 1.0
    if config.schedule == "wsd":
        warm = decay_begin(config, progress.steps)
        if progress.step < warm:
            return 1.0
    fraction = (progress.step - warm) / max(1, progress.steps - warm)
    if config.schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * fraction))
    return (1 - fraction) ** (POWER if config.schedule == "poly" else 1)


def decay_begin(config: TrainConfig, steps: int) -> int:
    """Return the number of steps before the decay of schedule wsd, in a training of `steps` steps."""
    return max(round(config.warmup * steps), steps - round(config.decay * steps))


def independent_of_length(config: TrainConfig, step: int, lengths: Sequence[int]) -> bool:
    """Return whether the learning rate after `step` steps is the same whichever of `lengths` the training has."""
    if step < config.warmup * max(lengths):
        return False
    return config.schedule == "constant" or (
        config.schedule == "wsd" and all(step <= decay_begin(config, steps) for steps in lengths)
    )


class Schedule:
    """Factor on the learning rate: the project's own schedule if it has one, else that of `train.schedule`."""

    def __init__(self, project: Project, config: TrainConfig) -> None:
        self._own = project.learning().schedule
        self._config = config

    def __call__(self, progress: Progress) -> float:
        value = None if self._own is None else self._own(progress)
        return factor(self._config, progress) if value is None else value
