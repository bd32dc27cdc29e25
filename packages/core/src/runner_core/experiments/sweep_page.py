"""The page of a sweep: trials, what mattered, and the best settings on records that it never looked at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from runner_core.base.text import counted
from runner_core.contract.records import Table
from runner_core.experiments.sweep import MATTERED_FROM, Sweep
from runner_core.output.report.charts import Bar, Series, bar_chart, line_chart
from runner_core.output.report.page import Block, Markup, Note, Page, decimal_or_dash, html

_SHOWN = 30
Result = Mapping[str, Any]


def result_page(found: Sweep, result: Result) -> str:
    """Return the page as HTML text."""
    shown = [*tables(found, result)]
    return html(
        Page(
            f"{result['project']} · sweep",
            f"{result['project']}: sweep",
            [
                Note(f"Data: {result['data']}, preset {result['preset']}; searched: {', '.join(found.space)}."),
                Note(str(found.experiment.path)),
            ],
            [
                ("Result", [*(table for table in shown if table.name == "judged"), *map(Note, notes(result))]),
                ("What mattered", [*_charts(found, result)]),
                ("Trials", [table for table in shown if table.name == "trials"]),
            ],
            (result["status"], f"{len(result['trials'])} of {counted(found.trials, 'trial')}"),
        )
    )


def tables(found: Sweep, result: Result) -> Iterator[Table]:
    """Yield the table of trials, the best first, and the scores on records that were held out."""
    names = [*found.space]
    rows = [
        (
            trial["name"],
            trial["state"],
            decimal_or_dash(trial["value"]),
            *(_text(trial["settings"].get(name)) for name in names),
        )
        for trial in result["trials"][:_SHOWN]
    ]
    more = len(result["trials"]) - len(rows)
    title = f"trials, the best {result['metric']} first" + (f" ({more} more in summary.json)" if more else "")
    yield Table("trials", title, ("trial", "state", result["metric"], *names), rows)
    judged = result["judged"]
    if judged:
        scores = dict.fromkeys(name for which in judged.values() for name in which["scores"])
        title = f"on {counted(judged['best']['records'], 'record')} that the search did not look at"
        cells = [(n, *(decimal_or_dash(judged[which]["scores"].get(n)) for which in judged)) for n in scores]
        yield Table("judged", title, ("score", *(f"{which} settings" for which in judged)), cells)


def notes(result: Result) -> Iterator[str]:
    """Yield sentences about what the result means."""
    found = result["difference"]
    if found is not None and found["low"] is not None:
        ends = f"95 % {found['low']:+.4g} to {found['high']:+.4g}"
        yield f"best minus base settings: {found['score']} {found['value']:+.4g} ({ends}, over groups)"
        yield (
            "these are two trained networks: `repeat` both settings with several seeds, and `compare` them, before you "
            "believe a small difference"
        )
    elif result["best"] == "trial-000":
        yield "the settings without the search are the best"
    if result["best"] is not None and not result["importance"]:
        yield f"what mattered is not known: that takes {MATTERED_FROM} trials that are done, and two settings"


def _charts(found: Sweep, result: Result) -> Iterator[Block]:
    bars = [Bar(name, share, 0.0, 0.0, "a", f"{share:.0%}") for name, share in result["importance"].items()]
    points = sorted(
        (float(trial["name"].removeprefix("trial-")), trial["value"])
        for trial in result["trials"]
        if trial["value"] is not None
    )
    best: list[tuple[float, float]] = []
    for number, value in points:
        last = best[-1][1] if best else value
        best.append((number, max(last, value) if found.maximise else min(last, value)))
    charts = [bar_chart("share of each setting in what made trials good", bars, ratios=False)] if bars else []
    if points:
        series = [Series("trial", "a", points), Series("best so far", "b", best)]
        charts.append(line_chart(f"{result['metric']} by trial", series))
    if charts:
        yield Markup(f'<div class="charts">{"".join(charts)}</div>')


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
