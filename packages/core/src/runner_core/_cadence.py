"""When a run logs, validates and saves: pure functions of the step."""

from __future__ import annotations

from dataclasses import dataclass

from runner_core.config import RunConfig


@dataclass(frozen=True)
class Cadence:
    """`step` counts finished optimizer steps, from 1; epochs end at multiples of `steps_per_epoch`."""

    steps_per_epoch: int
    epochs: int
    log_every: int = 50
    validate_every: int = 1
    save_every: int = 1
    save_every_steps: int | None = None

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
        return step % self.log_every == 0 or step == self.steps

    def validates(self, step: int) -> bool:
        return self._epoch_event(step, self.validate_every)

    def saves(self, step: int) -> bool:
        on_step = self.save_every_steps is not None and step % self.save_every_steps == 0
        return on_step or self._epoch_event(step, self.save_every)

    def next_event(self, step: int) -> int:
        """The first step after `step` at which anything is logged, validated or saved (an epoch's end is one)."""
        periods = [self.log_every, self.steps_per_epoch, self.save_every_steps or self.steps]
        return min(self.steps, *((step // period + 1) * period for period in periods))

    def _epoch_event(self, step: int, every: int) -> bool:
        epoch, rest = divmod(step, self.steps_per_epoch)
        return step > 0 and rest == 0 and (epoch % every == 0 or step == self.steps)
