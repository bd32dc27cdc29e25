"""What the project's own checks say of records, and of them together, when they are first prepared for a training."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from runner_core._errors import BadInput
from runner_core._text import about, counted, typed
from runner_core.cache.build import run_all
from runner_core.cache.progress import progress
from runner_core.pipeline import RecordPipeline, local
from runner_core.project import AnyRecord, Project, overrides
from runner_core.protocols import Finding
from runner_core.setup import Setup

_MOST_RECORDS = 500
"""More would take minutes."""
_SHOWN = 10


@dataclass(frozen=True)
class _Check:
    """What is found in a record, worth a warning. Picklable."""

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
    """Say the first warnings, and which command lists all of them. `each`: also those of each record by itself."""
    if setup.source is None or not any(overrides(setup.project, method) for method in ("check", "check_set")):
        return
    command = f"runner {setup.name} check --data {typed(setup.source)}"
    lines = [finding.message for finding in set_faults(setup.project, records) if finding.level != "note"]
    if each and len(records) > _MOST_RECORDS:
        say(f"NOTE: {counted(len(records), 'record')} are not checked here one by one: {command}")
    elif each and overrides(setup.project, "check"):
        lines += _lines(setup, records, say)
    for line in lines[:_SHOWN]:
        say(f"WARNING: {line}")
    if len(lines) > _SHOWN:
        say(f"{len(lines) - _SHOWN} more: {command}")


def set_faults(project: Project, records: Sequence[AnyRecord]) -> list[Finding]:
    """What is wrong with the records together; that they cannot be read is an error too."""
    try:
        return list(project.check_set(records)) if records else []
    except (BadInput, OSError) as error:
        return [Finding("check_set", "error", str(error))]


def _lines(setup: Setup, records: Sequence[AnyRecord], say: Callable[[str], None]) -> Iterator[str]:
    processes = setup.config.cache.workers or len(os.sched_getaffinity(0))
    found: dict[int, list[str]] = {}
    with (
        progress("checking records", len(records), say) as advance,
        run_all(_Check(setup.pipeline), enumerate(records), min(processes, len(records) // 4)) as results,
    ):
        for number, messages in results:
            found[number] = messages
            advance()
    for number, record in enumerate(records):
        yield from (about(record.key, message) for message in found[number])
