"""Let trials take turns, and compare their times: how many times as fast one is, and how certain that is.

A shared machine varies in speed over seconds or minutes. So compared trials run in rounds, a turn each, and only times
of the same round are compared. The first one alternates from round to round, so that a turn's effect on the next one
does not always burden the same trial.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement

from runner_core.tools.measure.trial import Ready, Trial, Turn

CONFIDENCE = 0.95
LEAST = 6
"""Least number of rounds for an interval; five would all point the same way by chance once in sixteen times."""
SECONDS = 1.5
"""Seconds of a turn: long against a scheduler's time slices, short against a machine's ups and downs."""


@dataclass(frozen=True)
class Comparison:
    """How many times as fast one is as another: `ratio` (above 1: faster), with its 95 % confidence limits.

    `low` is 0 and `high` infinite after too few rounds.
    """

    ratio: float
    low: float
    high: float
    rounds: int

    @property
    def faster(self) -> bool:
        """True if it is faster beyond the noise."""
        return self.low > 1

    @property
    def slower(self) -> bool:
        return self.high < 1


def compare(before: Sequence[float], after: Sequence[float]) -> Comparison:
    """Return how many times as fast `after` is as `before`, from paired seconds per sample.

    Estimate and interval are Hodges' and Lehmann's: the median of all means of two of the (logarithms of) ratios, and
    the interval of Wilcoxon's signed-rank test. The interval is exact for any noise that affects both alike, and one
    disturbed round in eight changes it little.

    >>> found = compare([2.0, 2.2, 1.9, 2.1, 2.0, 5.0, 2.0, 2.1], [1.0, 1.1, 1.0, 1.0, 1.0, 1.1, 1.0, 1.0])
    >>> round(found.ratio, 2), round(found.low, 2), round(found.high, 2), found.faster
    (2.05, 1.95, 3.02, True)
    """
    logs = [math.log(b / a) for b, a in zip(before, after, strict=True)]
    if not logs:
        return Comparison(1.0, 0.0, math.inf, 0)
    means = sorted((x + y) / 2 for x, y in combinations_with_replacement(logs, 2))
    ratio = math.exp(statistics.median(means))
    outside = _outside(len(logs))
    if not outside:
        return Comparison(ratio, 0.0, math.inf, len(logs))
    return Comparison(ratio, math.exp(means[outside - 1]), math.exp(means[-outside]), len(logs))


def _outside(count: int) -> int:
    """Return the place (from 1) at which the interval begins among the sorted means of two of `count` values.

    It is 0 if the values are too few. It follows from the distribution of the sum of signed ranks.
    """
    ways = [1]
    for rank in range(1, count + 1):
        ways = [
            (ways[total] if total < len(ways) else 0) + (ways[total - rank] if total >= rank else 0)
            for total in range(len(ways) + rank)
        ]
    below, place = 0, 0
    for total in ways:
        below += total
        if 2 * below > (1 - CONFIDENCE) * 2**count:
            return place
        place += 1
    return place


@dataclass(frozen=True)
class Spread:
    """Median and quartiles."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """Return median and quartiles of one value or more.

    >>> spread([4.0, 1.0, 2.0, 3.0])
    Spread(median=2.5, low=1.75, high=3.25)
    """
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(median, low, high)


class Contender:
    """A trial among others: the number of steps in its turns, and its results since it was last started."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.count = 0
        """Steps of a turn; 0 if not known yet."""
        self.warmed = False
        """True if it was warmed since the start."""
        self.losses: list[float] = []
        """Losses of every step since the start, including the first."""
        self.notes: list[str] = []
        self.turns: list[Turn] = []

    @property
    def name(self) -> str:
        return self.trial.name

    @property
    def samples(self) -> int:
        """Samples that it has learned from since the start."""
        ready = self.trial.ready
        return 0 if ready is None else len(self.losses) * ready.batch

    def start(self) -> Ready:
        """Start anew; forget losses and notes, but not turns. Raises TrialFailed."""
        ready = self.trial.start()
        self.warmed = False
        self.losses, self.notes = [ready.loss], list(ready.notes)
        return ready

    def warm(self, seconds: float) -> None:
        """Take a few steps that do not count, and find how many make a turn of about `seconds`."""
        turn = self.take(1)
        if turn.per_step < seconds / 2:  # several short ones give better times, and settle in
            turn = self.take(max(2, min(20, round(0.3 * seconds / turn.per_step))))
        self.count = self.count or max(1, round(seconds / turn.per_step))
        self.warmed = True

    def take(self, count: int) -> Turn:
        """Take steps outside any round."""
        turn = self.trial.steps(count)
        self.losses += turn.losses
        self.notes += turn.notes
        return turn

    def turn(self) -> None:
        self.turns.append(self.take(self.count))

    @property
    def per_sample(self) -> list[float]:
        """Seconds per sample, turn by turn."""
        return [turn.per_sample for turn in self.turns]

    @property
    def wait_share(self) -> float:
        """Share of all turns' time spent waiting for data."""
        return sum(t.wait_seconds for t in self.turns) / max(1e-9, sum(t.seconds for t in self.turns))


class Rounds:
    """Rounds of turns of `contenders`, which must have been started; all methods raise TrialFailed.

    With `apart` they do not fit into memory together, and each is started for every turn, which takes time. A failure
    ends only the trial that failed.
    """

    def __init__(self, contenders: Sequence[Contender], seconds: float = SECONDS, apart: bool = False) -> None:
        self.contenders, self.seconds, self.apart = list(contenders), seconds, apart
        self.done = 0
        self.longest = 0.0
        """Longest time of a round, in seconds."""
        for contender in self.contenders:
            contender.turns = []

    def round(self) -> None:
        """Take a turn of each; if one fails, the round is dropped for all."""
        begun = time.monotonic()
        try:
            for contender in self.contenders if self.done % 2 == 0 else self.contenders[::-1]:
                self._turn(contender)
        except BaseException:
            for contender in self.contenders:
                del contender.turns[self.done :]
            raise
        self.done += 1
        self.longest = max(self.longest, time.monotonic() - begun)

    def until(self, deadline: float, least: int = LEAST, most: int = 1000) -> None:
        """Run at least `least` rounds, and more while the next one would end before `deadline` (monotonic clock)."""
        while self.done < most and (self.done < least or time.monotonic() + self.longest < deadline):
            self.round()

    def compare(self, before: Contender, after: Contender) -> Comparison:
        return compare(before.per_sample, after.per_sample)

    def _turn(self, contender: Contender) -> None:
        if self.apart:
            for other in self.contenders:
                other.trial.close()
            contender.start()
        if not contender.warmed:
            contender.warm(self.seconds)
        contender.turn()
