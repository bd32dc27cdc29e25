"""Compare runs of one project: settings, metrics, scores, speed and curves, as tables and as a page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

from runner_core.base.errors import BadInput
from runner_core.base.files import size_text
from runner_core.base.text import counted, decimal
from runner_core.config.values import flat_items
from runner_core.contract import Json
from runner_core.contract.records import Table
from runner_core.output.display import duration, speed
from runner_core.output.report.charts import Series, line_chart
from runner_core.output.report.page import Block, Markup, Note, Page, html, is_number
from runner_core.output.runfolder import RunFolder
from runner_core.plugins.settings import read_settings
from runner_core.training.seen import SavedSplit, read_split

_NO_CURVES = ("event", "step", "epoch", "timing", "best", "precision_seen")

Points = list[tuple[float, float]]
"""(optimizer step, value)."""


@dataclass(frozen=True)
class Run:
    """A run to compare.

    `settings` are by dotted name, from config.yaml. `about` holds preset, data and plugins, also from config.yaml.
    """

    folder: RunFolder
    project: str
    about: Mapping[str, Json]
    settings: Mapping[str, Json]
    summary: Mapping[str, Any]
    events: Sequence[Mapping[str, Any]]
    sides: SavedSplit | None

    @property
    def ended(self) -> bool:
        return "status" in self.summary

    @property
    def steps(self) -> int:
        """Number of optimizer steps done, as far as known."""
        return int(self.summary.get("steps") or max((e.get("step", 0) for e in self.events), default=0))

    @property
    def state(self) -> str:
        """Progress of the run, as text."""
        if not self.ended:
            return f"{counted(self.steps, 'step')} so far: it is running, or was killed"
        warnings = sum(f.get("level") != "note" for f in self.summary.get("health") or ())
        note = f", {counted(warnings, 'warning')}" if warnings else ""
        return f"{self.summary['status']}, {counted(self.steps, 'step')}{note}"

    @property
    def metrics(self) -> Mapping[str, float]:
        """Metrics of the best validation."""
        if self.summary.get("metrics"):
            return dict(self.summary["metrics"])
        best = self._best_validation or {}
        return {name: value for name, value in best.items() if name not in _NO_CURVES and is_number(value)}

    @property
    def best_step(self) -> int | None:
        found = self.summary.get("best_step", (self._best_validation or {}).get("step"))
        return None if found is None else int(found)

    @property
    def _best_validation(self) -> Mapping[str, Any] | None:
        """The last line of the log that is marked as the best."""
        lines = (e for e in reversed(self.events) if e.get("event") == "validation" and e.get("best"))
        return next(lines, None)

    @property
    def seconds(self) -> Mapping[str, float]:
        """Seconds of all training steps in the log: in total, and the part waiting for data."""
        timings = [e["timing"] for e in self.events if e.get("event") == "train" and e.get("timing")]
        return {name: sum(t.get(name) or 0.0 for t in timings) for name in ("seconds", "data_wait")}

    @cached_property
    def curves(self) -> Mapping[str, Points]:
        """Curves by name: numbers of training and validation, and samples per second."""
        found: dict[str, Points] = {}
        for event in self.events:
            kind = event.get("event")
            if kind not in ("train", "validation"):
                continue
            numbers = {f"{name}, {kind}": v for name, v in event.items() if name not in _NO_CURVES}
            if kind == "train":
                numbers["samples/s"] = (event.get("timing") or {}).get("samples_per_second")
            for name, value in numbers.items():
                if is_number(value):
                    found.setdefault(name, []).append((float(event["step"]), float(value)))
        return found


def read_run(path: Path) -> Run:
    """Return the run of a folder or of anything inside it; raise BadInput if there is no run."""
    folder = RunFolder.open(path)
    saved = read_settings(folder.config_file)
    summary = folder.read_summary()
    project = saved.project or str(summary.get("project") or "")
    if not project:
        raise BadInput(f"{folder.config_file} does not say of which project the run is")
    plugins = {f"plugin {name}": version for name, version in saved.plugins.items()}
    about = {"preset": saved.preset, "data": saved.source, **plugins, **_versions(summary)}
    return Run(
        folder,
        project,
        about,
        dict(flat_items(saved.sections)),
        summary,
        folder.checked_events(),
        read_split(folder.path),
    )


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """Return runs that can be compared.

    Raises BadInput for fewer than two runs, a run that is named twice, and several projects.
    """
    if len(paths) < 2:
        raise BadInput("name two runs at least: runner compare RUN RUN …  (folders below runs/PROJECT)")
    runs = [read_run(path) for path in paths]
    first, seen = runs[0], set()
    for run in runs:
        if run.project != first.project:
            raise BadInput(
                f"{first.folder.path} is a run of {first.project}, {run.folder.path} one of {run.project}: only runs "
                "of one project can be compared"
            )
        if (place := run.folder.path.resolve()) in seen:
            raise BadInput(f"{run.folder.path} is named twice")
        seen.add(place)
    return runs


def _versions(summary: Mapping[str, Any]) -> dict[str, Json]:
    found = dict(summary.get("versions") or {})
    found.pop("plugins", None)
    return {f"version of {name}": version for name, version in found.items()}


NOT_THERE = "–"
_MOST = 60
"""Largest number of characters shown of a setting."""


@dataclass(frozen=True)
class Row:
    """One quantity: `values` as they are, `texts` as shown, one for each run."""

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
    scores = [_numbers(run.summary.get("scores") or {}) for run in runs]
    baseline = [_numbers(run.summary.get("baseline") or {}) for run in runs]
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
        Compared("speed", "speed", _speed(runs)),
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


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in values.items() if is_number(value)}


def _speed(runs: Sequence[Run]) -> list[Row]:
    def of(key: str) -> list[Json]:
        return [run.summary.get(key) for run in runs]

    def memory(where: str) -> list[Json]:
        return [(run.summary.get("peak_memory_bytes") or {}).get(where) or None for run in runs]

    seconds = [run.seconds for run in runs]
    steps = [max((e["step"] for e in run.events if e.get("event") == "train"), default=0) for run in runs]
    each = [s["seconds"] / n if n and s["seconds"] else None for s, n in zip(seconds, steps, strict=True)]
    waited = [s["data_wait"] / s["seconds"] if s["seconds"] else None for s in seconds]
    rates = [last[1] if last else None for last in (_last(run) for run in runs)]
    speeds = [a if a is not None else b for a, b in zip(of("samples_per_second"), rates, strict=True)]
    rows = [
        _row("samples/s", speeds, speed),
        _row("seconds a step", each, "{:.4g}".format),
        _row("waiting for data", waited, "{:.1%}".format),
        _row("wall time", of("wall_seconds"), duration),
        _row("peak host memory", memory("host"), size_text),
        _row("peak device memory", memory("device"), size_text),
    ]
    known = [value for value in speeds if value]
    if len(known) == len(speeds):
        rows.insert(1, _row("times run 1", [value / known[0] for value in known], "{:.2f}".format))
    return rows


def _last(run: Run) -> tuple[float, float] | None:
    points = run.curves.get("samples/s")
    return points[-1] if points else None


def _row(name: str, values: Sequence[Json], show: Callable[[Any], str]) -> Row:
    return Row(name, values, [NOT_THERE if value is None else show(value) for value in values])


def _setting(value: Json) -> str:
    text = value if isinstance(value, str) else str(value)
    return text if len(text) <= _MOST else f"{text[: _MOST - 1]}…"


COLOURS = "abdefg"
"""Line classes in the style sheet; further runs reuse them."""


def render(runs: Sequence[Run], tables: Sequence[Compared], notes: Sequence[str]) -> str:
    """Return the page as HTML text."""
    project = runs[0].project
    return html(
        Page(
            f"{project} · compare",
            f"{project}: {len(runs)} runs compared",
            [],
            [
                ("Runs", [_runs(runs), *(Note(note, "warning") for note in notes)]),
                *((found.title.capitalize(), [found.table()]) for found in tables if found.rows),
                ("Curves", [*_curves(runs)]),
            ],
        )
    )


def _runs(runs: Sequence[Run]) -> Block:
    rows = "".join(
        f'<tr><th><i class="{_colour(number)}"></i>run {number + 1}</th><td><code>{escape(str(run.folder.path))}</code>'
        f"</td><td>{escape(run.state)}</td></tr>"
        for number, run in enumerate(runs)
    )
    return Markup(f'<div class="wide"><table class="plain legend">{rows}</table></div>')


def _curves(runs: Sequence[Run]) -> Iterator[Block]:
    names = dict.fromkeys(name for run in runs for name in run.curves)
    charts = []
    for name in names:
        series = [
            Series(str(number + 1), _colour(number), run.curves[name])
            for number, run in enumerate(runs)
            if name in run.curves
        ]
        charts.append(line_chart(name, series, log=not name.startswith("learning_rate")))
    if charts:
        yield Markup(f'<div class="charts">{"".join(charts)}</div>')


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]
