"""The verdict of `runner compare`: it pairs scores of several settings over records, and judges the difference.

An arm is what one argument names: a run, or an experiment. The networks of an experiment with the same fold are
replicates of each other (seeds). Only records that no network of their fold trained on, and that all of them scored, in
every arm, are compared. The first arm is what the others are compared with.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from runner_core.base.text import counted
from runner_core.contract import Array
from runner_core.contract.records import Table
from runner_core.output.report.charts import Bar, interval_chart
from runner_core.output.report.page import Block, Markup, Note
from runner_core.tools.uncertainty import LEVEL, Difference, difference, holm

Content = Mapping[str, Any]
Answer = Literal["better", "worse", "cannot tell", ""]


@dataclass(frozen=True)
class Network:
    """The scores of one trained network.

    `content` is its scores.json, `fold` names what it did not train on, and `weights` is a digest of its best
    checkpoint, "" if there is none. `groups` (by record) replace the records' own groups: what `--group-by` kept
    together.
    """

    content: Content
    fold: str = ""
    weights: str = ""
    groups: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def records(self) -> Mapping[str, Content]:
        """Entries of the records that it did not train on, by key."""
        own = [entry for entry in self.content.get("records") or () if not entry.get("trained_on")]
        return {e["record"]: {**e, "group": self.groups.get(e["record"], e["group"])} for e in own}

    @cached_property
    def sets(self) -> Mapping[str, Content]:
        """The scores of the whole set, as if that were one record; named by its records.

        Empty if records have scores of their own and one of them was trained on, which the set's scores contain.
        """
        entries = self.content.get("records") or ()
        if any(entry.get("trained_on") and entry.get("scores") for entry in entries):
            return {}
        records = "\n".join(sorted(entry["record"] for entry in entries))
        means = self.content.get("means")
        return {records: {"group": records, "scores": means}} if records and means else {}


@dataclass(frozen=True)
class Arm:
    """A side of a comparison: `name` is how texts call it."""

    name: str
    networks: Sequence[Network]

    @property
    def headline(self) -> str:
        """Name of the first score, "" if there is none."""
        entries = (e for n in self.networks for part in (n.records, n.sets) for e in part.values() if e.get("scores"))
        return next((next(iter(entry["scores"])) for entry in entries), "")

    @property
    def shown(self) -> list[str]:
        """Names of the scores that tables show, the headline first."""
        names = [self.headline, *(name for network in self.networks for name in network.content.get("shown") or ())]
        return list(dict.fromkeys(names))

    def folds(self) -> dict[str, list[Network]]:
        found: dict[str, list[Network]] = {}
        for network in self.networks:
            found.setdefault(network.fold, []).append(network)
        return found


@dataclass(frozen=True)
class Paired:
    """Scores of two arms, each (networks, records), NaN where a network did not score a record, and the groups."""

    arms: tuple[Array, Array]
    groups: Sequence[str]
    by_record: bool = True
    """False if there is one score for the whole set only."""


def pair(first: Arm, second: Arm, score: str) -> Paired | None:
    """Return the scores of the records that both arms scored; None if there are none.

    If the arms group the records differently, the fewer groups count: they claim less.
    """
    for by_record in (True, False):
        known = [_known(arm, score, by_record) for arm in (first, second)]
        keys = [key for key in known[0] if key in known[1]]
        if keys:
            one, other = (
                _table(arm, [found[key] for key in keys]) for arm, found in zip((first, second), known, strict=True)
            )
            groups = ([found[key][1] for key in keys] for found in known)
            return Paired((one, other), min(groups, key=lambda names: len(set(names))), by_record)
    return None


_Known = Mapping[str, tuple[str, str, Sequence[float]]]
"""Record key → fold, group, and the scores by the fold's networks."""


def _known(arm: Arm, score: str, by_record: bool) -> _Known:
    """Return the records that every network of a fold scored; a record of two folds counts in the first."""
    found: dict[str, tuple[str, str, Sequence[float]]] = {}
    for fold, networks in arm.folds().items():
        entries = [network.records if by_record else network.sets for network in networks]
        for key in entries[0]:
            values = [_number(each[key].get("scores", {}).get(score)) if key in each else math.nan for each in entries]
            if all(map(math.isfinite, values)):
                found.setdefault(key, (fold, entries[0][key]["group"], values))
    return found


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan


def _table(arm: Arm, columns: Sequence[tuple[str, str, Sequence[float]]]) -> Array:
    """Return the scores (networks, records), without networks that scored none of these records."""
    rows = [
        [values[place] if own == fold else math.nan for own, _, values in columns]
        for fold, networks in arm.folds().items()
        for place in range(len(networks))
    ]
    return np.array([row for row in rows if not all(map(math.isnan, row))])


@dataclass(frozen=True)
class Verdict:
    """The difference of one score: that of the arm `other` less that of the arm `base`."""

    base: str
    other: str
    score: str
    direction: str
    """max or min; "" if it is not known which values are better."""
    found: Difference
    paired: Paired
    level: float = LEVEL
    """Level of the interval, raised if several comparisons share the probability of error."""

    @property
    def interval(self) -> tuple[float, float]:
        return self.found.interval(self.level)

    @property
    def answer(self) -> Answer:
        """The answer to whether `other` is better; "" if no direction or no uncertainty is known."""
        if not self.direction or math.isnan(self.found.p):
            return ""
        low, high = self.interval
        if low <= 0 <= high:
            return "cannot tell"
        return "better" if (low > 0) == (self.direction == "max") else "worse"

    @property
    def seeds(self) -> tuple[int, int]:
        """Networks that scored each record, in the arm that scores the fewest so."""
        one, other = (int(np.isfinite(arm).sum(0).min()) for arm in self.paired.arms)
        return one, other

    @property
    def needed(self) -> tuple[int | None, int | None]:
        """More seeds of each arm, or more groups, that would decide; None if unknown, or if these alone would not."""
        return self.found.needed(self.level) if self.answer == "cannot tell" else (None, None)

    @property
    def amount(self) -> str:
        """The difference with its interval, with as many decimals as the interval gives reason for."""
        low, high = self.interval
        if math.isnan(low):
            return f"{self.score} {self.found.value:+.4g}"
        places = min(12, max(0, 1 - math.floor(math.log10(high - low)))) if high > low else 4
        level = f"{100 * self.level:.4g} %"
        return f"{self.score} {self.found.value:+.{places}f} ({level} {low:.{places}f} to {high:.{places}f})"

    @property
    def text(self) -> str:
        """The verdict in one sentence or two."""
        other, base = self.other, self.base
        if self.single:
            other, base = f"the network of {other}", f"that of {base}"
        figures = f"{self.amount}, over {self.basis}"
        match self.answer:
            case "better" | "worse" as answer:
                return f"{other} is {answer} than {base}: {figures}"
            case "cannot tell":
                return f"cannot tell whether {other} is better than {base}: {figures}. {self._more}"
        return f"{other} less {base}: {figures}"

    @property
    def single(self) -> bool:
        """True if nothing is known of the noise of training: the verdict is about two networks, not their settings."""
        return not self.found.parts.df_seeds and min(len(arm) for arm in self.paired.arms) == 1

    @property
    def _more(self) -> str:
        """What would decide, as a sentence."""
        seeds, groups = self.needed
        ways = [counted(seeds, "more seed") + " of each"] if seeds else []
        ways += [counted(groups, f"more {self.unit}")] if groups else []
        if not ways:
            return "The difference is too small for any number of seeds or records that one would train"
        return f"About {' or '.join(ways)} would decide if the true difference is as large"

    @property
    def unit(self) -> str:
        groups = len(set(self.paired.groups))
        return "record" if groups == len(self.paired.groups) else "group"

    @property
    def basis(self) -> str:
        """The basis of the verdict: records, groups, networks."""
        records, groups = len(self.paired.groups), len(set(self.paired.groups))
        of = "" if groups == records else f" of {counted(groups, 'group')}"
        what = f"{counted(records, 'record')}{of}" if self.paired.by_record else "the score of the whole set"
        one, other = self.seeds
        networks = counted(one, "seed") if one == other else f"{one} and {other} seeds"
        return f"{what}, {networks}{' each' if one == other else ''}"

    @property
    def remarks(self) -> Iterator[str]:
        """Sentences on what the verdict does not cover."""
        one, other = self.seeds
        known = self.found.parts.df_seeds > 0
        if known and 1 in (one, other) and one != other:
            few, many = (self.base, self.other) if one == 1 else (self.other, self.base)
            yield f"{few} has one seed: its noise is taken to be as large as that of {many}"
        elif self.single:
            yield (
                "with one seed each, the noise of training is unknown: this compares two trained networks, not their "
                "settings; `runner PROJECT repeat` trains several seeds"
            )
        elif not known:
            yield "with one seed, the noise of training is judged by how much the folds differ"
        if not self.paired.by_record:
            yield "there are no scores of single records: this is about these records, and says nothing of others"
        elif len(set(self.paired.groups)) < _FEW:
            yield f"with {counted(len(set(self.paired.groups)), 'group')}, the result says little about other groups"


_FEW = 5


def judge(arms: Sequence[Arm], direction: str) -> tuple[list[Verdict], list[str]]:
    """Compare each further arm with the first, by each score that all of them show.

    Args:
        arms: Two arms at least.
        direction: Which values of the headline are better: max, min, or "" if unknown.

    Returns:
        Verdicts on the headline (corrected if they are several), differences of the other scores, and remarks.
    """
    base, remarks = arms[0], list[str]()
    found: list[Verdict] = []
    for arm in arms[1:]:
        for score in base.shown:
            paired = pair(base, arm, score) if score in arm.shown else None
            if paired is not None:
                known = direction if score == base.headline else ""
                found.append(
                    Verdict(base.name, arm.name, score, known, difference(*paired.arms, paired.groups), paired)
                )
            elif score == base.headline:
                remarks.append(_why_not(base, arm))
    found = _corrected(found, base.headline)
    main = [verdict for verdict in found if verdict.score == base.headline]
    remarks += [remark for verdict in main for remark in verdict.remarks]
    if main and not direction:
        remarks.append(f"the runs do not say whether larger or smaller values of {base.headline} are better")
    if len(main) > 1:
        remarks.append(
            f"{counted(len(main), 'comparison')} with {base.name}: the intervals of {base.headline} are wider for it "
            "(Holm's correction), so that with a probability of 95 % none of these verdicts is wrong"
        )
    return sorted(found, key=lambda verdict: verdict.score != base.headline), list(dict.fromkeys(remarks))


def _corrected(found: Sequence[Verdict], headline: str) -> list[Verdict]:
    """Return the verdicts, those of the headline with the levels of Holm's correction."""
    chosen = [v for v in found if v.score == headline and not math.isnan(v.found.p)]
    levels = dict(zip(map(id, chosen), holm([v.found.p for v in chosen]), strict=True))
    return [replace(v, level=levels.get(id(v), v.level)) for v in found]


def _why_not(base: Arm, other: Arm) -> str:
    """Return why two arms cannot be compared."""
    for arm in (base, other):
        if not any(network.records for network in arm.networks):
            trained = any(network.content.get("records") for network in arm.networks)
            why = "every record that it scored was trained on" if trained else "it has no scores of records"
            return f"no verdict on {other.name}: {arm.name} cannot be judged, {why}"
    if base.headline != other.headline:
        return f"no verdict on {other.name}: the headline is {base.headline} in {base.name}, {other.headline} there"
    return (
        f"no verdict on {other.name}: it and {base.name} have no scores of a common record that neither trained on; "
        "train both with the same split (data.split)"
    )


# ---------------------------------------------------------------- what is shown and written


def blocks(found: Sequence[Verdict], remarks: Sequence[str]) -> Iterator[Block]:
    """Yield the verdicts on the headline, a chart of all differences, a table of the other scores, and the remarks."""
    kinds = {"better": "good", "worse": "warning", "cannot tell": "note", "": "note"}
    headline = [verdict for verdict in found if verdict.score == found[0].score]
    for verdict in headline:
        yield Note(verdict.text, kinds[verdict.answer])
    for score in dict.fromkeys(verdict.score for verdict in found):
        yield Markup(_chart([verdict for verdict in found if verdict.score == score]))
    others = [verdict for verdict in found if verdict.score != found[0].score]
    if others:
        rows = [(v.other, v.score, *v.amount.removeprefix(v.score).strip().split(" ", 1)) for v in others]
        title = f"other scores, less those of {found[0].base}: not corrected for their number"
        yield Table("differences", title, ("", "score", "difference", "interval"), [(*r, "–")[:4] for r in rows])
    yield from map(Note, remarks)


def _chart(found: Sequence[Verdict]) -> str:
    colours = {"better": "a", "worse": "b"}
    bars = [Bar(v.other, v.found.value, *v.interval, colours.get(v.answer, "c"), v.answer, v.amount) for v in found]
    arrow = {"max": "↑", "min": "↓"}.get(found[0].direction, "")
    return interval_chart(f"{found[0].score}, less that of {found[0].base}", bars, arrow)


def facts(verdict: Verdict) -> dict[str, object]:
    """Return a verdict for compare.json."""
    low, high = verdict.interval
    seeds, groups = verdict.needed
    return {
        "run": verdict.other,
        "against": verdict.base,
        "score": verdict.score,
        "direction": verdict.direction or None,
        "verdict": verdict.answer or None,
        "difference": verdict.found.value,
        "low": low,
        "high": high,
        "level": verdict.level,
        "p": verdict.found.p,
        "records": len(verdict.paired.groups) if verdict.paired.by_record else 0,
        "groups": len(set(verdict.paired.groups)) if verdict.paired.by_record else 0,
        "seeds": verdict.seeds,
        "more_seeds": seeds,
        "more_groups": groups,
        "text": verdict.text,
    }
