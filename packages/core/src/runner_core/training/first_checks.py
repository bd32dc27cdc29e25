"""Run the project's own checks on the records, one by one and together, when training first prepares them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from runner_core.base.errors import BadInput
from runner_core.base.location import shell_word
from runner_core.base.progress import progress
from runner_core.base.text import about, counted
from runner_core.contract import LEFT_OUT, Finding
from runner_core.contract.project import Project, overrides
from runner_core.contract.records import AnyRecord
from runner_core.contract.setup import Setup
from runner_core.data.cache.build import run_all
from runner_core.data.pipeline import RecordPipeline, local

_MOST_RECORDS = 500
"""Largest number of records to check; more would take minutes."""
_SHOWN = 10


@dataclass(frozen=True)
class _Check:
    """Find faults in one record that deserve a warning; picklable."""

    pipeline: RecordPipeline

    def __call__(self, task: tuple[int, AnyRecord]) -> tuple[int, list[str]]:
        number, record = task
        project: Project = self.pipeline.project
        try:
            with local(project, record) as here:
                return number, [f.message for f in project.check(here) if f.level != "note"]
        except (BadInput, OSError) as error:
            return number, [str(error)]


def warn(setup: Setup, records: Sequence[AnyRecord], say: Callable[[str], None], *, each: bool = True) -> None:
    """Print which records are left out, the first warnings, and the command that lists all of them.

    `each` adds the warnings of each single record.
    """
    if setup.source is None or not any(overrides(setup.project, method) for method in ("check", "check_set")):
        return
    command = f"runner {setup.name} check --data {shell_word(setup.source)}"
    of_set = set_faults(setup.project, records)
    for finding in of_set:
        if finding.rule == LEFT_OUT and finding.level == "note":
            say(f"NOTE: {finding.message}")
    lines = [finding.message for finding in of_set if finding.level != "note"]
    if each and len(records) > _MOST_RECORDS:
        say(f"NOTE: {counted(len(records), 'record')} are not checked here one by one: {command}")
    elif each and overrides(setup.project, "check"):
        lines += _lines(setup, records, say)
    for line in lines[:_SHOWN]:
        say(f"WARNING: {line}")
    if len(lines) > _SHOWN:
        say(f"{len(lines) - _SHOWN} more: {command}")


def set_faults(project: Project, records: Sequence[AnyRecord]) -> list[Finding]:
    """Return faults of the records as a set; failing to read them is an error too."""
    try:
        return list(project.check_set(records)) if records else []
    except (BadInput, OSError) as error:
        return [Finding("check_set", "error", str(error))]


def _lines(setup: Setup, records: Sequence[AnyRecord], say: Callable[[str], None]) -> Iterator[str]:
    processes = setup.config.cache.workers or len(os.sched_getaffinity(0))
    found: dict[int, list[str]] = {}
    with (
        progress("checking records", len(records), say) as advance,
        run_all(_Check(RecordPipeline.of(setup)), enumerate(records), min(processes, len(records) // 4)) as results,
    ):
        for number, messages in results:
            found[number] = messages
            advance()
    for number, record in enumerate(records):
        yield from (about(record.key, message) for message in found[number])
