"""The moments of a training at which it can be killed, and which of them a campaign chooses."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

PHASES = ("step", "validation", "checkpoint")
"""What a training does, in the order in which it does it after so many steps."""

_TEXT = {"step": "in step {}", "validation": "in the validation after step {}", "checkpoint": "while saving step {}"}
_SHORT = 0.002
"""Seconds below which a moment is over before another process can act within it."""


class Moment(NamedTuple):
    """The beginning of a step, a validation or the saving of a checkpoint. Moments compare as they come in a run."""

    step: int
    phase: int
    """Number in PHASES."""

    def __str__(self) -> str:
        return _TEXT[PHASES[self.phase]].format(self.step)


class Kill(NamedTuple):
    """A process is killed so many seconds after it has come to `moment`; 0: before it goes on."""

    moment: Moment
    delay: float


def choose(durations: Mapping[Moment, float], count: int, first: int, rng: random.Random) -> Sequence[Kill]:
    """Kills at `count` moments, in their order, each at any time within its moment. `durations`: seconds of each moment
    of the run. Phases come in turn, beginning with the one of number `first`, so that few kills meet all of them. None
    comes before the first checkpoint is saved, where there are others: such a run begins anew, which proves nothing."""
    saved = min((m for m in durations if PHASES[m.phase] == "checkpoint"), default=None)
    later = sorted(m for m in durations if saved is None or m > saved) or sorted(durations)
    by_phase = [[m for m in later if m.phase == phase] for phase in range(len(PHASES))]
    there = [moments for moments in by_phase if moments]
    chosen: set[Moment] = set()
    for number in range(min(count, len(later))):
        left = [m for m in there[(first + number) % len(there)] if m not in chosen]
        chosen.add(rng.choice(left or [m for m in later if m not in chosen]))
    return [Kill(m, rng.uniform(0, durations[m]) if durations[m] > _SHORT else 0.0) for m in sorted(chosen)]
