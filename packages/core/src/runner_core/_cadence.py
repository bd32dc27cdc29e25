"""When a run logs, validates and saves: pure functions of the step."""

from __future__ import annotations

from dataclasses import dataclass

from runner_core.config import RunConfig


@dataclass(frozen=True)
class Cadence:
    """`step` counts finished optimizer steps, from 1; epochs end at multiples of `steps_per_epoch`.

    `snapshots_every`: None for a project that draws none.

    Steps that go to the device in blocks of `block` (the last of an epoch may be shorter) can be looked at only where
    a block ends: what is due within one happens at its end.
    """

    steps_per_epoch: int
    epochs: int
    log_every: int = 50
    validate_every: int = 1
    save_every: int = 1
    save_every_steps: int | None = None
    snapshots_every: int | None = None
    block: int = 1

    @staticmethod
    def of(config: RunConfig, steps_per_epoch: int) -> Cadence:
        return Cadence(
            steps_per_epoch,
            config.train.epochs,
            max(1, config.log.every),
            max(1, config.validate.every),
            max(1, config.checkpoint.every),
            config.checkpoint.every_steps or None,
        )

    @property
    def steps(self) -> int:
        return self.steps_per_epoch * self.epochs

    def logs(self, step: int) -> bool:
        """The first step logs too: it tells in which precision the layers compute."""
        first = self._begin(step) == 0 and self.ends_block(step)
        return first or step == self.steps or self._due(step, self.log_every)

    def validates(self, step: int) -> bool:
        return self._epoch_event(step, self.validate_every)

    def draws(self, step: int) -> bool:
        return self.snapshots_every is not None and self._due(step, self.snapshots_every)

    def saves(self, step: int) -> bool:
        on_step = self.save_every_steps is not None and self._due(step, self.save_every_steps)
        return on_step or self._epoch_event(step, self.save_every)

    def next_event(self, step: int) -> int:
        """The first step after `step` at which anything is logged, drawn, validated or saved, or an epoch ends."""
        periods = [self.log_every, self.steps_per_epoch]
        periods += [period for period in (self.save_every_steps, self.snapshots_every) if period]
        due = 1 if step == 0 else min(self.steps, *((step // period + 1) * period for period in periods))
        return min(self._begin(due) + self.block, self._epoch_begin(due) + self.steps_per_epoch)

    def ends_block(self, step: int) -> bool:
        return (step - self._epoch_begin(step)) % self.block == 0 or step % self.steps_per_epoch == 0

    def _due(self, step: int, period: int) -> bool:
        """Did a multiple of `period` come in the block that ends at `step`?"""
        return self.ends_block(step) and step // period > self._begin(step) // period

    def _begin(self, step: int) -> int:
        """Where the block began that `step` is in."""
        epoch = self._epoch_begin(step)
        return epoch + (step - 1 - epoch) // self.block * self.block

    def _epoch_begin(self, step: int) -> int:
        return (step - 1) // self.steps_per_epoch * self.steps_per_epoch

    def _epoch_event(self, step: int, every: int) -> bool:
        epoch, rest = divmod(step, self.steps_per_epoch)
        return step > 0 and rest == 0 and (epoch % every == 0 or step == self.steps)
