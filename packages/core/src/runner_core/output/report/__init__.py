"""A run's report.html: one file with curves, pictures, scores, settings and versions; it needs no network.

Everything comes from the run folder, so that the report can be rewritten at any time, also while the run goes on.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from runner_core.base.text import counted
from runner_core.base.writing import replace_text
from runner_core.data.stream.bad import FILE as BAD_FILE
from runner_core.output.display import duration, speed
from runner_core.output.evaluations import described, listed, title, trained_on_text
from runner_core.output.report.charts import Series, line_chart, share_bar
from runner_core.output.report.memory import memory
from runner_core.output.report.page import is_number, number, page, section, table
from runner_core.output.report.pictures import Series as Drawn
from runner_core.output.report.pictures import pictures, series, snapshots
from runner_core.output.report.streaming import streaming
from runner_core.output.runfolder import RunFolder

_ROWS = 30
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
    summary, events = run.read_summary(), run.checked_events()
    config = run.config_file.read_text(encoding="utf-8")
    project = summary.get("project") or run.path.absolute().parent.name
    drawn = series(events, run.figures)
    sections = [
        section("Health", _health(events, summary)),
        section("Curves", _curves(events, summary)),
        section("Losses", _losses(events)),
        section("Whole-record scores", _scores(run.path)),
        section("Pictures", pictures(run.figures, drawn)),
        section("Pictures during training", snapshots(drawn)),
        *(_evaluation(folder, found, drawn) for folder, found in listed(run.path)),
        section("Where the time went", _timing(events)),
        section("Memory", memory(summary.get("memory_plan") or {}, summary.get("peak_memory_bytes"))),
        section("Streaming", streaming(events, run.path / BAD_FILE)),
        section("Settings", f"<details><summary>config.yaml</summary><pre>{escape(config)}</pre></details>"),
        section("Versions", _versions(summary)),
    ]
    body = _header(project, summary, run) + _tiles(summary, events) + "".join(sections)
    return page(f"{project} · {run.path.name}", body)


def _header(project: str, summary: Event, run: RunFolder) -> str:
    status = str(summary.get("status") or "running")
    shown, kind = status, status
    if status == "done" and (warnings := _warnings(summary)):
        shown, kind = f"done, {counted(warnings, 'warning')}", "warned"
    data = summary.get("data", "?")
    data = "the generated phantom" if data == "phantom" else data
    reason = f'<p class="reason">{escape(str(summary["reason"]))}</p>' if summary.get("reason") else ""
    return (
        f'<header><h1>{escape(project)} <span class="status {escape(kind)}">{escape(shown)}</span></h1>'
        f"<p>preset {escape(str(summary.get('preset', '?')))} · data: {escape(str(data))} · "
        f"<code>{escape(str(run.path))}</code></p>{_validated(summary)}{reason}</header>"
    )


def _validated(summary: Event) -> str:
    """Return a paragraph with the share of the records that validated, or a warning if none did."""
    split = summary.get("split")
    if not split:
        return ""
    found = split.get("validation")
    if not found:
        return '<p class="finding warning">Nothing validated: no metric chose the checkpoint, it is the last one.</p>'
    used = f"{found['used']:,} of " if found["used"] < found["records"] else ""
    noun = counted(found["records"], "validation record")
    return f"<p>{used}{noun} ({found['share']:.0%} of all, from {counted(found['groups'], 'group')})</p>"


def _warnings(summary: Event) -> int:
    """Return the number of problems that a user should read before using the result."""
    findings = [f for f in summary.get("health") or () if f["level"] != "note"]
    more = (*(summary.get("scoring_errors") or ()), *(summary.get("unwritten") or ()))
    return len(findings) + len(more) + bool(summary.get("unsaved"))


def _tiles(summary: Event, events: list[dict[str, Any]]) -> str:
    tiles = [*_score_tiles(summary)]
    if "steps" in summary:
        number, noun = counted(summary["epochs"], "epoch").split()
        tiles.append((number, f"{noun} ({counted(summary['steps'], 'step')})", ""))
    elif events:
        tiles.append((f"{events[-1].get('step', 0):,}", "steps so far", ""))
    if "wall_seconds" in summary:
        tiles.append((duration(summary["wall_seconds"]), "wall time", ""))
    if summary.get("samples_per_second"):
        wait = f"{summary.get('data_wait_share') or 0:.1%} waiting for data"
        tiles.append((speed(summary["samples_per_second"]), "samples/s", wait))
    memory = summary.get("peak_memory_bytes") or {}
    if memory.get("host"):
        device = f"device {memory['device'] / 1e9:.2f} GB" if memory.get("device") else ""
        tiles.append((f"{memory['host'] / 1e9:.2f} GB", "peak host memory", device))
    return '<div class="tiles">' + "".join(_tile(*tile) for tile in tiles) + "</div>"


def _score_tiles(summary: Event) -> Iterator[tuple[str, str, str]]:
    scores = summary.get("scores") or {}
    others = {"trivial baseline": summary.get("baseline") or {}, **(summary.get("further") or {})}
    for name, value in [*scores.items()][:3]:
        beside = ", ".join(f"{method} {number(found[name])}" for method, found in others.items() if name in found)
        yield number(value), f"{name}, whole records", beside
    if not scores:
        for name, value in [*(summary.get("metrics") or {}).items()][:3]:
            yield number(value), f"{name}, validation", ""


def _tile(value: str, label: str, detail: str) -> str:
    small = f"<small>{escape(detail)}</small>" if detail else ""
    return f'<div class="tile"><b>{escape(value)}</b><span>{escape(label)}</span>{small}</div>'


def _health(events: Iterable[Event], summary: Event) -> str:
    findings = {(e["level"], e["rule"], e["message"]): e.get("step") for e in events if e.get("event") == "health"}
    for finding in summary.get("health") or ():
        findings.setdefault((finding["level"], finding["rule"], finding["message"]), None)
    problems = [("not scored", error) for error in summary.get("scoring_errors") or ()]
    problems += [("not written", path) for path in summary.get("unwritten") or ()]
    problems += [("the end is not saved", summary["unsaved"])] if summary.get("unsaved") else []
    if not findings and not problems:
        return '<p class="finding good">No finding: no rule had anything to say.</p>' if summary else ""
    shown = [
        f'<p class="finding {escape(level)}"><b>{escape(level)}: {escape(rule)}</b> '
        f"{escape(message)}{'' if step is None else f' (step {step})'}</p>"
        for (level, rule, message), step in findings.items()
    ]
    shown += [f'<p class="finding warning"><b>{what}</b> {escape(why)}</p>' for what, why in problems[:_ROWS]]
    if len(problems) > _ROWS:
        shown.append(f"<p>… {len(problems) - _ROWS} more in summary.json</p>")
    return "".join(shown)


def _curves(events: list[dict[str, Any]], summary: Event) -> str:
    """Return a chart for each number, with training and validation together if both have it."""
    train = [e for e in events if e.get("event") == "train"]
    validation = [e for e in events if e.get("event") == "validation"]
    names = [n for e in (*train[:1], *validation[:1]) for n in e if n not in _NOT_CURVES]
    charts = []
    for name in [*dict.fromkeys(names), "learning_rate", "gradient_norm"]:
        series = [Series("training", "a", _points(train, name)), Series("validation", "b", _points(validation, name))]
        series = [s for s in series if s.points]
        if series:
            charts.append(line_chart(name, series, summary.get("best_step"), log=name != "learning_rate"))
    best = summary.get("best_step")
    dashed = "" if best is None else f"<p>Dashed: step {best:,}, of the best checkpoint.</p>"
    return f'<div class="charts">{"".join(charts)}</div>{dashed}' if charts else ""


def _points(events: Iterable[Event], name: str) -> list[tuple[float, float]]:
    return [(float(e["step"]), float(e[name])) for e in events if is_number(e.get(name))]


def _losses(events: Iterable[Event]) -> str:
    """Return the gradient norm of each loss term, as last measured."""
    last = next((e for e in reversed(list(events)) if e.get("event") == "losses"), None)
    if last is None:
        return ""
    title, rows = f"Measured last, up to step {last['step']:,}", list(last["gradient_norm"].items())
    return table(title, ("loss", "gradient norm"), rows, "losses") + (
        "<p>The norm is of the loss's gradient, without its weight, with respect to the network's output.</p>"
    )


def _scores(folder: Path) -> str:
    """Return the content of a folder's scores.json: records (worst first), tables, remarks and errors."""
    content = _read_json(folder / "scores.json")
    rows = content.get("records") or []
    remarks = [(f["level"], row["record"], f["message"]) for row in rows for f in row.get("remarks") or ()]
    remarks += [("warning", "not scored", error) for error in content.get("errors") or ()]
    seen = trained_on_text([bool(row.get("trained_on")) for row in rows])
    return (
        (f'<p class="finding warning">{escape(seen)}</p>' if seen else "")
        + (_scoretable(content, rows) if rows else "")
        + "".join(table(**found) for found in content.get("tables") or ())
        + "".join(
            f'<p class="finding {escape(level)}"><b>{escape(key)}</b> {escape(text)}</p>'
            for level, key, text in remarks[:_ROWS]
        )
        + (f"<p>… {len(remarks) - _ROWS} more in scores.json</p>" if len(remarks) > _ROWS else "")
    )


def _evaluation(folder: Path, found: Event, drawn: Drawn) -> str:
    """Return an evaluation's section: its data and settings, its scores, and its own pictures."""
    head = "".join(f"<p>{escape(line)}</p>" for line in described(folder, found))
    return section(title(folder, found), head + _scores(folder) + pictures(folder, drawn))


def _scoretable(content: Event, rows: Sequence[Event]) -> str:
    """Return the scores of records, if they have their own, and of the whole set, by the network and other methods."""
    rows = rows if any(row["scores"] for row in rows) else []
    names = content.get("shown") or list(dict.fromkeys(n for row in rows for n in row["scores"]))
    if not names:
        return ""
    seen = any(row.get("trained_on") for row in rows)
    body = [
        _row(row["record"], row["scores"], names, more=_yes(row.get("trained_on")) if seen else "")
        for row in rows[:_ROWS]
    ]
    more = f"<p>… {len(rows) - _ROWS} more in scores.csv</p>" if len(rows) > _ROWS else ""
    means = _row("whole set", content.get("means") or {}, names, "mean")
    others = {"trivial baseline": content.get("baseline"), **(content.get("further") or {})}
    beside = "".join(_row(method, values, names, "baseline") for method, values in others.items() if values)
    head = "".join(f"<th>{escape(n)}</th>" for n in names) + ("<th>trained on</th>" if seen else "")
    first = "<p>Worst first.</p>" if rows else ""
    return (
        f'{first}<div class="wide"><table><thead><tr><th>{"record" if rows else ""}</th>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody><tfoot>{means}{beside}</tfoot></table></div>{more}"
    )


def _yes(value: Any) -> str:
    return f"<td>{'yes' if value else 'no'}</td>"


def _row(title: str, values: Mapping[str, Any], names: Iterable[str], kind: str = "", more: str = "") -> str:
    cells = "".join(f"<td>{number(values.get(n))}</td>" for n in names) + more
    return f'<tr class="{kind}"><th>{escape(title)}</th>{cells}</tr>'


def _timing(events: Iterable[Event]) -> str:
    timings = [e["timing"] for e in events if e.get("event") == "train" and e.get("timing")]
    labels = {"compute": "compute", "data_wait": "waiting for data", "other": "other"}
    seconds = {text: sum(t.get(name) or 0.0 for t in timings) for name, text in labels.items()}
    if sum(seconds.values()) <= 0:
        return ""
    return share_bar(seconds) + "<p>Training steps only; validation, checkpoints and the cache are not in it.</p>"


def _versions(summary: Event) -> str:
    found = dict(summary.get("versions") or {})
    plugins = found.pop("plugins", {}) or {}
    rows = [*found.items(), *((f"plugin: {name}", version) for name, version in plugins.items())]
    body = "".join(f"<tr><th>{escape(str(n))}</th><td>{escape(str(v))}</td></tr>" for n, v in rows)
    return f'<table class="plain">{body}</table>' if rows else ""


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError):
        return {}
