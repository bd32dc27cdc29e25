"""The comparison of runs as one page: tables, and a chart for each curve with all runs in it."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from runner_core.output.report.charts import Series, line_chart
from runner_core.output.report.page import page, section, table
from runner_core.tools.compare.runs import Run
from runner_core.tools.compare.tables import Table

COLOURS = "abdefg"
"""Line classes in the style sheet; further runs reuse them."""


def render(runs: Sequence[Run], tables: Sequence[Table], notes: Sequence[str]) -> str:
    """Return the page as HTML text."""
    names = [f"run {number}" for number in range(1, len(runs) + 1)]
    warnings = "".join(f'<p class="finding warning">{escape(note)}</p>' for note in notes)
    sections = [
        section("Runs", _runs(runs) + warnings),
        *(section(t.title.capitalize(), _table(t, names)) for t in tables),
        section("Curves", _curves(runs)),
    ]
    project = runs[0].project
    head = f"<header><h1>{escape(project)}: {len(runs)} runs compared</h1></header>"
    return page(f"{project} · compare", head + "".join(sections))


def _runs(runs: Sequence[Run]) -> str:
    rows = "".join(
        f'<tr><th><i class="{_colour(number)}"></i>run {number + 1}</th><td><code>{escape(str(run.folder.path))}</code>'
        f"</td><td>{escape(run.state)}</td></tr>"
        for number, run in enumerate(runs)
    )
    return f'<div class="wide"><table class="plain legend">{rows}</table></div>'


def _table(found: Table, names: Sequence[str]) -> str:
    rows = [(row.name, *row.texts) for row in found.rows]
    return table("", ("", *names), rows, found.title.replace(" ", "-").replace(",", ""))


def _curves(runs: Sequence[Run]) -> str:
    names = dict.fromkeys(name for run in runs for name in run.curves)
    charts = []
    for name in names:
        series = [
            Series(str(number + 1), _colour(number), run.curves[name])
            for number, run in enumerate(runs)
            if name in run.curves
        ]
        charts.append(line_chart(name, series, log=not name.startswith("learning_rate")))
    return f'<div class="charts">{"".join(charts)}</div>' if charts else ""


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]
