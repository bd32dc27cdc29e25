"""The progress of a run: who started it, when, with which command, and whether it still runs.

starts.jsonl in the run folder has one line for each start: a new run has one, each resume adds one. It says of a
running training what summary.json says of an ended one, and whether that file is of an earlier start.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from runner_core.base.files import refuse_special_file
from runner_core.base.secrets import hold_no_secrets
from runner_core.base.writing import append_line
from runner_core.contract import Json
from runner_core.output.runfolder import RunFolder

RUNNING = ("running", "scoring")
Start = Mapping[str, Any]
Event = dict[str, Any]


def note_start(run: RunFolder, about: Mapping[str, Json]) -> None:
    """Add a line about this start; `about` holds project, preset, data, command and monitor."""
    who = {"time": now(), "host": platform.node(), "pid": os.getpid()}
    append_line(run.starts_file, json.dumps(hold_no_secrets({**who, **about})))


def read_starts(run: RunFolder) -> list[Start]:
    """Return the starts of a run, the oldest first, without torn or edited lines. Raises BadInput for a pipe."""
    found = list[Start]()
    with suppress(OSError):
        for line in refuse_special_file(run.starts_file).read_text(encoding="utf-8", errors="replace").splitlines():
            with suppress(ValueError, RecursionError):
                start = json.loads(line)
                if isinstance(start, dict):
                    found.append(start)
    return found


@dataclass(frozen=True)
class Progress:
    """The progress of a run."""

    status: str
    """running, scoring, interrupted (its process is gone without a summary), done, stopped, unhealthy or failed."""
    step: int
    """The last step in the log."""
    steps: int | None
    """The step at which the run ends, if its log says so."""
    summary: Mapping[str, Any]
    """summary.json with what is known from the start; without the summary of an earlier start."""
    starts: Sequence[Start]

    @property
    def runs(self) -> bool:
        return self.status in RUNNING

    @property
    def monitor(self) -> tuple[str, str] | None:
        """Name of the metric that chooses the best checkpoint, and max or min."""
        found = self.summary.get("monitor")
        return (str(found[0]), str(found[1])) if isinstance(found, list) and len(found) == 2 else None

    def arrow(self, metric: str) -> str:
        """Return an arrow towards better values of a metric, or "" if no direction is known."""
        found = self.summary.get("directions")
        return arrow(metric, (found if isinstance(found, dict) else {}) | dict([self.monitor] if self.monitor else ()))


_LARGER = {"accuracy", "dice", "f1", "iou", "miou", "precision", "recall"}
_SMALLER = {"loss", "mae", "mse", "rmse"}
_OTHER = {"bias", "change", "count", "delta", "difference", "drop", "error", "gap", "ms", "seconds", "std", "time"}
"""Last words of a metric that is about another one, and better in a direction of its own."""


def arrow(metric: str, directions: Mapping[str, str]) -> str:
    """Return an arrow towards better values of a metric, by `directions` (max or min), else by its last or first word.

    An empty text means that no direction is known.

    >>> arrow("iou_tumour", {}), arrow("dice_loss", {}), arrow("dice_gap", {}), arrow("rank", {"rank": "max"})
    ('↑', '↓', '', '↑')
    """
    words = metric.split("_")
    telling = () if words[-1] in _OTHER else (words[-1], words[0])
    usual = ("min" if word in _SMALLER else "max" for word in telling if word in _LARGER | _SMALLER)
    return {"max": "↑", "min": "↓"}.get(directions.get(metric) or next(usual, ""), "")


def progress(run: RunFolder, events: Iterable[Event]) -> Progress:
    """Return how far a run is; `events` are the lines of its log. Raises BadInput for a damaged summary.json."""
    starts, summary = read_starts(run), run.read_summary()
    if len(starts) > len(summary.get("starts") or ()):
        summary = {}  # of an earlier start
    step, steps, ended, best = 0, None, False, Event()
    for event in events:
        kind = event.get("event")
        step, ended = max(step, event.get("step", 0)), ended or kind == "end"
        steps = event.get("steps", steps) if kind == "start" else steps
        best = event if kind == "validation" and event.get("best") else best
    status = str(summary.get("status") or "running")
    if not summary and starts and _is_gone(starts[-1]):
        status = "interrupted"
    elif ended and starts and not summary:
        status = "scoring"
    known = {name: value for name, value in (starts[-1] if starts else {}).items() if name not in ("time", "pid")}
    so_far = {"best_step": best.get("step"), "metrics": _metrics(best)} if best else {}
    return Progress(status, step, steps, {**known, **so_far, **summary}, starts)


def _metrics(validation: Event) -> dict[str, float]:
    left_out = ("event", "step", "epoch", "best", "timing")
    return {name: value for name, value in validation.items() if name not in left_out}


def now() -> str:
    """Return the local time with its offset, in seconds."""
    return time.strftime("%Y-%m-%d %H:%M:%S %z")


def _is_gone(start: Start) -> bool:
    """Return True if the process of a start has ended. Of another machine's processes nothing is known."""
    if start.get("host") != platform.node() or not isinstance(start.get("pid"), int):
        return False
    try:
        os.kill(start["pid"], 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):  # another user's process
        return False
    return False
