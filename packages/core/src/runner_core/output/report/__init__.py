"""A run's report.html: one file with curves, pictures, scores, settings and versions; it needs no network.

Everything comes from the run folder, so that the report can be rewritten at any time, also while the run goes on
(`output/live.py`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from runner_core.base.files import refuse_special_file
from runner_core.base.text import counted, duration
from runner_core.base.writing import replace_text
from runner_core.contract.records import Table
from runner_core.data.stream.bad import FILE as BAD_FILE
from runner_core.output.display import speed
from runner_core.output.evaluations import UNSEEN, described, listed, title, trained_on_text
from runner_core.output.progress import Progress, now, progress
from runner_core.output.report.calibration import calibration
from runner_core.output.report.charts import Series, line_chart, share_bar
from runner_core.output.report.page import Block, Code, Markup, Note, Page, html, is_number, number
from runner_core.output.report.sections import Drawn, memory, pictures, series, snapshots, streaming
from runner_core.output.runfolder import RunFolder

_ROWS = 30
_TILES = 6
"""Most tiles in a row."""
_RELOAD = 20
"""Seconds after which the page of a running training loads itself again."""
INTERRUPTED = (
    "The process of this run is gone, and it wrote no summary: it was killed, or the machine went down. "
    "`--resume` continues from the newest checkpoint, or begins again if there is none."
)
_NOT_CURVES = (
    *("event", "step", "epoch", "timing", "best", "precision_seen"),
    *("gradient_norm", "learning_rate", "learning_rate_lowest"),
)

Event = Mapping[str, Any]


def write_report(run: RunFolder) -> Path:
    """Write report.html into the run folder, whole or not at all, and return its path."""
    replace_text(run.report_file, render(run))
    return run.report_file


def render(run: RunFolder) -> str:
    """Return the page as HTML text."""
    events = run.checked_events()
    found = progress(run, events)
    summary = found.summary
    config = refuse_special_file(run.config_file).read_text(encoding="utf-8")
    project = summary.get("project") or run.path.absolute().parent.name
    drawn = series(events, run.figures)
    return html(
        Page(
            f"{project} · {run.path.name}",
            project,
            [*_about(found, run)],
            [
                ("", [_tiles(found)]),
                ("Health", [*_health(events, summary)]),
                ("Curves", [*_curves(events, found)]),
                ("Losses", [*_losses(events)]),
                ("Whole-record scores", [*score_blocks(run.path)]),
                ("Pictures", [*pictures(run.figures, drawn)]),
                ("Pictures during training", [*snapshots(drawn)]),
                *evaluations(run.path, drawn),
                ("Where the time went", [*_timing(events)]),
                ("Memory", [*memory(summary.get("memory_plan") or {}, summary.get("peak_memory_bytes"))]),
                ("Streaming", [*streaming(events, run.path / BAD_FILE)]),
                ("Settings", [Code(config, "config.yaml")]),
                ("Versions", [*_versions(summary)]),
            ],
            status_of(found),
            reload=_RELOAD if found.runs else None,
        )
    )


def status_of(found: Progress) -> tuple[str, str]:
    """Return the class and the text of the mark beside the heading."""
    warnings = _warnings(found.summary) if found.status == "done" else 0
    return ("warned", f"done, {counted(warnings, 'warning')}") if warnings else (found.status, found.status)


def _about(found: Progress, run: RunFolder) -> Iterator[Block]:
    summary = found.summary
    data = summary.get("data", "?")
    data = "the generated phantom" if data == "phantom" else data
    yield Markup(
        f"<p>preset {escape(str(summary.get('preset', '?')))} · data: {escape(str(data))} · "
        f"<code>{escape(str(run.path))}</code></p>"
    )
    yield from map(Note, _when(found))
    if summary.get("command"):
        yield Markup(f"<p>command: <code>{escape(str(summary['command']))}</code></p>")
    if found.runs:
        yield _so_far(found)
    elif found.status == "interrupted":
        yield Note(INTERRUPTED, "warning")
    yield from _validated(summary)
    if summary.get("reason"):
        yield Markup(f'<p class="reason">{escape(str(summary["reason"]))}</p>')


def _when(found: Progress) -> Iterator[str]:
    """Yield when and where the run was started and continued, and when it ended."""
    ended = found.summary.get("ended")
    lines = [f"{start.get('time')} on {start.get('host')}" for start in found.starts]
    if lines:
        again = f" · last resumed {lines[-1]}" if len(lines) > 1 else ""
        yield f"started {lines[0]}{again}{f' · ended {ended}' if ended else ''}"


def _so_far(found: Progress) -> Block:
    """Return a bar of the steps done, and when the page was written."""
    share = f'<progress value="{found.step}" max="{found.steps}"></progress> ' if found.steps else ""
    whole = f" of {found.steps:,}" if found.steps else ""
    doing = "Training is over; whole records are being scored." if found.status == "scoring" else ""
    button = '<button type="button" id="reload">Reload now</button>'
    return Markup(
        f'<p class="live">{share}<b>step {found.step:,}{whole}</b> {doing}</p><p>Written at {now()}; again at the next '
        f"validation. This page reloads itself. {button}</p>"
    )


def _validated(summary: Event) -> Iterator[Block]:
    """Yield the share of the records that validated, or a warning if none did."""
    split = summary.get("split")
    if not split:
        return
    found = split.get("validation")
    if not found:
        yield Note("Nothing validated: no metric chose the checkpoint, it is the last one.", "warning")
        return
    used = f"{found['used']:,} of " if found["used"] < found["records"] else ""
    noun = counted(found["records"], "validation record")
    yield Note(f"{used}{noun} ({found['share']:.0%} of all, from {counted(found['groups'], 'group')})")


def _warnings(summary: Event) -> int:
    """Return the number of problems that a user should read before using the result."""
    findings = [f for f in summary.get("health") or () if f["level"] != "note"]
    more = (*(summary.get("scoring_errors") or ()), *(summary.get("unwritten") or ()))
    return len(findings) + len(more) + bool(summary.get("unsaved"))


def _tiles(found: Progress) -> Block:
    summary = found.summary
    tiles = [*_score_tiles(found)]
    if "steps" in summary:
        number, noun = counted(summary["epochs"], "epoch").split()
        tiles.append((number, f"{noun} ({counted(summary['steps'], 'step')})", ""))
    elif found.step:
        tiles.append((f"{found.step:,}", "steps so far", ""))
    if "wall_seconds" in summary:
        tiles.append((duration(summary["wall_seconds"]), "wall time", ""))
    if summary.get("samples_per_second"):
        wait = f"{summary.get('data_wait_share') or 0:.1%} waiting for data"
        tiles.append((speed(summary["samples_per_second"]), "samples/s", wait))
    memory = summary.get("peak_memory_bytes") or {}
    if memory.get("host"):
        device = f"device {memory['device'] / 1e9:.2f} GB" if memory.get("device") else ""
        tiles.append((f"{memory['host'] / 1e9:.2f} GB", "peak host memory", device))
    if energy := summary.get("energy"):
        known = "estimated" if any("estimated" in how for how in energy["how"].values()) else "measured"
        cost = f", cost {energy['cost']:.2f}" if "cost" in energy else ""
        tiles.append((f"{energy['kwh']:.3g} kWh", "energy", f"{known}{cost}"))
    row = math.ceil(len(tiles) / max(1, math.ceil(len(tiles) / _TILES)))  # rows of equal length
    return Markup(f'<div class="tiles" style="--row: {row}">{"".join(_tile(*tile) for tile in tiles)}</div>')


def _score_tiles(found: Progress) -> Iterator[tuple[str, str, str]]:
    summary, first = found.summary, found.monitor and found.monitor[0]
    scores = summary.get("scores") or {}
    others = {"trivial baseline": summary.get("baseline") or {}, **(summary.get("further") or {})}
    for name, value in [*scores.items()][:3]:
        beside = ", ".join(f"{method} {number(values[name])}" for method, values in others.items() if name in values)
        yield number(value), f"{name}, whole records", beside
    if not scores:
        metrics = sorted((summary.get("metrics") or {}).items(), key=lambda item: item[0] != first)
        for name, value in metrics[:3]:
            yield number(value), f"{name} {found.arrow(name)}, best validation", ""


def _tile(value: str, label: str, detail: str) -> str:
    small = f"<small>{escape(detail)}</small>" if detail else ""
    return f'<div class="tile"><b>{escape(value)}</b><span>{escape(label)}</span>{small}</div>'


def _health(events: Iterable[Event], summary: Event) -> Iterator[Block]:
    findings = {(e["level"], e["rule"], e["message"]): e.get("step") for e in events if e.get("event") == "health"}
    for finding in summary.get("health") or ():
        findings.setdefault((finding["level"], finding["rule"], finding["message"]), None)
    problems = [("not scored", error) for error in summary.get("scoring_errors") or ()]
    problems += [("not written", path) for path in summary.get("unwritten") or ()]
    problems += [("the end is not saved", summary["unsaved"])] if summary.get("unsaved") else []
    if not findings and not problems and "status" in summary:
        yield Note("No finding: no health rule reported anything.", "good")
    for (level, rule, message), step in findings.items():
        yield Note(f"{message}{'' if step is None else f' (step {step})'}", level, f"{level}: {rule}")
    yield from (Note(why, "warning", what) for what, why in problems[:_ROWS])
    if len(problems) > _ROWS:
        yield Note(f"… {len(problems) - _ROWS} more in summary.json")


def _curves(events: list[dict[str, Any]], found: Progress) -> Iterator[Block]:
    """Yield a chart for each number, with training and validation together if both have it."""
    train = [e for e in events if e.get("event") == "train"]
    validation = [e for e in events if e.get("event") == "validation"]
    names = [n for e in (*train[:1], *validation[:1]) for n in e if n not in _NOT_CURVES]
    charts, best = [], found.summary.get("best_step")
    for name in [*dict.fromkeys(names), "learning_rate", "gradient_norm"]:
        series = [Series("training", "a", _points(train, name)), Series("validation", "b", _points(validation, name))]
        series = [s for s in series if s.points]
        if series:
            charts.append(line_chart(name, series, best, name != "learning_rate", found.arrow(name)))
    if charts:
        yield Markup(f'<div class="charts">{"".join(charts)}</div>')
    if charts and best is not None:
        yield Note(f"Dashed: step {best:,}, of the best checkpoint.")


def _points(events: Iterable[Event], name: str) -> list[tuple[float, float]]:
    return [(float(e["step"]), float(e[name])) for e in events if is_number(e.get(name))]


def _losses(events: Iterable[Event]) -> Iterator[Block]:
    """Yield the gradient norm of each loss term, as last measured."""
    last = next((e for e in reversed(list(events)) if e.get("event") == "losses"), None)
    if last is None:
        return
    title, rows = f"Measured last, up to step {last['step']:,}", list(last["gradient_norm"].items())
    yield Table("losses", title, ("loss", "gradient norm"), rows)
    yield Note("The norm is of the loss's gradient, without its weight, with respect to the network's output.")


def score_blocks(folder: Path) -> Iterator[Block]:
    """Yield the content of a folder's scores.json: records (worst first), tables, remarks and errors."""
    content = _read_json(folder / "scores.json")
    rows = content.get("records") or []
    remarks = [(f["level"], row["record"], f["message"]) for row in rows for f in row.get("remarks") or ()]
    remarks += [("warning", "not scored", error) for error in content.get("errors") or ()]
    seen = trained_on_text([bool(row.get("trained_on")) for row in rows])
    if seen:
        yield Note(seen, "warning")
    if rows:
        yield from _scoretable(content, rows)
    yield from (Table(**found) for found in content.get("tables") or ())
    yield from calibration(content.get("calibration") or {})
    yield from (Note(text, level, key) for level, key, text in remarks[:_ROWS])
    if len(remarks) > _ROWS:
        yield Note(f"… {len(remarks) - _ROWS} more in scores.json")


def evaluations(folder: Path, drawn: Drawn | None = None) -> Iterator[tuple[str, list[Block]]]:
    """Yield a section for each evaluation in the folder of a run or an experiment.

    It has the data and settings, the scores, and its own pictures: those that are not among `drawn` in training.
    """
    for place, found in listed(folder):
        lines = map(Note, described(place, found))
        yield title(place, found), [*lines, *score_blocks(place), *pictures(place, drawn or {})]


def _scoretable(content: Event, rows: Sequence[Event]) -> Iterator[Block]:
    """Yield the scores of records, if they have their own, and of the whole set, by the network and other methods."""
    rows = rows if any(row["scores"] for row in rows) else []
    names = content.get("shown") or list(dict.fromkeys(n for row in rows for n in row["scores"]))
    if not names:
        return
    seen = any(row.get("trained_on") for row in rows)
    body = [
        _row(row["record"], row["scores"], names, more=_yes(row.get("trained_on")) if seen else "")
        for row in rows[:_ROWS]
    ]
    means = _row("whole set", content.get("means") or {}, names, "mean")
    unseen = content.get("unseen") or {}
    others = {
        "trivial baseline": content.get("baseline"),
        UNSEEN: unseen.get("means"),
        f"{UNSEEN}: baseline": unseen.get("baseline"),
        **(content.get("further") or {}),
    }
    beside = "".join(_row(method, values, names, "baseline") for method, values in others.items() if values)
    head = "".join(f"<th>{escape(n)}</th>" for n in names) + ("<th>trained on</th>" if seen else "")
    if rows:
        yield Note("Worst first.")
    yield Markup(
        f'<div class="wide"><table><thead><tr><th>{"record" if rows else ""}</th>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody><tfoot>{means}{beside}</tfoot></table></div>"
    )
    if len(rows) > _ROWS:
        yield Note(f"… {len(rows) - _ROWS} more in scores.csv")


def _yes(value: Any) -> str:
    return f"<td>{'yes' if value else 'no'}</td>"


def _row(title: str, values: Mapping[str, Any], names: Iterable[str], kind: str = "", more: str = "") -> str:
    cells = "".join(f"<td>{number(values.get(n))}</td>" for n in names) + more
    return f'<tr class="{kind}"><th>{escape(title)}</th>{cells}</tr>'


def _timing(events: Iterable[Event]) -> Iterator[Block]:
    timings = [e["timing"] for e in events if e.get("event") == "train" and e.get("timing")]
    labels = {"compute": "compute", "data_wait": "waiting for data", "other": "other"}
    seconds = {text: sum(t.get(name) or 0.0 for t in timings) for name, text in labels.items()}
    if sum(seconds.values()) > 0:
        yield Markup(share_bar(seconds))
        yield Note("Training steps only; validation, checkpoints and the cache are not in it.")


def _versions(summary: Event) -> Iterator[Block]:
    found = dict(summary.get("versions") or {})
    plugins = found.pop("plugins", {}) or {}
    rows = [*found.items(), *((f"plugin: {name}", version) for name, version in plugins.items())]
    body = "".join(f"<tr><th>{escape(str(n))}</th><td>{escape(str(v))}</td></tr>" for n, v in rows)
    if rows:
        yield Markup(f'<table class="plain">{body}</table>')


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(refuse_special_file(path).read_text(encoding="utf-8")))
    except (OSError, ValueError):  # no such file, a link to itself, no JSON: it is left out
        return {}
