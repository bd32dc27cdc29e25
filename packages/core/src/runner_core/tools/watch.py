"""The page that follows runs while they train: it reads what their logs grew by, and writes nothing."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

from runner_core.base.calling import runner
from runner_core.base.errors import BadInput
from runner_core.base.files import refuse_special_file
from runner_core.base.location import shell_word
from runner_core.base.text import counted, duration
from runner_core.output.display import speed
from runner_core.output.progress import Progress, progress
from runner_core.output.report import INTERRUPTED, render, status_of
from runner_core.output.report.charts import Series, line_chart
from runner_core.output.report.page import Block, Markup, Note, Page, html, is_number, number
from runner_core.output.runfolder import RunFolder, malformed

RELOAD = 5
"""Seconds between two looks of an open page."""
_CARDS = 12
"""Runs shown with curves; the others, which ended, are in a table."""
_TABLE = 200
_FINDINGS = 3
"""Health findings in a card."""
_PIECE = 1 << 24
"""Most bytes of a log that are read at once."""

Event = dict[str, Any]


class Followed:
    """A run whose log is read as it grows; it keeps the curves, and the events that say how far the run is."""

    def __init__(self, path: Path) -> None:
        self.folder = RunFolder(path)
        self._page: tuple[object, str] | None = None
        self._forget()

    def _forget(self) -> None:
        self._file, self._offset = 0, 0
        self._events: dict[str, Event] = {}
        self.findings: dict[str, Event] = {}
        """The newest warning or error of each health rule."""
        self.curves: dict[str, dict[str, list[tuple[float, float]]]] = {}

    def update(self) -> None:
        """Read what the log grew by. A resumed run replaces its log by a shorter one, which is read anew."""
        try:
            with refuse_special_file(self.folder.jsonl).open("rb") as file:
                seen = os.fstat(file.fileno())
                if seen.st_ino != self._file or seen.st_size < self._offset:
                    self._forget()
                    self._file = seen.st_ino
                file.seek(self._offset)
                while data := file.read(_PIECE):
                    whole = data[: data.rfind(b"\n") + 1]  # the last line may be half written
                    if not whole:
                        break
                    self._offset += len(whole)
                    file.seek(self._offset)
                    for line in whole.splitlines():
                        self._add(line)
        except (OSError, BadInput):  # it is not there yet, or `progress` says what it is
            self._forget()

    def _add(self, line: bytes) -> None:
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            return
        if not isinstance(event, dict) or malformed(event):
            return
        kind = event["event"]
        if kind == "health" and event.get("level") in ("warning", "error"):
            self.findings[str(event.get("rule"))] = event
        self._events["best" if kind == "validation" and event.get("best") else kind] = event
        self._events["last"] = event
        if kind in ("train", "validation"):
            for name, value in event.items():
                if name not in ("step", "epoch") and is_number(value):
                    line_of = self.curves.setdefault(name, {}).setdefault(kind, [])
                    line_of.append((float(event["step"]), float(value)))

    @property
    def progress(self) -> Progress:
        """Say how far the run is. Raises BadInput for a damaged summary.json, or a pipe in the place of a file."""
        refuse_special_file(self.folder.jsonl)
        kept = [self._events[name] for name in ("start", "best", "end", "last") if name in self._events]
        return progress(self.folder, kept)

    @property
    def written(self) -> float:
        """The time of its newest line; of a run without a log, of its settings."""
        for path in (self.folder.jsonl, self.folder.config_file):
            with suppress(OSError):
                return path.stat().st_mtime
        return 0.0

    @property
    def timing(self) -> Mapping[str, Any]:
        """The timing in the last line of the training."""
        return self._events.get("train", {}).get("timing") or {}

    def report(self) -> str:
        """Return the run's report, made anew if its files changed."""
        state = (self.written, self._offset, self.folder.summary_file.exists())
        if self._page is None or self._page[0] != state:
            try:
                self._page = (state, render(self.folder))
            except (BadInput, OSError):
                raise
            except Exception as error:  # as in `_state`
                raise BadInput(_damaged(self.folder.path, error)) from error
        return self._page[1]


class Watch:
    """The runs in some folders, each a run or a folder of runs. One request at a time may look at them.

    Raises BadInput for a folder without any run.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders
        self._lock = threading.Lock()
        self._runs: dict[Path, Followed] = {}
        self._numbers: list[Path] = []
        self._looked = 0.0
        for folder in folders:
            if not folder.exists():
                raise BadInput(f"{folder}: there is no such folder; name a run, or a folder of runs")
            if not any(_runs_in(folder)):
                text = "is not a run folder of runner, and there is none in it"
                raise BadInput(f"{folder} {text}; `{runner()} PROJECT train` makes one in runs/PROJECT")

    def page(self) -> str:
        """Return the page of all runs."""
        with self._lock:
            return html(_page(self._update()))

    def report(self, run: int) -> str | None:
        """Return the report of the run with this number, None if there is no such run."""
        with self._lock:
            self._update()
            return self._runs[self._numbers[run]].report() if 0 <= run < len(self._numbers) else None

    def _update(self) -> list[tuple[int, Followed]]:
        """Return the runs that are there now, those that run first, the newest first, with their numbers."""
        if time.monotonic() - self._looked > 1:  # several open pages cost no more than one
            found = [path for folder in self._folders for path in _runs_in(folder)]
            for path in found:
                if path not in self._runs:
                    self._runs[path] = Followed(path)
                    self._numbers.append(path)
            for path in found:
                self._runs[path].update()
            self._there = dict.fromkeys(found)
            self._looked = time.monotonic()
        numbered = [(number, self._runs[path]) for number, path in enumerate(self._numbers) if path in self._there]
        return sorted(numbered, key=lambda each: -each[1].written)


def _runs_in(folder: Path) -> Iterator[Path]:
    """Yield the folder itself if it is a run, or else the runs in it and in its folders."""
    for pattern in ("config.yaml", "*/config.yaml", "*/*/config.yaml", "*/*/*/config.yaml"):
        found = [path.parent for path in folder.glob(pattern) if (path.parent / "checkpoints").is_dir()]
        yield from sorted(found)
        if found and pattern == "config.yaml":
            return


# ---------------------------------------------------------------- the page


def _page(runs: Sequence[tuple[int, Followed]]) -> Page:
    shown = [(number, run, _state(run)) for number, run in runs]
    shown.sort(key=lambda each: not (isinstance(each[2], Progress) and each[2].runs))  # stable: the newest first
    running = sum(isinstance(state, Progress) and state.runs for _, _, state in shown)
    about = f"{counted(running, 'run')} training, {len(runs) - running} ended. The page follows them; new ones appear."
    cards = [
        (f"{run.folder.path.absolute().parent.name} / {run.folder.path.name}", _whole_card(number, run, state))
        for number, run, state in shown[:_CARDS]
    ]
    return Page(
        f"runner watch · {running} running", "Runs", [Note(about)], [*cards, *_others(shown[_CARDS:])], reload=RELOAD
    )


def _state(run: Followed) -> Progress | str:
    """Return how far a run is, or what is wrong with its files."""
    try:
        return run.progress
    except BadInput as error:
        return str(error)
    except Exception as error:  # a stranger's files may hold anything: only their own card says so
        return _damaged(run.folder.path, error)


def _damaged(folder: Path, error: Exception) -> str:
    """Return what to say of a run whose files cannot be shown."""
    return f"{folder}: its files hold what the runner does not write ({type(error).__name__}: {error})"


def _whole_card(number: int, run: Followed, state: Progress | str) -> list[Block]:
    try:
        return [*_card(number, run, state)]
    except Exception as error:  # as in `_state`
        return [Note(_damaged(run.folder.path, error), "error")]


def _card(number: int, run: Followed, state: Progress | str) -> Iterator[Block]:
    """Yield a run's state, its numbers, its main curves, and the link to its report."""
    if isinstance(state, str):
        yield Note(state, "error")
        return
    kind, text = map(escape, status_of(state))
    share = f'<progress value="{state.step}" max="{state.steps}"></progress> ' if state.steps and state.runs else ""
    steps = f"step {state.step:,}" + (f" of {state.steps:,}" if state.steps else "")
    yield Markup(
        f'<p class="live"><span class="status {kind}">{text}</span> {share}<b>{steps}</b> · '
        f'<a href="run/{number}">report with pictures</a></p>'
    )
    yield Note(" · ".join(_numbers(run, state)))
    yield from _remarks(run, state)
    yield Markup(f"<p><code>{escape(shell_word(run.folder.path))}</code></p>")
    names = ["loss", *([state.monitor[0]] if state.monitor else ())]
    charts = [_chart(run, name, state) for name in dict.fromkeys(names) if name in run.curves]
    if charts:
        yield Markup(f'<div class="charts">{"".join(charts)}</div>')


def _numbers(run: Followed, state: Progress) -> Iterator[str]:
    """Yield the best value of the monitor, the speed, the time left, and when the log last grew."""
    metrics = state.summary.get("metrics") or {}
    if state.monitor and state.monitor[0] in metrics:
        name = state.monitor[0]
        yield f"best {name} {state.arrow(name)} {number(metrics[name])} at step {state.summary.get('best_step')}"
    rate = run.timing.get("samples_per_second")
    if rate is not None and is_number(rate):
        yield f"{speed(rate)} samples/s"
    if state.runs and state.steps and (left := _left(run, state)) is not None:
        yield f"about {duration(left)} of training left"
    yield f"last line {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(run.written))}"


def _left(run: Followed, state: Progress) -> float | None:
    """Return the seconds to the last step at the pace of the last lines of the training."""
    steps = [0.0, *(step for step, _ in run.curves.get("loss", {}).get("train", ()))][-2:]
    seconds = run.timing.get("seconds")
    if len(steps) < 2 or seconds is None or not is_number(seconds) or state.steps is None:
        return None
    taken = next(b - a for a, b in pairwise(steps))
    return float(seconds) / max(1.0, taken) * (state.steps - state.step)


def _remarks(run: Followed, state: Progress) -> Iterator[Note]:
    """Yield why the run ended without a result, and what health rules warn of."""
    kind = "error" if state.status in ("failed", "unhealthy") else "warning"
    if state.status == "interrupted":
        yield Note(INTERRUPTED, kind)
    reason = str(state.summary.get("reason") or "")
    if reason:
        yield Note(reason, kind)
    findings = [f for f in run.findings.values() if str(f.get("message")) not in reason]
    for finding in findings[-_FINDINGS:]:
        level, message = str(finding["level"]), f"{finding.get('message')} (step {finding['step']})"
        yield Note(message, level, f"{level}: {finding.get('rule')}")
    if len(findings) > _FINDINGS:
        yield Note(f"{len(findings) - _FINDINGS} more in the report")


def _chart(run: Followed, name: str, state: Progress) -> str:
    kinds = {"train": ("training", "a"), "validation": ("validation", "b")}
    lines = [Series(*kinds[kind], points) for kind, points in run.curves[name].items()]
    return line_chart(name, lines, state.summary.get("best_step"), better=state.arrow(name))


def _others(rest: Sequence[tuple[int, Followed, Progress | str]]) -> list[tuple[str, list[Block]]]:
    """Return the section with the table of the runs that have no card, if there are any."""
    rows = "".join(
        f'<tr><th><a href="run/{number}">{escape(str(run.folder.path))}</a></th>'
        f"<td>{escape(state if isinstance(state, str) else status_of(state)[1])}</td></tr>"
        for number, run, state in rest[:_TABLE]
    )
    table = Markup(f'<div class="wide"><table class="plain">{rows}</table></div>')
    more = [Note(f"… {len(rest) - _TABLE} more")] if len(rest) > _TABLE else []
    return [("Earlier runs", [table, *more])] if rows else []
