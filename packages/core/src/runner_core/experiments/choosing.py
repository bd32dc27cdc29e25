"""Choose settings of the decision, views and networks by the scores of records that the networks did not train on.

The figure that is reported is nested: for each fold of groups, everything is chosen on the other groups and scored on
that one. So no record's score has taken part in the choice that it is reported for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

import numpy as np

from runner_core.contract.facets import Judging
from runner_core.contract.values import Scalar
from runner_core.experiments.folds import balanced
from runner_core.tools.uncertainty import Difference, difference, holm, pseudo_values
from runner_core.training.evaluation import over_set

GRID = 64
"""Largest number of combinations that are all tried; of more, one setting after the other is varied."""
FOLDS = 10
"""Largest number of folds of groups."""
_ROUNDS = 3

Values = Mapping[str, float]


@dataclass(frozen=True)
class Choice:
    """The options of a choice: values of settings, views, and the arms (sets of networks) that predict together."""

    settings: tuple[tuple[str, Scalar], ...]
    views: tuple[str, ...]
    arms: tuple[str, ...]


@dataclass(frozen=True)
class Space:
    """The current choice, and what else may be chosen."""

    current: Choice
    settings: Mapping[str, Sequence[Scalar]]
    views: Sequence[tuple[str, ...]]
    arms: Sequence[tuple[str, ...]]
    allowed: Callable[[Choice], bool] = lambda choice: True
    """Whether the settings fit each other."""


@dataclass(frozen=True)
class Gain:
    """The gain of one set of scores over another, on the same records."""

    found: Difference
    larger: bool
    level: float = 0.95

    @property
    def interval(self) -> tuple[float, float]:
        return self.found.interval(self.level)

    @property
    def shown(self) -> bool:
        """True if the gain is an improvement beyond the noise."""
        low, high = self.interval
        return low > 0 if self.larger else high < 0


class Chooser:
    """Searches a space by the scores of records.

    Args:
        space: What may be chosen.
        score: Returns for each choice the scores of every record, by the record's key.
        groups: Record key → group.
        judging: How scores of a set are combined.
        larger: Whether larger values of the headline, the first score, are better.
    """

    def __init__(
        self,
        space: Space,
        score: Callable[[Sequence[Choice]], Mapping[Choice, Mapping[str, Values]]],
        groups: Mapping[str, str],
        judging: Judging,
        larger: bool,
    ) -> None:
        self.space, self.groups, self.judging, self.larger = space, groups, judging, larger
        self._score = score
        self._known: dict[Choice, Mapping[str, Values]] = {}

    def scores(self, *choices: Choice) -> list[Mapping[str, Values]]:
        """Return the scores of each choice by record; those that are not known yet are computed together."""
        if missing := [choice for choice in dict.fromkeys(choices) if choice not in self._known]:
            self._known.update(self._score(missing))
        return [self._known[choice] for choice in choices]

    def trials(self) -> list[tuple[Choice, float]]:
        """Return every choice that was scored so far, and its headline over all records: the best first."""
        values = [(choice, self.value(scores, [*self.groups])) for choice, scores in self._known.items()]
        sign = -1 if self.larger else 1
        return sorted(values, key=lambda pair: math.inf if math.isnan(pair[1]) else sign * pair[1])

    @cached_property
    def headline(self) -> str:
        """Name of the first score, "" if records have none."""
        (scores,) = self.scores(self.space.current)
        return next((next(iter(values)) for values in scores.values() if values), "")

    def value(self, scores: Mapping[str, Values], records: Sequence[str]) -> float:
        """Return the headline over a set of records."""
        return over_set(self.judging, [scores[key] for key in records]).get(self.headline, math.nan)

    def gain(self, first: Mapping[str, Values], second: Mapping[str, Values], records: Sequence[str]) -> Gain | None:
        """Return how much better `second` is, paired over records; None if no record has both scores.

        If the set's score is pooled, so not the mean of the records' scores, it is paired over groups.
        """
        both = (first, second)
        keys = [key for key in records if all(math.isfinite(s[key].get(self.headline, math.nan)) for s in both)]
        if not keys:
            return None
        pairs, groups = [[s[key][self.headline] for key in keys] for s in both], [self.groups[key] for key in keys]
        if any(
            not math.isclose(np.mean(own), self.value(s, keys), rel_tol=1e-9)
            for own, s in zip(pairs, both, strict=True)
        ):
            pseudo = [self._pseudo_values(s, keys) for s in both]
            if np.isfinite(pseudo).all():
                pairs, groups = pseudo, [*dict.fromkeys(groups)]
        gained = np.subtract(pairs[1], pairs[0])[None]  # first, so that equal scores differ by exactly 0
        return Gain(difference(np.zeros_like(gained), gained, groups), self.larger)

    def _pseudo_values(self, scores: Mapping[str, Values], records: Sequence[str]) -> list[float]:
        """Return a value for each group, whose mean is the pooled headline."""
        groups = [*dict.fromkeys(self.groups[key] for key in records)]
        without = [self.value(scores, [key for key in records if self.groups[key] != group]) for group in groups]
        return pseudo_values(self.value(scores, records), without)

    def views(self, records: Sequence[str]) -> tuple[str, ...]:
        """Return the views that are better than the current ones beyond the noise, else the current ones."""
        gains = {views: gain for views, gain in self.views_gains(records).items() if gain is not None and gain.shown}
        sign = 1 if self.larger else -1
        return max(gains, key=lambda views: sign * gains[views].found.value, default=self.space.current.views)

    def views_gains(self, records: Sequence[str]) -> dict[tuple[str, ...], Gain | None]:
        """Return the gain by each other set of views at the current settings; of several, with wider intervals."""
        current = self.space.current
        others = [views for views in self.space.views if views != current.views]
        base, *scores = self.scores(current, *(replace(current, views=views) for views in others))
        found = [self.gain(base, each, records) for each in scores]
        p = [1.0 if gain is None or math.isnan(gain.found.p) else gain.found.p for gain in found]
        levels = holm(p)
        return {v: g and replace(g, level=level) for v, g, level in zip(others, found, levels, strict=True)}

    def best(self, records: Sequence[str]) -> Choice:
        """Return the choice with the best headline over these records; of equal ones, the nearest to the current."""
        found = replace(self.space.current, views=self.views(records))
        axes: dict[str, Sequence[Scalar | tuple[str, ...]]] = {**self.space.settings, "": self.space.arms}
        if math.prod(map(len, axes.values())) <= GRID:
            every = [self._changed(found, dict(zip(axes, values, strict=True))) for values in product(*axes.values())]
            return self._best_of([found, *every], records)
        for _ in range(_ROUNDS):
            before = found
            for name, values in axes.items():
                found = self._best_of([found, *(self._changed(found, {name: value}) for value in values)], records)
            if found == before:
                break
        return found

    def _changed(self, choice: Choice, values: Mapping[str, Scalar | tuple[str, ...]]) -> Choice:
        arms = values.get("", choice.arms)
        settings = tuple((name, values.get(name, value)) for name, value in choice.settings)
        return replace(choice, settings=settings, arms=arms)  # type: ignore[arg-type]

    def _best_of(self, choices: Sequence[Choice], records: Sequence[str]) -> Choice:
        """Return the first choice that none exceeds."""
        choices = [choice for choice in dict.fromkeys(choices) if self.space.allowed(choice)]
        values = [self.value(scores, records) for scores in self.scores(*choices)]
        ranks = [-math.inf if math.isnan(v) else v if self.larger else -v for v in values]
        return choices[ranks.index(max(ranks))]

    def nested(self) -> tuple[dict[str, Values], list[Choice]]:
        """Return each record's scores under what was chosen on the other folds' groups, and those choices."""
        found: dict[str, Values] = {}
        choices = []
        for held in self.folds():
            choice = self.best([key for key in self.groups if key not in held])
            (scores,) = self.scores(choice)
            found |= {key: scores[key] for key in held}
            choices.append(choice)
        return found, choices

    def folds(self) -> Iterator[frozenset[str]]:
        """Yield the records of each fold: whole groups, the largest first into the fold that is smallest then."""
        groups: dict[str, list[str]] = {}
        for key, group in self.groups.items():
            groups.setdefault(group, []).append(key)
        for names in balanced({name: len(groups[name]) for name in sorted(groups)}, min(FOLDS, len(groups))):
            yield frozenset(key for name in names for key in groups[name])
