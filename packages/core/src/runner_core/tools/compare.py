"""Compare runs of one project: which is better, settings, metrics, scores, speed and curves; as tables and a page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from statistics import fmean
from typing import Any

from runner_core.base.files import size_text
from runner_core.base.text import decimal, duration
from runner_core.contract import Json
from runner_core.contract.records import Table
from runner_core.output.display import speed
from runner_core.output.report.charts import Series, line_chart, line_class
from runner_core.output.report.page import Block, Blocks, Markup, Note, Page, html
from runner_core.tools.runs import Run, numbers
from runner_core.tools.verdict import Arm, Verdict, judge

NOT_THERE = "–"
_OF_MEANS = " (of an experiment: the mean over its runs)"
_MOST = 60
"""Largest number of characters shown of a setting."""


@dataclass(frozen=True)
class Row:
    """A quantity: `values` as they are, `texts` as shown, one for each run."""

    name: str
    values: Sequence[Json]
    texts: Sequence[str]


@dataclass(frozen=True)
class Compared:
    """Quantities of one kind, one row each; `name` is their key in compare.json."""

    name: str
    title: str
    rows: Sequence[Row]

    def table(self) -> Table:
        """Return them as a table with a column for each run."""
        columns = ("", *(f"run {number}" for number in range(1, len(self.rows[0].texts) + 1)))
        return Table(self.name, "", columns, [(row.name, *row.texts) for row in self.rows])


def tables(runs: Sequence[Run]) -> list[Compared]:
    """Return tables of differing settings, metrics, scores and speed; one without rows is not shown."""
    settings = _differing([run.settings for run in runs])
    about = _differing([run.about for run in runs])
    scores = [numbers(run.summary.get("scores") or {}) for run in runs]
    baseline = [numbers(run.summary.get("baseline") or {}) for run in runs]
    found = [
        Compared("settings", "settings that differ", [_row(name, values, _setting) for name, values in settings]),
        Compared("about", "what else differs", [_row(name, values, _setting) for name, values in about]),
        Compared(
            "validation",
            "validation, best checkpoint",
            [
                *_every([run.metrics for run in runs], decimal),
                _row("step of it", [run.best_step for run in runs], "{:,}".format),
            ],
        ),
        Compared(
            "scores", "whole records", [*_every(scores, decimal), *_every(baseline, decimal, "trivial baseline, ")]
        ),
        Compared("speed", f"speed{_OF_MEANS if any(run.parts for run in runs) else ''}", _speed(runs)),
    ]
    return [
        Compared(table.name, table.title, [row for row in table.rows if any(value is not None for value in row.values)])
        for table in found
    ]


def notes(runs: Sequence[Run]) -> list[str]:
    """Return reasons why the numbers of these runs cannot be compared fairly."""
    found = []
    for number, run in enumerate(runs, 1):
        if run.summary.get("status") != "done":
            found.append(f"run {number} is not done: {run.summary.get('reason') or run.state}")
    validated = [sorted((run.sides or {}).get("validation", ())) for run in runs if run.sides is not None]
    if len(validated) > 1 and any(names != validated[0] for names in validated):
        found.append(
            "the runs were not validated on the same records (split.yaml): their metrics and scores cannot be compared"
        )
    devices = {_device(run) for run in runs if _device(run)}
    if len(devices) > 1:
        found.append(
            f"the runs were on different devices ({', '.join(sorted(devices))}): their speeds cannot be compared"
        )
    return found


def _device(run: Run) -> str:
    device: Mapping[str, Any] = run.summary.get("device") or {}
    return str(device.get("name") or device.get("kind") or "")


def _differing(values: Sequence[Mapping[str, Json]]) -> Iterable[tuple[str, list[Json]]]:
    """Yield names, in the runs' order, whose values differ, with each run's value.

    A run without the name has `NOT_THERE`, which differs too.
    """
    for name in dict.fromkeys(name for each in values for name in each):
        found = [each.get(name, NOT_THERE) for each in values]
        if any(value != found[0] for value in found):
            yield name, found


def _every(values: Sequence[Mapping[str, float]], show: Callable[[Any], str], prefix: str = "") -> list[Row]:
    names = dict.fromkeys(name for each in values for name in each)
    return [_row(f"{prefix}{name}", [each.get(name) for each in values], show) for name in names]


def verdicts(runs: Sequence[Run]) -> tuple[list[Verdict], list[str]]:
    """Return which runs are better than the first one, with remarks."""
    data = dict.fromkeys(str(run.about.get("data")) for run in runs)
    if len(data) > 1:
        return [], [f"no verdict: the runs are on different data ({', '.join(data)}), where equal names mean nothing"]
    first = {network.weights for network in runs[0].networks} - {""}
    for number, run in enumerate(runs[1:], 2):
        if first & {network.weights for network in run.networks}:
            return [], [
                f"no verdict: run 1 and run {number} contain the same network (equal weights in the best checkpoint), "
                "whose scores cannot differ: name runs of other settings or seeds"
            ]
    arms = [Arm(f"run {number}", run.networks) for number, run in enumerate(runs, 1)]
    directions = {run.direction for run in runs}
    return judge(arms, directions.pop() if len(directions) == 1 else "")


def _speed(runs: Sequence[Run]) -> list[Row]:
    """Return rows of speed and memory; those of an experiment are means over its runs."""
    every = [[_costs(part) for part in run.parts or [run]] for run in runs]
    rows = [_row(name, [_mean([each[name] for each in costs]) for costs in every], show) for name, show in _COSTS]
    known = [value for value in rows[0].values if value]
    if len(known) == len(runs):
        rows.insert(1, _row("times run 1", [value / known[0] for value in known], "{:.2f}".format))
    return rows


_COSTS: Sequence[tuple[str, Callable[[Any], str]]] = (
    ("samples/s", speed),
    ("seconds a step", "{:.4g}".format),
    ("waiting for data", "{:.1%}".format),
    ("wall time", duration),
    ("peak host memory", size_text),
    ("peak device memory", size_text),
)


def _costs(run: Run) -> Mapping[str, float | None]:
    """Return what the training of one run cost, by the names of `_COSTS`; None for what is not known."""
    seconds, memory = run.seconds, run.summary.get("peak_memory_bytes") or {}
    steps = max((e["step"] for e in run.events if e.get("event") == "train"), default=0)
    rate, last = run.summary.get("samples_per_second"), _last(run)
    return {
        "samples/s": last[1] if rate is None and last else rate,
        "seconds a step": seconds["seconds"] / steps if steps and seconds["seconds"] else None,
        "waiting for data": seconds["data_wait"] / seconds["seconds"] if seconds["seconds"] else None,
        "wall time": run.summary.get("wall_seconds"),
        "peak host memory": memory.get("host") or None,
        "peak device memory": memory.get("device") or None,
    }


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the mean; None if any value is not known."""
    known = [value for value in values if value is not None]
    return fmean(known) if len(known) == len(values) else None


def _last(run: Run) -> tuple[float, float] | None:
    points = run.curves.get("samples/s")
    return points[-1] if points else None


def _row(name: str, values: Sequence[Json], show: Callable[[Any], str]) -> Row:
    return Row(name, values, [NOT_THERE if value is None else show(value) for value in values])


def _setting(value: Json) -> str:
    text = value if isinstance(value, str) else str(value)
    return text if len(text) <= _MOST else f"{text[: _MOST - 1]}…"


def render(runs: Sequence[Run], judged: Blocks, tables: Sequence[Compared], notes: Sequence[str]) -> str:
    """Return the page as HTML text."""
    project = runs[0].project
    return html(
        Page(
            f"{project} · compare",
            f"{project}: {len(runs)} runs compared",
            [],
            [
                ("Runs", [_runs(runs), *(Note(note, "warning") for note in notes)]),
                ("Verdict", list(judged)),
                *((found.title.capitalize(), [found.table()]) for found in tables if found.rows),
                ("Curves", [*_curves(runs)]),
            ],
        )
    )


def _runs(runs: Sequence[Run]) -> Block:
    rows = "".join(
        f'<tr><th><i class="{line_class(number)}"></i>run {number + 1}</th>'
        f"<td><code>{escape(str(run.folder.path))}</code></td><td>{escape(run.state)}</td></tr>"
        for number, run in enumerate(runs)
    )
    return Markup(f'<div class="wide"><table class="plain legend">{rows}</table></div>')


def _curves(runs: Sequence[Run]) -> Iterator[Block]:
    names = dict.fromkeys(name for run in runs for name in run.curves)
    charts = []
    for name in names:
        series = [
            Series(str(number + 1), line_class(number), run.curves[name])
            for number, run in enumerate(runs)
            if name in run.curves
        ]
        charts.append(line_chart(name, series, log=not name.startswith("learning_rate")))
    if charts:
        yield Markup(f'<div class="charts">{"".join(charts)}</div>')
