"""Times measured in pairs: how many times as fast one trial is as another, and how certain that is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations_with_replacement

CONFIDENCE = 0.95
LEAST = 6
"""Least number of rounds for an interval; five would all point the same way by chance once in sixteen times."""


@dataclass(frozen=True)
class Comparison:
    """The speed of one relative to another: `ratio` (above 1: faster), with its 95 % confidence limits.

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


@dataclass
class Times:
    """Seconds of one quantity in the base and in the rival, a pair per round.

    They are per sample for `SAMPLE` and `DATA`, per step for `STEP` and `NETWORK`, and per batch for `LOSS`.
    """

    base: list[float] = field(default_factory=list)
    rival: list[float] = field(default_factory=list)
    paired: bool = True
    """False if the two were measured in different rounds, so that their ratio has no known uncertainty."""

    @property
    def pairs(self) -> list[tuple[float, float]]:
        return list(zip(self.base, self.rival, strict=True))

    @property
    def faster(self) -> Comparison:
        """Return the speed of the rival relative to the base."""
        return self._certain(compare(self.base, self.rival))

    @property
    def longer(self) -> Comparison:
        """Return the time of the rival relative to the base."""
        return self._certain(compare(self.rival, self.base))

    @property
    def usual(self) -> tuple[float, float]:
        """Median of the base, and this times the pairs' ratio; separate medians of few rounds could disagree."""
        base = spread(self.base).median
        return base, base * self.longer.ratio

    def _certain(self, found: Comparison) -> Comparison:
        return found if self.paired else replace(found, low=0.0, high=math.inf, rounds=1)
