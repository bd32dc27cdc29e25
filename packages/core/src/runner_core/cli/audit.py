"""What the project's own check says of records when they are first prepared for a training."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from runner_core._errors import BadInput
from runner_core._text import counted, typed
from runner_core.cache.build import run_all
from runner_core.cache.progress import progress
from runner_core.pipeline import RecordPipeline
from runner_core.project import Project, Record, overrides
from runner_core.setup import Setup

_MOST_RECORDS = 500
"""More would take minutes."""
_SHOWN = 10


@dataclass(frozen=True)
class _Check:
    """What is found in a record, worth a warning. Picklable."""

    pipeline: RecordPipeline

    def __call__(self, task: tuple[int, Record]) -> tuple[int, list[str]]:
        number, record = task
        project: Project = self.pipeline.project
        try:
            return number, [f.message for f in project.check(record) if f.level != "note"]
        except (BadInput, OSError) as error:
            return number, [str(error)]


def warn(setup: Setup, records: Sequence[Record], say: Callable[[str], None]) -> None:
    """Say the first warnings, and which command lists all of them."""
    if setup.source is None or not overrides(setup.project, "check"):
        return
    command = f"runner {setup.name} check --data {typed(setup.source)}"
    if len(records) > _MOST_RECORDS:
        say(f"NOTE: {counted(len(records), 'record')} are not checked here: {command}")
        return
    lines = list(_lines(setup, records, say))
    for line in lines[:_SHOWN]:
        say(f"WARNING: {line}")
    if len(lines) > _SHOWN:
        say(f"{len(lines) - _SHOWN} more: {command}")


def _lines(setup: Setup, records: Sequence[Record], say: Callable[[str], None]) -> Iterator[str]:
    processes = setup.config.cache.workers or len(os.sched_getaffinity(0))
    found: dict[int, list[str]] = {}
    with progress("checking records", len(records), say) as advance:
        for number, messages in run_all(_Check(setup.pipeline), enumerate(records), min(processes, len(records) // 4)):
            found[number] = messages
            advance()
    for number, record in enumerate(records):
        yield from (f"{record.key}: {message}" for message in found[number])
