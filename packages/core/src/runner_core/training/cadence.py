"""Decide when a run logs, validates and saves: pure functions of the step."""

from __future__ import annotations

import math
from dataclasses import dataclass

from runner_core.config import RunConfig
from runner_core.engines.schedule import decay_begin

_LOG_EVERY, _POINTS = 50, 20
"""Most steps between lines of the log if no setting says it, and the number of lines that a shorter run gets."""
_PICTURES = 20
"""Most pictures that a run draws of one sample, if no setting says how often."""
_PICTURES_SHARE = 0.01
"""Share of the training's time that they may take."""
_PICTURES_COST = 0.85
"""To draw a sample takes at most this share of what it takes to train with it, measured on the five projects."""


@dataclass(frozen=True)
class Cadence:
    """Steps at which a run logs, draws, validates and saves.

    `step` counts finished optimizer steps from 1. Epochs end at multiples of `steps_per_epoch`. `snapshots_every` is
    None for a project that draws no snapshots.

    With `block` above 1, steps go to the device in blocks of that size (the last block of an epoch may be shorter).
    Results can be read only at the end of a block, so an event that falls inside a block happens at its end.
    """

    steps_per_epoch: int
    epochs: int
    log_every: int = _LOG_EVERY
    validate_every: int = 1
    save_every: int = 1
    save_every_steps: int | None = None
    snapshots_every: int | None = None
    block: int = 1
    decay_begin: int | None = None
    """Step after which the learning rate falls (schedule wsd): the end of the block before it is saved."""

    @staticmethod
    def of(config: RunConfig, steps_per_epoch: int) -> Cadence:
        steps = config.train.epochs * steps_per_epoch
        return Cadence(
            steps_per_epoch,
            config.train.epochs,
            config.log.every or max(1, min(_LOG_EVERY, steps // _POINTS)),
            max(1, config.validate.every),
            max(1, config.checkpoint.every),
            config.checkpoint.every_steps or None,
            decay_begin=decay_begin(config.train, steps) if config.train.schedule == "wsd" else None,
        )

    @property
    def steps(self) -> int:
        return self.steps_per_epoch * self.epochs

    def snapshot_period(self, count: int, batch: int) -> int:
        """Return the steps between pictures of `count` samples, if no setting says it; a step takes `batch` samples.

        Where validations come more often, pictures come with a validation.
        """
        least = max(math.ceil(count / batch * _PICTURES_COST / _PICTURES_SHARE), math.ceil(self.steps / _PICTURES))
        validation = self.steps_per_epoch * self.validate_every
        return math.ceil(least / validation) * validation if least > validation else least

    def logs(self, step: int) -> bool:
        """Return True if this step logs; the first step does, to show in which precision the layers compute."""
        first = self._begin(step) == 0 and self.ends_block(step)
        return first or step == self.steps or self._due(step, self.log_every)

    def validates(self, step: int) -> bool:
        return self._epoch_event(step, self.validate_every)

    def validations_after(self, step: int) -> int:
        """Return how many validations are still to come after `step`."""
        epoch, every = step // self.steps_per_epoch, self.validate_every
        done = epoch // every + (epoch >= self.epochs and self.epochs % every > 0)
        return -(-self.epochs // every) - done

    def draws(self, step: int) -> bool:
        return self.snapshots_every is not None and self._due(step, self.snapshots_every)

    def saves(self, step: int) -> bool:
        on_step = self.save_every_steps is not None and self._due(step, self.save_every_steps)
        return on_step or step == self.before_decay or self._epoch_event(step, self.save_every)

    @property
    def before_decay(self) -> int | None:
        """The last step at which a checkpoint knows nothing of the decay; None without one."""
        if self.decay_begin is None:
            return None
        inside = self.decay_begin % self.steps_per_epoch
        return self.decay_begin - inside % self.block

    def next_event(self, step: int) -> int:
        """Return the first step after `step` that logs, draws, validates, saves or ends an epoch."""
        periods = [self.log_every, self.steps_per_epoch]
        before = [step_ for step_ in (self.before_decay,) if step_ is not None and step_ > step]
        periods += [period for period in (self.save_every_steps, self.snapshots_every) if period]
        due = 1 if step == 0 else min(self.steps, *before, *((step // period + 1) * period for period in periods))
        return min(self._begin(due) + self.block, self._epoch_begin(due) + self.steps_per_epoch)

    def ends_block(self, step: int) -> bool:
        return (step - self._epoch_begin(step)) % self.block == 0 or step % self.steps_per_epoch == 0

    def _due(self, step: int, period: int) -> bool:
        """Return True if the block that ends at `step` contains a multiple of `period`."""
        return self.ends_block(step) and step // period > self._begin(step) // period

    def _begin(self, step: int) -> int:
        """Return the step at which the block of `step` began."""
        epoch = self._epoch_begin(step)
        return epoch + (step - 1 - epoch) // self.block * self.block

    def _epoch_begin(self, step: int) -> int:
        return (step - 1) // self.steps_per_epoch * self.steps_per_epoch

    def _epoch_event(self, step: int, every: int) -> bool:
        epoch, rest = divmod(step, self.steps_per_epoch)
        return step > 0 and rest == 0 and (epoch % every == 0 or step == self.steps)
