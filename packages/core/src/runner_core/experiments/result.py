"""The result of an experiment: pooled scores with intervals, on screen, as summary.json, scores.csv and report.html."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any

from runner_core.base.calling import runner
from runner_core.base.errors import BadInput
from runner_core.base.files import read_json
from runner_core.base.location import shell_word
from runner_core.base.text import counted, decimal, duration
from runner_core.base.writing import replace_json, replace_text
from runner_core.contract.facets import Judging
from runner_core.contract.records import Table
from runner_core.contract.setup import Setup
from runner_core.experiments.pooled import Pooled, pool
from runner_core.output.experiments import ExperimentFolder, Member
from runner_core.output.pictures import file_name
from runner_core.output.progress import progress
from runner_core.output.report import evaluations, score_blocks
from runner_core.output.report.charts import Series, line_chart, line_class
from runner_core.output.report.page import Block, Markup, Note, Page, decimal_or_dash, html, is_number, lines
from runner_core.tools.uncertainty import group_interval, mean
from runner_core.training.evaluation import Scores, over_set, read_scores, write_scores
from runner_core.training.scoring import Row

SUMMARY_FILE = "summary.json"
_FEW_GROUPS = 5
_ADDED = "table-"
"""Start of the names of files with further tables."""
_KEYS = {"kind", "preset", "data", "about", "status", "done", "records", "groups", "scores", "baseline", "members"}
"""What the page needs of summary.json."""
Say = Callable[[str], None]


def conclude(
    experiment: ExperimentFolder, setup: Setup, say: Say, groups: Mapping[str, str] | None = None
) -> Mapping[str, Any]:
    """Pool the scores of the members that are done, write and say the result, and return summary.json.

    While members are missing, the result is that of the others, and says so. `groups` (by record key) replace the
    records' own groups: intervals are for new ones of these.
    """
    pooled = pool(experiment, setup.project, groups or {})
    summary = _summary(experiment, setup, pooled)
    if pooled.scores.rows:
        write_scores(pooled.scores, experiment.path)
    replace_json(experiment.path / SUMMARY_FILE, summary)
    page = write_page(experiment)
    for table in _tables(experiment, summary):
        say("")
        say(table.title)
        for line in lines([table]):
            say(line)
    for note in _notes(summary, pooled):
        say(f"NOTE: {note}")
    say(f"report: {page}")
    return summary


def write_page(experiment: ExperimentFolder) -> Path:
    """Write report.html from the experiment's folder alone, whole or not at all, and return its path.

    Raises BadInput for a sweep, or if there is no summary.json yet.
    """
    again = f"`{runner()} {experiment.project} {experiment.kind} --resume {shell_word(experiment.path)}` writes it"
    if experiment.kind == "sweep":
        raise BadInput(f"{experiment.path} is a sweep, whose report is not written by itself: {again} again at its end")

    def read(found: Any) -> dict[str, Any] | None:
        return dict(found) if found.keys() >= _KEYS else None

    summary = read_json(experiment.path / SUMMARY_FILE, read, f"{again} again")
    if summary is None:
        raise BadInput(f"{experiment.path} has no {SUMMARY_FILE} yet: {again} when all runs are done")
    page = experiment.path / "report.html"
    replace_text(page, _page(experiment, summary))
    return page


def _summary(experiment: ExperimentFolder, setup: Setup, pooled: Pooled) -> dict[str, Any]:
    members = [_state(experiment, member, pooled) for member in experiment.members]
    done = sum(member["status"] == "done" for member in members)
    return {
        "kind": experiment.kind,
        "project": experiment.project,
        "preset": setup.preset,
        "data": "phantom" if setup.source is None else str(setup.source),
        "about": dict(experiment.about),
        "status": "done" if done == len(members) else "unfinished",
        "done": done,
        "records": len(pooled.scores.rows),
        "groups": len({row.record.group for row in pooled.scores.rows}),
        "scores": intervals(pooled.scores, setup.project.judging()),
        "baseline": pooled.scores.baseline,
        "errors": pooled.scores.errors,
        "members": members,
    }


def _state(experiment: ExperimentFolder, member: Member, pooled: Pooled) -> dict[str, Any]:
    summary = experiment.summary(member)
    status = summary.get("status") or "not begun"
    if status == "done" and not experiment.done(member):
        status = "not scored"
    return {
        "name": member.name,
        "fold": member.fold,
        "seed": member.seed,
        "status": status,
        "reason": summary.get("reason"),
        "scores": dict(pooled.members.get(member.name, {})),
        "wall_seconds": summary.get("wall_seconds"),
        "warnings": sum(finding.get("level") != "note" for finding in summary.get("health") or ()),
    }


def intervals(scores: Scores, judging: Judging) -> dict[str, dict[str, float | None]]:
    """Return each score of the set with the ends of its 95 % interval, None where there is none.

    A score that is not the mean of the records' scores has jackknife pseudo-values of the groups in their place (Efron
    and Tibshirani 1993, chapter 11).
    """
    groups = sorted({row.record.group for row in scores.rows})
    without = [over_set(judging, [r.scores for r in scores.rows if r.record.group != group]) for group in groups]
    return {name: _interval(name, value, scores.rows, without) for name, value in scores.means.items()}


def _interval(
    name: str, value: float, rows: Sequence[Row], without: Sequence[Mapping[str, float]]
) -> dict[str, float | None]:
    """Return a score of the set and its interval; `without` has the set's scores without each group."""
    known = [row for row in rows if math.isfinite(row.scores.get(name, math.nan))]
    low = high = math.nan
    if known:
        found = mean([row.scores[name] for row in known], [row.record.group for row in known])
        if math.isclose(found.value, value, rel_tol=1e-9):
            low, high = (value + end - found.value for end in found.interval())
        else:
            low, high = group_interval(value, [scores.get(name, math.nan) for scores in without])
    return {"mean": value, **{end: v if math.isfinite(v) else None for end, v in (("low", low), ("high", high))}}


def _tables(experiment: ExperimentFolder, summary: Mapping[str, Any]) -> Iterator[Table]:
    scores, baseline = summary["scores"], summary["baseline"]
    names = read_scores(experiment.path).get("shown") if summary["records"] else None
    shown = [name for name in names or scores if name in scores]
    if shown:
        what = "out-of-fold scores" if experiment.kind == "crossval" else "validation scores"
        of = f"{counted(summary['records'], 'record')} of {counted(summary['groups'], 'group')}"
        yield Table(
            "scores",
            f"{what}: {of}" if summary["records"] else what,
            ("score", "mean", "95 % interval", *(["baseline"] if baseline else [])),
            [_score_row(name, scores[name], baseline) for name in shown],
        )
    yield Table(
        "members",
        "runs",
        ("run", "state", *shown, "time"),
        [
            (
                member["name"],
                member["status"] + (f", {counted(member['warnings'], 'warning')}" if member["warnings"] else ""),
                *(decimal_or_dash(member["scores"].get(name)) for name in shown),
                duration(member["wall_seconds"]) if member["wall_seconds"] else "–",
            )
            for member in summary["members"]
        ],
    )


def _score_row(name: str, found: Mapping[str, Any], baseline: Mapping[str, float]) -> Sequence[str]:
    ends = "–" if found["low"] is None else f"{decimal(found['low'])} to {decimal(found['high'])}"
    return (name, decimal_or_dash(found["mean"]), ends, *([decimal_or_dash(baseline.get(name))] if baseline else []))


def _notes(summary: Mapping[str, Any], pooled: Pooled) -> Iterator[str]:
    left = len(summary["members"]) - summary["done"]
    if left:
        runs = counted(len(summary["members"]), "run")
        yield f"{left} of {runs} are not done; the scores above are those of the others"
    if pooled.scores.rows and summary["groups"] < 2:
        yield "all records are of one group: nothing can be said of other groups, so there is no interval"
    elif summary["records"]:
        if summary["groups"] < _FEW_GROUPS:
            groups = counted(summary["groups"], "group")
            yield f"only {groups}: the intervals are wide and rough, and may contain values that no score can have"
        yield "the intervals are for new groups like these (bootstrap over groups), with networks trained like these"
    few = set(pooled.counts)
    if len(few) > 1:
        yield f"some records were scored by {min(few)}, others by {max(few)} of the runs"
    for name in pooled.scores.shown_names:
        total = sum(pooled.counts)
        if (count := pooled.undefined.get(name)) == total:
            yield f"{name} is undefined in every score (an empty prediction, for example): it has no mean"
        elif count:
            of = f"{count} of {counted(total, 'score')}"
            yield f"{name} is undefined in {of} (an empty prediction, for example): its mean is over the others"


def _page(experiment: ExperimentFolder, summary: Mapping[str, Any]) -> str:
    about = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in summary["about"].items() if value)
    title = {"crossval": "cross-validation", "repeat": "repetition"}.get(experiment.kind, experiment.kind)
    *scores, runs = _tables(experiment, summary)
    return html(
        Page(
            f"{experiment.project} · {title}",
            f"{experiment.project}: {title}",
            [
                Note(f"Data: {summary['data']}, preset {summary['preset']}; {about}."),
                *map(Note, [str(experiment.path)]),
            ],
            [
                ("Scores", scores),
                ("Runs", [runs, _links(summary["members"])]),
                ("Curves", [*_curves(experiment)]),
                ("Records", [*score_blocks(experiment.path)] if summary["records"] else []),
                *((table.title, [table]) for table in added_tables(experiment)),
                *evaluations(experiment.path),
            ],
            (summary["status"], f"{summary['done']} of {len(summary['members'])} runs done"),
        )
    )


def add_table(experiment: ExperimentFolder, table: Table) -> Path:
    """Put a table into an experiment's report, where it stays when scores are pooled anew; return the report."""
    replace_json(experiment.path / f"{_ADDED}{file_name(table.name)}.json", asdict(table))
    return write_page(experiment)


def added_tables(experiment: ExperimentFolder) -> Iterator[Table]:
    """Yield the tables that were put into an experiment's report."""
    for path in sorted(experiment.path.glob(f"{_ADDED}*.json")):
        remedy = "remove it; the command that wrote it writes it again"
        yield read_json(path, lambda found: Table(**found), remedy) or Table("empty", "", (), ())


def _links(members: Sequence[Mapping[str, Any]]) -> Block:
    """Return links to the reports of the runs that have one."""
    links = (f'<a href="{escape(m["name"])}/report.html">{escape(m["name"])}</a>' for m in members)
    begun = [link for link, m in zip(links, members, strict=True) if m["status"] != "not begun"]
    return Markup(f"<p>Reports: {', '.join(begun)}</p>" if begun else "")


def _curves(experiment: ExperimentFolder) -> Iterator[Block]:
    """Yield the curves of the monitored metric and of the loss, a line for each member."""
    charts = []
    logs = {member.name: experiment.run(member).checked_events() for member in experiment.members}
    found = [progress(experiment.run(member), logs[member.name]).monitor for member in experiment.members]
    for name in dict.fromkeys([*(monitor[0] for monitor in found if monitor), "loss"]):
        series = []
        for number, (member, events) in enumerate(logs.items()):
            points = [
                (float(e["step"]), float(e[name]))
                for e in events
                if e.get("event") == "validation" and is_number(e.get(name))
            ]
            if points:
                series.append(Series(member, line_class(number), points))
        if series:
            charts.append(line_chart(f"{name}, validation", series))
    if charts:
        yield Markup(f'<div class="charts">{"".join(charts)}</div>')
