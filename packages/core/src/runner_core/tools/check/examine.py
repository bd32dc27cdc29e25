"""Read every record once, decoded and prepared as for training, in one process per core."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from runner_core.base.errors import BadInput
from runner_core.contract import Finding
from runner_core.contract.records import AnyRecord
from runner_core.contract.setup import Setup
from runner_core.data.cache.build import run_all
from runner_core.data.pipeline import RecordPipeline, local
from runner_core.tools.check.facts import RecordFacts, record_facts

DECODE = "decode"
"""Rule of records that cannot be prepared."""


@dataclass(frozen=True)
class Examined:
    """Findings about a record; `facts` is None if it could not be decoded."""

    findings: list[Finding]
    facts: RecordFacts | None
    prepared_bytes: int = 0
    """Bytes that the cache keeps of it without compression."""

    @property
    def usable(self) -> bool:
        return not any(finding.level == "error" for finding in self.findings)

    @property
    def unreadable(self) -> bool:
        return any(finding.rule == DECODE for finding in self.findings)


@dataclass(frozen=True)
class Examine:
    """Find faults of a record, and facts about what was decoded; picklable.

    The faults are what preparing refuses, otherwise what the project's own check finds.
    """

    pipeline: RecordPipeline

    def __call__(self, task: tuple[int, AnyRecord]) -> tuple[int, Examined]:
        number, record = task
        project = self.pipeline.project
        facts = None
        try:
            with local(project, record) as here:
                decoded = project.decode(here)
                facts = record_facts(here, decoded, project.annotation(decoded))
                decoded.original = None  # preparing needs the memory, but not the file's own array
                prepared = self.pipeline.prepared(here, decoded)
                size = sum(array.nbytes for array in prepared.arrays.values())
                del decoded, prepared  # the project's check reads the files once more
                return number, Examined(list(project.check(here)), facts, size)
        except (BadInput, OSError) as error:
            return number, Examined([Finding(DECODE, "error", str(error))], facts)


def examine(setup: Setup, records: Sequence[AnyRecord]) -> Iterator[tuple[AnyRecord, Examined]]:
    """Yield the findings about each record, in the records' order, however many processes work."""
    processes = setup.config.cache.workers or len(os.sched_getaffinity(0))
    done: dict[int, Examined] = {}
    shown = 0
    with run_all(Examine(RecordPipeline.of(setup)), enumerate(records), min(processes, len(records) // 4)) as results:
        for number, found in results:
            done[number] = found
            while shown in done:
                yield records[shown], done.pop(shown)
                shown += 1
