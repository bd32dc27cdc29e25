"""List differences between runs as tables of text; each row is one quantity, with a value for every run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner_core.base.files import size_text
from runner_core.base.text import decimal
from runner_core.contract import Json
from runner_core.output.display import duration, speed
from runner_core.output.report.page import is_number
from runner_core.tools.compare.runs import Run

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
class Table:
    title: str
    rows: Sequence[Row]


def tables(runs: Sequence[Run]) -> list[Table]:
    """Return tables of differing settings, metrics, scores and speed, without empty ones."""
    settings = _differing([run.settings for run in runs])
    about = _differing([run.about for run in runs])
    scores = [_numbers(run.summary.get("scores") or {}) for run in runs]
    baseline = [_numbers(run.summary.get("baseline") or {}) for run in runs]
    found = [
        Table("settings that differ", [_row(name, values, _setting) for name, values in settings]),
        Table("what else differs", [_row(name, values, _setting) for name, values in about]),
        Table(
            "validation, best checkpoint",
            [
                *_every([run.metrics for run in runs], decimal),
                _row("step of it", [run.best_step for run in runs], "{:,}".format),
            ],
        ),
        Table("whole records", [*_every(scores, decimal), *_every(baseline, decimal, "trivial baseline, ")]),
        Table("speed", _speed(runs)),
    ]
    return [
        Table(table.title, rows)
        for table in found
        if (rows := [row for row in table.rows if any(value is not None for value in row.values)])
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
            "the runs were not validated on the same records (split.yaml): metrics and scores are of other data"
        )
    devices = {_device(run) for run in runs if _device(run)}
    if len(devices) > 1:
        found.append(f"the runs were on different devices ({', '.join(sorted(devices))}): so is their speed")
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
