"""Schedules of a training: pure functions of its progress (`Progress`)."""

from __future__ import annotations

import math

from runner_core import Progress

from runner_dinocell.config import CellConfig


def cosine(begin: float, end: float, fraction: float) -> float:
    """Go from `begin` to `end` along half a cosine, and stay at the end.

    >>> [round(cosine(0.0, 1.0, share), 3) for share in (0.0, 0.25, 0.5, 1.0, 2.0)]
    [0.0, 0.146, 0.5, 1.0, 1.0]
    """
    return end + (begin - end) * 0.5 * (1 + math.cos(math.pi * min(fraction, 1.0)))


def learning_rate(config: CellConfig, progress: Progress) -> float:
    """Return the factor on `train.learning_rate`.

    It rises linearly over the warm-up, then follows `train.schedule` to `optim.final_learning_rate` (a constant one
    stays, and wsd falls linearly over the last `train.decay` of the steps). With `train.recipe dinov2-exact` it begins
    at 0.
    """
    warm = round(config.train.warmup * progress.steps)
    if progress.step < warm:
        return _rising(progress.step, warm) if config.train.exact else (progress.step + 1) / warm
    if config.train.schedule == "constant" or not config.train.learning_rate:
        return 1.0
    end = config.optim.final_learning_rate / config.train.learning_rate
    if config.train.schedule == "wsd":
        warm = max(warm, progress.steps - round(config.train.decay * progress.steps))
        if progress.step < warm:
            return 1.0
    fraction = (progress.step - warm) / max(1, progress.steps - warm)
    linear = config.train.schedule in ("linear", "wsd")
    return 1 + (end - 1) * min(fraction, 1.0) if linear else cosine(1.0, end, fraction)


def weight_decay(config: CellConfig, progress: Progress) -> float:
    """Return the weight decay, from `train.weight_decay` to `optim.final_weight_decay`."""
    return cosine(config.train.weight_decay, config.optim.final_weight_decay, progress.fraction)


def momentum(config: CellConfig, progress: Progress) -> float:
    """Return the momentum of the teacher's moving average, from `teacher.momentum` to 1, where the teacher stops."""
    return cosine(config.teacher.momentum, 1.0, progress.fraction)


def teacher_temperature(config: CellConfig, progress: Progress) -> float:
    """Return the teacher's temperature: it rises linearly over the share `loss.teacher_warmup`, then stays.

    With `train.recipe dinov2-exact` the last step of that share has risen already.
    """
    loss = config.loss
    if config.train.exact:
        risen = _rising(progress.step, round(loss.teacher_warmup * progress.steps))
        return loss.warmup_teacher_temperature + risen * (loss.teacher_temperature - loss.warmup_teacher_temperature)
    risen = min(1.0, progress.fraction / loss.teacher_warmup) if loss.teacher_warmup > 0 else 1.0
    return loss.warmup_teacher_temperature + risen * (loss.teacher_temperature - loss.warmup_teacher_temperature)


def prototypes_frozen(config: CellConfig, progress: Progress) -> bool:
    """Return whether the prototypes are still frozen, so that the rest of the head can settle."""
    return progress.fraction < config.optim.freeze_prototypes


def _rising(step: int, steps: int) -> float:
    """Go from 0 at the first of `steps` to 1 at the last, as in DINOv2's code (the only one of one step is 0)."""
    return 1.0 if step >= steps else step / max(1, steps - 1)
