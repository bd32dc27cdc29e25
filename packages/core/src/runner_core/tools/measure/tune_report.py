"""Report tuning, for people and for programs: lines on the screen, settings.yaml, tune.json, report.html."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import yaml

from runner_core.base.calling import runner
from runner_core.base.files import size_text
from runner_core.base.location import shell_word
from runner_core.base.text import counted, duration
from runner_core.base.writing import replace_json, replace_text
from runner_core.config import RunConfig
from runner_core.config.values import nested, overlay_named
from runner_core.contract import Json
from runner_core.contract.project import Project
from runner_core.contract.records import Table
from runner_core.output.display import speed
from runner_core.output.report.charts import Series, line_chart
from runner_core.output.report.page import Block, Code, Markup, Note, Page, html
from runner_core.output.report.page import lines as screen
from runner_core.plugins.settings import PHANTOM, differences, from_preset
from runner_core.tools.measure.outcome import Result
from runner_core.tools.measure.tune import Tuned, interval
from runner_core.training.assembly import TrainingSpec

SETTINGS, FACTS, REPORT = "settings.yaml", "tune.json", "report.html"

_SIDES = ("before", "after")
_COLUMNS = ("tried", "samples/s", "before", "times as fast (95 %)", "memory", "outcome")
_HOW = (
    "Each remedy was added to the best settings so far. Both trained from the same seed, in processes of their own, "
    "and took turns; only times of one round were compared. A remedy was kept where the whole 95 % interval of how "
    "many times as fast it is lies above 1 (Wilcoxon's signed-rank test), and the losses of the same steps agree; of "
    "another batch size, where as much was learned of as many samples. What was slower in each of the first three "
    "rounds was given up: they are too few for an interval. In the end all that was kept took turns with "
    "the settings as they were once more, and is written only if it was faster in that too."
)


def verdict(found: Tuned) -> str:
    """Return the result in one or two sentences."""
    if found.interrupted:
        kept = f" ({_typed(found.dropped)} was faster, but not yet measured once more)" if found.dropped else ""
        return f"Interrupted before the last comparison: the settings stay as they were{kept}."
    if found.final is None and found.dropped:
        return "What was faster could not be measured against the settings as they were once more: they stay."
    if found.dropped:
        assert found.final is not None
        return (
            f"What was kept one by one ({_typed(found.dropped)}) is not faster beyond the noise than the settings as "
            f"they were when measured once more: {interval(found.final)}. They stay as they are."
        )
    if not found.settings:
        count = sum(row.outcome != "not tried" for row in found.rows)
        tried = counted(count, "remedy", "remedies")
        message = f"None of what was tried ({tried}) is faster beyond the noise and learns the same: the settings stay."
        if not count:
            short = f"{minutes_text(found.given)} did not suffice for any remedy"
            message = (
                f"Nothing was tried, since {short if found.wanted else 'there is nothing to try'}: the settings stay."
            )
        return message + _more(found)
    assert found.final is not None
    assert found.speeds is not None
    before, after = (speed(value) for value in found.speeds)
    return (
        f"{interval(found.final)} as fast as the settings as they were: {after} instead of {before} samples/s, with "
        f"{_typed(found.settings)}.{_more(found)}"
    )


def minutes_text(seconds: float) -> str:
    """Return a time in minutes.

    >>> minutes_text(60.0), minutes_text(90.0), minutes_text(0.6)
    ('1 minute', '1.5 minutes', '0.01 minutes')
    """
    minutes = f"{seconds / 60:g}"
    return f"{minutes} minute{'' if minutes == '1' else 's'}"


def _more(found: Tuned) -> str:
    """Return how many minutes would have sufficed to try everything, or ""."""
    if not found.wanted:
        return ""
    enough = math.ceil((max(found.given, found.seconds) + found.wanted) / 60)
    return f" About --minutes {enough} would do for all that was left out."


def lines(found: Tuned, folder: Path, project: str) -> Iterator[str]:
    """Yield the table and the next command."""
    yield ""
    if any(row.outcome != "not tried" for row in found.rows):
        yield from screen([_table(found.rows)])
    yield from _not_tried(found.rows)
    yield ""
    yield verdict(found)
    yield f"settings: {folder / SETTINGS}   report: {folder / REPORT}   ({duration(found.seconds)})"
    if found.settings:
        yield f"next: {runner()} {project} train --config {shell_word(folder / SETTINGS)}"


def write(found: Tuned, base: TrainingSpec, project: type[Project], config: RunConfig, folder: Path) -> None:
    """Write settings.yaml, tune.json and report.html into `folder`; `config` is the initial settings."""
    text = settings_text(found, base, project, config)
    replace_text(folder / SETTINGS, text)
    replace_json(folder / FACTS, facts(found, base))
    replace_text(folder / REPORT, _page(found, base, text))


def settings_text(found: Tuned, base: TrainingSpec, project: type[Project], config: RunConfig) -> str:
    """Return a settings file with all differences from the preset, whether by tuning or by the user."""
    tuned = overlay_named(config, found.settings, "tune")
    preset = from_preset(project, base.preset, config.extensions)
    changed = {name: now for name, (_, now) in differences(preset, tuned).items()}
    head = {"project": base.project, "preset": base.preset, "source": base.source or PHANTOM}
    about = "".join(f"# {line}\n" for line in (f"runner {base.project} train --config THIS_FILE", verdict(found)))
    return about + str(yaml.safe_dump({**head, **nested(changed)}, sort_keys=False))


def facts(found: Tuned, base: TrainingSpec) -> dict[str, Json]:
    """Return all results, for JSON."""
    ready = asdict(found.ready)
    return {
        "project": base.project,
        "preset": base.preset,
        "source": base.source or PHANTOM,
        "settings": found.settings,
        "verdict": verdict(found),
        "final": None if found.final is None else asdict(found.final),
        "samples_per_second": found.speeds and dict(zip(_SIDES, found.speeds, strict=True)),
        "dropped": found.dropped,
        "interrupted": found.interrupted,
        "rounds": dict(zip(_SIDES, found.turns, strict=True)),
        "tried": [_tried(row) for row in found.rows],
        "began_with": ready | {"data_wait_share": found.wait_share},
        "seconds": found.seconds,
    }


def _tried(row: Result) -> dict[str, Json]:
    agreement, (before, after) = row.agreement, row.speeds or (None, None)
    return {
        **{"name": row.name, "settings": dict(row.case.settings), "why": row.case.why},
        **{"outcome": row.outcome, "reason": row.reason},
        "comparison": None if row.comparison is None else asdict(row.comparison),
        **{"samples_per_second": after, "before": before},
        **{"host_bytes": row.host_bytes or None, "device_bytes": row.device_bytes if row.host_bytes else None},
        "agreement": agreement and {name: getattr(agreement, name) for name in ("agrees", "text", "before", "after")},
        **{"apart": row.apart, "output": row.output},
    }


def _page(found: Tuned, base: TrainingSpec, settings: str) -> str:
    ready = found.ready
    where = f"{ready.device}, {ready.engine}, {ready.precision}; preset {base.preset}, data: {base.source or PHANTOM}"
    title = f"{base.project}: tuning"
    return html(
        Page(
            title,
            title,
            [Note(where)],
            [
                ("What it came to", [Note(verdict(found), "good" if found.settings else "note"), *_chart(found)]),
                ("What was tried", [_table(found.rows), *_reasons(found.rows)]),
                (SETTINGS, [Code(settings)]),
                ("How it was measured", [Note(_HOW)]),
            ],
        )
    )


def _chart(found: Tuned) -> Iterator[Block]:
    """Yield a chart of the samples/s in the rounds of the last comparison."""
    before, after = found.turns
    if len(before) < 2:
        return
    points = [[(float(n), 1 / seconds) for n, seconds in enumerate(turns, 1)] for turns in (before, after)]
    series = [Series("as they were", "b", points[0]), Series("tuned", "a", points[1])]
    yield Markup(line_chart("samples/s by round of the last comparison", series))


def _table(rows: Sequence[Result]) -> Table:
    return Table("tried", "", _COLUMNS, [_cells(row) for row in rows if row.outcome != "not tried"])


def _reasons(rows: Sequence[Result]) -> Iterator[Block]:
    message = [f"{row.name}: {row.reason}" for row in rows if row.reason and row.outcome != "not tried"]
    yield from map(Note, [*message, *_not_tried(rows)])


def _cells(row: Result) -> tuple[str, ...]:
    before, after = row.speeds or (None, None)
    outcome: str = row.outcome
    if row.reason and row.outcome in ("failed", "too large", "undecided", "given up"):
        outcome = f"{row.outcome}: {_first(row.reason)}"
    return (
        row.name,
        *("–" if value is None else speed(value) for value in (after, before)),
        "–" if row.comparison is None else interval(row.comparison),
        _memory(row),
        outcome,
    )


def _not_tried(rows: Sequence[Result]) -> Iterator[str]:
    """Yield the remedies not tried, by reason."""
    reasons = {row.reason: None for row in rows if row.outcome == "not tried"}
    for reason in reasons:
        names = ", ".join(row.name for row in rows if row.outcome == "not tried" and row.reason == reason)
        yield f"not tried: {names} ({reason})"


def _first(reason: str) -> str:
    """Return the part of a reason that fits into a table."""
    line = reason.strip().splitlines()[0]
    return line if len(line) <= 90 else f"{line[:89]}…"


def _memory(row: Result) -> str:
    if not row.host_bytes:
        return "–"
    device = f", {size_text(row.device_bytes)} device" if row.device_bytes else ""
    return f"{size_text(row.host_bytes)}{device}"


def _typed(settings: Mapping[str, Json]) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items())
