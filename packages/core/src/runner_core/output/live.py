"""The report of a running training: a tracker that rewrites report.html, and takes at most 1 % of the time for it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic

from runner_core.contract import Json
from runner_core.output.progress import note_start
from runner_core.output.runfolder import RunFolder

_SHARE = 0.01
_BETWEEN = 30.0
"""Least seconds from one report to the next, unless there is a new validation."""


def write_report(run: RunFolder) -> None:
    """Write the report; what that takes is imported once there is something to write."""
    from runner_core.output import report

    report.write_report(run)


class LiveReport:
    """Writes report.html at every validation, and between validations now and then.

    The time from one report to the next is at least a hundred times what a report takes, so that quick validations skip
    some. The loop sends events between steps: no step's time contains this. `about` goes into starts.jsonl.
    """

    name = "report"

    def __init__(self, run: RunFolder, about: Mapping[str, Json]) -> None:
        self._run, self._about = run, about
        self._begun = False
        self._written, self._took = -math.inf, 0.0

    def resumed(self) -> None:
        """Note the start at once: the next event may be minutes away, and until then the run would seem to be over."""
        self.started()

    def started(self) -> None:
        """Note the start, if that was not done: a run that is killed while it prepares its data is interrupted."""
        if not self._begun:
            self._begun = True
            with suppress(OSError):
                note_start(self._run, self._about)

    def event(self, kind: str, step: int, values: Mapping[str, Json]) -> None:
        self.started()
        if kind == "validation":
            self._write(0.0)
        elif kind == "train" or (kind == "end" and values["status"] == "done"):  # scoring follows, which takes time
            self._write(_BETWEEN if kind == "train" else 0.0)

    def figure(self, name: str, step: int, png: Path) -> None:
        """Do nothing: the picture is in the next report."""

    def close(self) -> None:
        """Do nothing: the run's end writes the last report itself, once summary.json is there."""

    def _write(self, between: float) -> None:
        begun = monotonic()
        if begun - self._written < max(between, self._took / _SHARE):
            return
        with suppress(OSError):  # a full disk: the next one may succeed, and the run's end reports it
            write_report(self._run)
        self._written = monotonic()
        self._took = self._written - begun
