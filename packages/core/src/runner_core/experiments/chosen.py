"""The result of `select`: what was chosen, its nested score beside the current one's, as JSON, tables and a page."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from runner_core.base.text import counted
from runner_core.config.values import nested
from runner_core.contract.records import Record, Table
from runner_core.experiments.choosing import Choice, Chooser, Gain, Values
from runner_core.experiments.result import intervals
from runner_core.output.report.page import Note, Page, decimal_or_dash, html
from runner_core.training.evaluation import Scores
from runner_core.training.scoring import Row

Result = Mapping[str, Any]
_SHOWN = 20
"""Trials on the page; trials.csv has all."""


def choose(chooser: Chooser, seconds: Mapping[tuple[str, ...], float]) -> dict[str, Any]:
    """Search, judge the search by the nested scores, and return everything that is reported.

    `seconds`: how long a network takes for one record, for each set of views.
    """
    keys, current = [*chooser.groups], chooser.space.current
    (own,) = chooser.scores(current)
    chosen = chooser.best(keys)
    (best,) = chooser.scores(chosen)
    gains = chooser.views_gains(keys)
    views = chooser.views(keys)
    found, folds, gain = None, list[Choice](), None
    if len({*chooser.groups.values()}) > 1:
        found, folds = chooser.nested()
        gain = chooser.gain(own, found, keys)
    if gain is not None and gain.shown:
        recommended = chosen
    else:
        recommended = replace(current, views=views)
    return {
        "headline": chooser.headline,
        "direction": "max" if chooser.larger else "min",
        "records": len(keys),
        "groups": len({*chooser.groups.values()}),
        "current": {**facts(current), **_figure(chooser, own)},
        "nested": None if found is None else {**_figure(chooser, found), **_gain(gain), "folds": [*map(facts, folds)]},
        "chosen": {**facts(chosen), "optimistic": chooser.value(best, keys)},
        "views": [{"views": list(v), "seconds": seconds.get(v), **_gain(gains.get(v))} for v in chooser.space.views],
        "trials": [{**facts(choice), "score": value} for choice, value in chooser.trials()],
        "recommended": facts(recommended),
        "changed": recommended != current,
        "text": _verdict(chooser, current, recommended, gain),
    }


def facts(choice: Choice) -> dict[str, Any]:
    return {"settings": {**dict(choice.settings), "predict.views": list(choice.views)}, "runs": list(choice.arms)}


def settings_file(result: Result) -> dict[str, Any]:
    """Return the recommended settings by section; views only where the project has some."""
    found = dict(result["recommended"]["settings"])
    if len(result["views"]) == 1:
        del found["predict.views"]
    return nested(found)


def _figure(chooser: Chooser, scores: Mapping[str, Values]) -> dict[str, Any]:
    """Return the headline over the set with its 95 % interval."""
    rows = [Row(Record(key, chooser.groups[key], {}), scores[key], {}) for key in chooser.groups]
    of_set = Scores(rows, {chooser.headline: chooser.value(scores, [*chooser.groups])}, {})
    found = intervals(of_set, chooser.judging)[chooser.headline]
    return {"score": found["mean"], "low": found["low"], "high": found["high"]}


def _gain(gain: Gain | None) -> dict[str, Any]:
    low, high = (math.nan, math.nan) if gain is None else gain.interval
    return {
        "difference": None if gain is None else gain.found.value,
        "difference_low": None if math.isnan(low) else low,
        "difference_high": None if math.isnan(high) else high,
        "better": gain is not None and gain.shown,
    }


def _verdict(chooser: Chooser, current: Choice, recommended: Choice, gain: Gain | None) -> str:
    if gain is None:
        return (
            "keep the current settings: with fewer than two groups, nothing can be said of other groups (name a "
            "cross-validation, or more groups with --data)"
        )
    low, high = gain.interval
    ends = "" if math.isnan(low) else f" (95 % {low:+.4g} to {high:+.4g})"
    amount = f"{chooser.headline} {gain.found.value:+.4g}{ends}, on groups that took no part in the choice"
    if gain.shown:
        return f"take the chosen settings: {amount}"
    if recommended != current:
        return f"take the other views only; the search as a whole shows no gain beyond the noise: {amount}"
    return f"keep the current settings; the search shows no gain beyond the noise: {amount}"


def tables(result: Result) -> Iterator[Table]:
    """Yield the settings, the scores, and the views with their cost."""
    current, chosen, nest = result["current"], result["chosen"], result["nested"]
    names = [*current["settings"]]
    rows = [
        (name, *(_text(which["settings"][name]) for which in (current, chosen, result["recommended"])))
        for name in names
    ]
    runs = (current["runs"], chosen["runs"], result["recommended"]["runs"])
    if len({tuple(which) for which in runs}) > 1:
        rows.append(("runs", *map(_text, runs)))
    yield Table("settings", "settings", ("setting", "current", "best on all records", "recommended"), rows)
    of = f"{counted(result['records'], 'record')} of {counted(result['groups'], 'group')}"
    scores = [("current settings", decimal_or_dash(current["score"]), _ends(current, ""))]
    if nest is not None:
        scores.append(("chosen on other groups (nested)", decimal_or_dash(nest["score"]), _ends(nest, "")))
        scores.append(("its difference", decimal_or_dash(nest["difference"]), _ends(nest, "difference_")))
    scores.append(("chosen on these very records (too good)", decimal_or_dash(chosen["optimistic"]), "–"))
    yield Table("scores", f"{result['headline']}, {of}", ("", "score", "95 % interval"), scores)
    if len(result["views"]) > 1:
        own = _text(current["settings"]["predict.views"])
        cells = [
            (
                _text(entry["views"]),
                "current" if _text(entry["views"]) == own else decimal_or_dash(entry["difference"]),
                _ends(entry, "difference_"),
                decimal_or_dash(entry["seconds"]),
            )
            for entry in result["views"]
        ]
        title = "views, at the current settings"
        yield Table("views", title, ("views", result["headline"], "95 % interval", "seconds a record"), cells)


def trial_rows(result: Result) -> list[Sequence[str | float]]:
    """Return a heading and a row for each trial: its score over all records, settings and, of several, its runs."""
    names, trials = [*result["current"]["settings"]], result["trials"]
    runs = len({tuple(trial["runs"]) for trial in trials}) > 1
    heading = [result["headline"], *names, *["runs"] * runs]
    return [
        heading,
        *(
            [trial["score"], *(_text(trial["settings"][name]) for name in names), *[_text(trial["runs"])] * runs]
            for trial in trials
        ),
    ]


def _trials(result: Result) -> Table:
    heading, *rows = trial_rows(result)
    shown = [(decimal_or_dash(score), *others) for score, *others in rows[:_SHOWN]]
    title = (
        f"the best of {counted(len(rows), 'trial')}, by all records (too good: each was picked by these very scores)"
    )
    return Table("trials", title, tuple(map(str, heading)), shown)


def page(result: Result) -> str:
    """Return the page as HTML text."""
    settings, scores, *views = tables(result)
    notes = [Note(result["text"], "good" if result["changed"] else "note"), *map(Note, result["notes"])]
    return html(
        Page(
            f"{result['project']} · select",
            f"{result['project']}: choices on out-of-fold predictions",
            [Note(f"Runs: {', '.join(map(str, result['runs']))}")],
            [("Result", [*notes, scores]), ("Settings", [settings]), ("Views", views), ("Trials", [_trials(result)])],
        )
    )


def _ends(values: Mapping[str, Any], prefix: str) -> str:
    low, high = values[f"{prefix}low"], values[f"{prefix}high"]
    return "–" if low is None or high is None else f"{decimal_or_dash(low)} to {decimal_or_dash(high)}"


def _text(value: Any) -> str:
    return (", ".join(map(str, value)) or "none") if isinstance(value, (list, tuple)) else str(value)
