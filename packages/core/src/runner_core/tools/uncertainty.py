"""Uncertainty of scores: intervals of means and of differences, by a bootstrap over groups and networks.

Scores of records of one group (a patient's scans) go together, and so do all scores of one trained network. So groups
and networks are drawn anew, with replacement and independently of each other, not single scores.

A plain bootstrap of few groups or seeds gives intervals that are too short. For a mean, the bootstrap is therefore
studentised. For a difference, its deviations are scaled to the unbiased variance, the sum of one component for groups
and one for seeds. Each is also divided by a random √(χ²/df), which makes Student's t of a normal distribution; df are
the degrees of freedom of that variance (Satterthwaite 1946).

Results are the same on every call. They do not depend on the order of records, groups or networks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import numpy as np

from runner_core.contract import Array

RESAMPLES = 9_999
"""Number of draws. With one less than a round number, the places of quantiles are whole numbers."""
LEVEL = 0.95
_AT_ONCE = 1 << 20
"""Largest number of random group numbers in memory at once."""
_MOST_SEEDS, _MOST_GROUPS = 100, 10_000
"""Numbers of seeds and of groups above which `Difference.needed` gives up."""
_POWER = 0.8
_FEW = 5
"""Number of groups below which too many resamples would hold a single group only, for a studentised bootstrap."""


@dataclass(frozen=True)
class Estimate:
    """A value with sorted draws of it, whose quantiles are its interval. Without draws its uncertainty is unknown."""

    value: float
    draws: Array

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        """Return the ends of the interval; NaN if there are no draws."""
        place = math.floor((1 - level) / 2 * (len(self.draws) + 1) + 1e-9)
        if not place:
            return math.nan, math.nan
        return float(self.draws[place - 1]), float(self.draws[-place])

    @cached_property
    def p(self) -> float:
        """Two-sided p-value: at most 1 − level if and only if the interval of this level does not contain 0."""
        if not len(self.draws):
            return math.nan
        rare = min(int(np.sum(self.draws <= 0)), int(np.sum(self.draws >= 0)))
        return min(1.0, 2 * (rare + 1) / (len(self.draws) + 1))


@dataclass(frozen=True)
class Difference(Estimate):
    """The mean difference of two arms' scores, and where its uncertainty comes from."""

    parts: Components

    def needed(self, level: float = LEVEL) -> tuple[int | None, int | None]:
        """Return how many more seeds in each arm, or how many more groups, would decide; None if these alone would not.

        They would decide in 80 % of all cases if the true difference were as large as this one.
        """
        parts = self.parts
        seeds = _least(lambda n: self._decides(n / parts.replicates, 1.0, level), parts.replicates, _MOST_SEEDS)
        groups = _least(lambda n: self._decides(1.0, n / parts.clusters, level), parts.clusters, _MOST_GROUPS)
        return (seeds if parts.seeds > 0 else None), groups

    def _decides(self, seeds: float, groups: float, level: float) -> bool:
        """Return whether so many times the seeds and the groups would decide."""
        grown = self.parts.grown(seeds, groups)
        wanted = _student((1 + level) / 2, grown.df) + _student(_POWER, grown.df)
        return abs(self.value) >= wanted * math.sqrt(grown.variance)


@dataclass(frozen=True)
class Components:
    """Components of the variance of an estimate: `groups` and `seeds` each contain their interaction, `both`."""

    groups: float
    seeds: float
    both: float
    df_groups: float
    df_seeds: float
    clusters: int
    """Number of groups, or of sets of groups that only one network of an arm scored."""
    replicates: int
    """Networks of a fold, in the arm that has fewer."""

    @property
    def variance(self) -> float:
        return max(self.groups + self.seeds - self.both, self.groups, self.seeds)

    @property
    def df(self) -> float:
        """Degrees of freedom of the variance."""
        below = _share(self.groups**2, self.df_groups) + _share(self.seeds**2, self.df_seeds)
        return self.variance**2 / below if below else math.inf

    def grown(self, seeds: float, groups: float) -> Components:
        """Return the components with so many times the seeds and the groups."""
        both = self.both / (seeds * groups)
        return Components(
            max(self.groups - self.both, 0.0) / groups + both,
            max(self.seeds - self.both, 0.0) / seeds + both,
            both,
            (self.df_groups + 1) * groups - 1,
            self.df_seeds * seeds,
            round(self.clusters * groups),
            round(self.replicates * seeds),
        )


def mean(values: Sequence[float] | Array, groups: Sequence[str], resamples: int = RESAMPLES) -> Estimate:
    """Return the mean of records' scores; if all are of one group, nothing is known of its uncertainty."""
    design = _Design([np.asarray(values, np.float64)[None]], groups)
    few = design.components.clusters < _FEW
    return Estimate(design.value, design.draws(resamples) if few else design.studentised_draws(resamples))


def difference(first: Array, second: Array, groups: Sequence[str], resamples: int = RESAMPLES) -> Difference:
    """Return the mean of `second` less the mean of `first`, paired over records.

    Args:
        first: Scores (networks, records). Networks that scored the same records are replicates (seeds). Those that
            scored other records (folds) have NaN for the rest; every record needs the scores of one fold.
        second: The other arm's scores, of the same records.
        groups: The records' groups.
        resamples: Number of draws.
    """
    arms = [np.asarray(arm, np.float64) for arm in (first, second)]
    ranks = [[float(np.nanmean(arm)), *np.sort(arm, None)] for arm in arms]
    sign = -1 if ranks[1] < ranks[0] else 1  # always the same order, so that B − A is exactly −(A − B)
    design = _Design(arms[::sign], groups)
    return Difference(sign * design.value, (sign * design.draws(resamples))[::sign], design.components)


def pseudo_values(value: float, without: Sequence[float]) -> list[float]:
    """Return the jackknife's value of each group (Efron and Tibshirani 1993, chapter 11); their mean is `value`.

    `value` is a score of the whole set, `without` the same score without each group.
    """
    middle = float(np.mean(without))
    return [value + (len(without) - 1) * (middle - one) for one in without]


def group_interval(value: float, without: Sequence[float]) -> tuple[float, float]:
    """Return the ends of the 95 % interval of a set's score, NaN if it has none.

    `without` is the same score of the set without each group (a patient): jackknife pseudo-values stand for the groups
    in the bootstrap.
    """
    pseudo = pseudo_values(value, without) if without else []
    if not pseudo or not all(map(math.isfinite, pseudo)):
        return math.nan, math.nan
    found = mean(pseudo, [str(number) for number in range(len(pseudo))])
    low, high = (value + end - found.value for end in found.interval())
    return low, high


def holm(p: Sequence[float], level: float = LEVEL) -> list[float]:
    """Return for each of several comparisons the level of its interval, by Holm (1979).

    If the p-value is at most 1 − this level, the difference is beyond chance. The probability that any of the
    comparisons is wrong is then at most 1 − `level`.

    >>> [round(1 - found, 4) for found in holm([0.01, 0.2, 0.03])]
    [0.0167, 0.025, 0.025]
    """
    levels, stopped = [0.0] * len(p), math.inf
    for rank, place in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        share = min(stopped, (1 - level) / (len(p) - rank))
        stopped = share if p[place] > share else stopped
        levels[place] = 1 - share
    return levels


# ---------------------------------------------------------------- inside


@dataclass(frozen=True)
class _Fold:
    """Networks of one arm that scored the same records.

    `sums` (networks, groups) are sums of scores, `sizes` (groups,) numbers of records, both divided by the number of
    all records.
    """

    sums: Array
    sizes: Array

    @property
    def count(self) -> int:
        return len(self.sums)

    @property
    def share(self) -> float:
        return float(self.sizes.sum())

    @property
    def squares(self) -> float:
        """Sum of squared deviations of the networks' means."""
        return float(np.square(self.sums.sum(1) - self.sums.sum(1).mean()).sum()) / self.share**2

    @property
    def both(self) -> float:
        """The interaction of networks and groups, as a variance of this fold's part of the mean."""
        groups = int((self.sizes > 0).sum())
        if self.count < 2 or groups < 2:
            return 0.0
        off = self.sums - self.sums.mean(0)
        off = off - off.sum(1, keepdims=True) * self.sizes / self.share
        return float(np.square(off).sum()) / (self.count * (self.count - 1)) * groups / (groups - 1)


class _Design:
    """Which networks scored which groups, and what follows: the estimate, its variance, its draws."""

    def __init__(self, arms: Sequence[Array], groups: Sequence[str]) -> None:
        _, numbers = np.unique(np.asarray(groups), return_inverse=True)
        self.arms = [_folds(arm, numbers) for arm in arms]
        self.signs = [-1.0, 1.0][-len(arms) :]
        folds = [(sign, fold) for sign, arm in zip(self.signs, self.arms, strict=True) for fold in arm]
        self.parts = np.concatenate([sign * fold.sums / fold.count for sign, fold in folds])
        """(networks, groups): what adds up to the estimate."""
        self.counts = [fold.count for _, fold in folds]
        self.sizes = np.bincount(numbers) / len(numbers)
        self.value = float(self.parts.sum())
        self.components = self._components()

    def _components(self) -> Components:
        seeds, df_seeds = self._seeds()
        which = self._clusters() if not df_seeds else np.arange(len(self.sizes))
        off, sizes = (np.bincount(which, each) for each in (self.parts.sum(0) - self.value * self.sizes, self.sizes))
        count = len(sizes)
        return Components(
            groups=float(np.square(off).sum()) * count / (count - 1) if count > 1 else 0.0,
            seeds=seeds,
            both=sum(fold.both for arm in self.arms for fold in arm),
            df_groups=max(1.0, 1 / float(np.square(sizes).sum()) - 1),
            df_seeds=df_seeds,
            clusters=count,
            replicates=min(self.counts),
        )

    def _seeds(self) -> tuple[float, float]:
        """Return the variance from seeds and its degrees of freedom, 0 if nothing is known of them.

        An arm without replicates is taken to have the other arm's noise.
        """
        df = [sum(fold.count - 1 for fold in arm) for arm in self.arms]
        shares = [sum(fold.share**2 / fold.count for fold in arm) for arm in self.arms]
        noise = [sum(fold.squares for fold in arm) / n if n else 0.0 for arm, n in zip(self.arms, df, strict=True)]
        known = [place for place, n in enumerate(df) if n]
        if len(known) < len(self.arms):
            return sum(noise) * sum(shares), sum(df)
        each = [one * share for one, share in zip(noise, shares, strict=True)]
        below = sum(_share(part**2, n) for part, n in zip(each, df, strict=True))
        return sum(each), sum(each) ** 2 / below if below else sum(df)

    def _clusters(self) -> Array:
        """Return the number of each group's cluster: groups that one network of several scored belong together.

        Their common noise then contains that of the network. If this joins all groups, they stay apart.
        """
        which = np.arange(len(self.sizes))
        for arm in self.arms:
            for fold in arm if len(arm) > 1 else ():
                joined = np.unique(which[fold.sizes > 0])
                which[np.isin(which, joined)] = joined[0]
        _, found = np.unique(which, return_inverse=True)
        return found if found.max() else np.arange(len(self.sizes))

    def draws(self, resamples: int) -> Array:
        """Return sorted draws of the estimate, none if nothing is known of its uncertainty."""
        known = self.components
        which = self._clusters() if not known.df_seeds else np.arange(len(self.sizes))
        if known.clusters < 2 and not known.df_seeds:
            return np.empty(0)
        rng = np.random.default_rng(0)
        table = np.stack([np.bincount(which, part) for part in (*self.parts, self.sizes)], 1)
        drawn = _resampled_sums(table, resamples, rng)
        times = np.concatenate([_counts(count, resamples, rng) for count in self.counts], 1)
        off = (drawn[:, :-1] * times).sum(1) / drawn[:, -1] - self.value
        spread = float(off.std())
        if spread > 0:
            off *= math.sqrt(known.variance) / spread
        if math.isfinite(known.df):
            off /= np.sqrt(rng.chisquare(known.df, resamples) / known.df)
        return np.sort(self.value + off)

    def studentised_draws(self, resamples: int) -> Array:
        """Return sorted draws of a mean: it follows skewed scores better, as those of a network that fails at times.

        Each resample's deviation is divided by its own standard error (Efron and Tibshirani 1993, chapter 12).
        """
        off, sizes = self.parts.sum(0) - self.value * self.sizes, self.sizes
        table = np.stack([off, sizes, off * off, off * sizes, sizes * sizes], 1)
        sums, share, squares, crossed, shares = _resampled_sums(table, resamples, np.random.default_rng(0)).T
        away = sums / share
        error = np.sqrt(np.maximum(squares - 2 * away * crossed + away**2 * shares, 0)) / share
        ours = math.sqrt(float(np.square(off).sum()))
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(error > 1e-12 * ours, away / error, np.copysign(np.inf, away))
        return np.sort(self.value - (ours * ratio if ours else 0 * away))


def _folds(arm: Array, numbers: Array) -> list[_Fold]:
    """Return an arm's folds, in an order that does not depend on that of its networks."""
    seen, which = np.unique(np.isfinite(arm), axis=0, return_inverse=True)
    if not (seen.sum(0) == 1).all():
        raise ValueError("networks of one arm must have scored the same records or none in common, and all together")
    groups, records = int(numbers.max()) + 1, len(numbers)
    sizes = [np.bincount(numbers[kept], minlength=groups) / records for kept in seen]
    sums = [np.bincount(numbers, np.nan_to_num(row), minlength=groups) / records for row in arm]
    found = []
    for place, share in enumerate(sizes):
        networks = np.stack([total for total, fold in zip(sums, which, strict=True) if fold == place])
        found.append(_Fold(networks[np.lexsort(networks.T[::-1])], share))
    return sorted(found, key=lambda fold: tuple(fold.sizes))


def _resampled_sums(table: Array, resamples: int, rng: np.random.Generator) -> Array:
    """Return sums (resamples, columns) over as many rows of `table` as it has, drawn with replacement."""
    rows = len(table)
    size = max(1, _AT_ONCE // rows)
    chunks = (min(size, resamples - start) for start in range(0, resamples, size))
    return np.concatenate([_counts(rows, chunk, rng) @ table for chunk in chunks])


def _counts(size: int, resamples: int, rng: np.random.Generator) -> Array:
    """Return how often (resamples, size) each of `size` things is among `size` draws with replacement."""
    drawn = rng.integers(0, size, (resamples, size), np.int32)
    drawn += size * np.arange(resamples, dtype=np.int32)[:, None]
    return np.bincount(drawn.ravel(), minlength=resamples * size).reshape(resamples, size).astype(np.float64)


def _least(decides: Callable[[int], bool], now: int, most: int) -> int | None:
    """Return by how much `now` must grow until `decides`, None if `most` is not enough."""
    if not decides(most):
        return None
    low, high = now, most  # `high` decides
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if decides(middle) else (middle + 1, high)
    return max(1, low - now)


def _student(probability: float, df: float) -> float:
    """Return a quantile of Student's t distribution: Hill's expansion, good to a few per cent from 3 degrees on."""
    z = NormalDist().inv_cdf(probability)
    return z + (z**3 + z) / (4 * df) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * df**2)


def _share(part: float, df: float) -> float:
    return part / df if part else 0.0
