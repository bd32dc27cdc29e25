"""What changes in the course of a training: pure functions of where it stands (`Progress`)."""

from __future__ import annotations

import math

from runner_core.protocols import Progress

from runner_dinocell.config import CellConfig


def cosine(begin: float, end: float, fraction: float) -> float:
    """From `begin` to `end` along half a cosine; stays at the end.

    >>> [round(cosine(0.0, 1.0, share), 3) for share in (0.0, 0.25, 0.5, 1.0, 2.0)]
    [0.0, 0.146, 0.5, 1.0, 1.0]
    """
    return end + (begin - end) * 0.5 * (1 + math.cos(math.pi * min(fraction, 1.0)))


def learning_rate(config: CellConfig, progress: Progress) -> float:
    """Factor on `train.learning_rate`: rises linearly over the warm-up, falls to `optim.final_learning_rate`."""
    warm = round(config.train.warmup * progress.steps)
    if progress.step < warm:
        return (progress.step + 1) / warm
    end = config.optim.final_learning_rate / config.train.learning_rate
    return cosine(1.0, end, (progress.step - warm) / max(1, progress.steps - warm))


def weight_decay(config: CellConfig, progress: Progress) -> float:
    """From `train.weight_decay` to `optim.final_weight_decay`."""
    return cosine(config.train.weight_decay, config.optim.final_weight_decay, progress.fraction)


def momentum(config: CellConfig, progress: Progress) -> float:
    """Of the teacher's moving average: from `teacher.momentum` to 1, when the teacher stands still."""
    return cosine(config.teacher.momentum, 1.0, progress.fraction)


def teacher_temperature(config: CellConfig, progress: Progress) -> float:
    """Rises linearly over the share `loss.teacher_warmup`, then stays."""
    loss = config.loss
    risen = min(1.0, progress.fraction / loss.teacher_warmup) if loss.teacher_warmup > 0 else 1.0
    return loss.warmup_teacher_temperature + risen * (loss.teacher_temperature - loss.warmup_teacher_temperature)


def prototypes_frozen(config: CellConfig, progress: Progress) -> bool:
    """Do the prototypes stand still, until the rest of the head has found its way?"""
    return progress.fraction < config.optim.freeze_prototypes
