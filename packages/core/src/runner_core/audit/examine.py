"""Every record read once, decoded and prepared as for training, in as many processes as there are cores."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from runner_core._errors import BadInput
from runner_core.audit.facts import RecordFacts, record_facts
from runner_core.cache.build import run_all
from runner_core.pipeline import RecordPipeline, local
from runner_core.project import AnyRecord
from runner_core.protocols import Finding
from runner_core.setup import Setup

DECODE = "decode"
"""The rule of records that cannot be prepared."""


@dataclass(frozen=True)
class Examined:
    """What was found of a record. `facts` None: it could not be decoded."""

    findings: list[Finding]
    facts: RecordFacts | None
    prepared_bytes: int = 0
    """That the cache keeps of it, where nothing compresses them."""

    @property
    def usable(self) -> bool:
        return not any(finding.level == "error" for finding in self.findings)

    @property
    def unreadable(self) -> bool:
        return any(finding.rule == DECODE for finding in self.findings)


@dataclass(frozen=True)
class Examine:
    """What is wrong with a record: what preparing it refuses, else what the project's own check finds; and the facts
    about what was decoded. Picklable."""

    pipeline: RecordPipeline

    def __call__(self, task: tuple[int, AnyRecord]) -> tuple[int, Examined]:
        number, record = task
        project = self.pipeline.project
        facts = None
        try:
            with local(project, record) as here:
                decoded = project.decode(here)
                facts = record_facts(here, decoded, project.annotation(decoded))
                decoded.original = None  # preparing needs the memory, not the file's own array
                prepared = self.pipeline.prepared(here, decoded)
                size = sum(array.nbytes for array in prepared.arrays.values())
                del decoded, prepared  # the project's check reads the files once more
                return number, Examined(list(project.check(here)), facts, size)
        except (BadInput, OSError) as error:
            return number, Examined([Finding(DECODE, "error", str(error))], facts)


def examine(setup: Setup, records: Sequence[AnyRecord]) -> Iterator[tuple[AnyRecord, Examined]]:
    """What was found of each record, in the records' order, however many processes look for it."""
    processes = setup.config.cache.workers or len(os.sched_getaffinity(0))
    done: dict[int, Examined] = {}
    shown = 0
    with run_all(Examine(setup.pipeline), enumerate(records), min(processes, len(records) // 4)) as results:
        for number, found in results:
            done[number] = found
            while shown in done:
                yield records[shown], done.pop(shown)
                shown += 1
