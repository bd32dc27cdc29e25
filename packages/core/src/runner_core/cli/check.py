"""`runner PROJECT check`: audit the data before GPU hours are spent on it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from runner_core._errors import BadInput
from runner_core._text import about, counted
from runner_core.cache.build import run_all
from runner_core.cache.place import is_streaming
from runner_core.cli.audit import set_faults
from runner_core.cli.data import data_folder, describe_plan, describe_split, read_records
from runner_core.cli.options import CheckOptions
from runner_core.cli.start import start_new
from runner_core.copies import find_copies, read_digest
from runner_core.pipeline import RecordPipeline, local
from runner_core.project import AnyRecord
from runner_core.protocols import Finding
from runner_core.setup import Setup
from runner_core.splits import split
from runner_core.stream.bad import too_many

_LEVELS = ("error", "warning", "note")
_DECODE = "decode"
"""The rule of records that cannot be prepared."""


def check(name: str, arguments: Sequence[str]) -> int:
    setup = start_new(name, "check", CheckOptions, arguments).setup
    folder = data_folder(setup, print)
    records = read_records(setup, folder)
    print(f"{folder}: {counted(len(records), 'record')} in {counted(len({r.group for r in records}), 'group')}")
    streaming = is_streaming(setup.config, records)
    counts = dict.fromkeys(_LEVELS, 0)
    good: dict[str, AnyRecord] = {}
    digests: dict[str, str | None] = {}
    unreadable = 0
    for record, (findings, digest) in _audit(setup, records):
        unreadable += any(f.rule == _DECODE for f in findings)
        for finding in findings:
            level = "warning" if streaming and finding.rule == _DECODE else finding.level
            counts[level] += 1
            print(f"{level:<8} {about(record.key, finding.message)}")
        if not any(f.level == "error" for f in findings):
            good[record.key], digests[record.key] = record, digest
    faulty = len(records) - len(good)
    usable = list(good.values())
    whole = _plans(setup, usable) if good else False
    copies = find_copies(usable, list(digests.values()), _sides(setup, usable))
    for finding in [*copies, *set_faults(setup.project, usable)]:
        counts[finding.level] += 1
        print(f"{finding.level:<8} {finding.message}")
        whole = whole and finding.level != "error"
    print(", ".join([counted(faulty, "faulty record"), *(counted(counts[level], level) for level in _LEVELS[1:])]))
    if streaming and unreadable and not too_many(unreadable, sum(len(record.files) for record in records)):
        print(f"training reads other records in place of the {unreadable} that cannot be read")
        faulty -= unreadable
    if faulty:
        print("training refuses these records: repair them, or move them out of the folder")
    return 2 if faulty or not whole else 0


Faulty = tuple[list[Finding], str | None]


@dataclass(frozen=True)
class Faults:
    """What is wrong with a record: what preparing it refuses, else what the project's own check finds; and the digest
    of its main file. Picklable."""

    pipeline: RecordPipeline

    def __call__(self, task: tuple[int, AnyRecord]) -> tuple[int, Faulty]:
        number, record = task
        project = self.pipeline.project
        try:
            with local(project, record) as here:
                self.pipeline(here)
                return number, (list(project.check(here)), read_digest(record))
        except (BadInput, OSError) as error:
            return number, ([Finding(_DECODE, "error", str(error))], None)


def _audit(setup: Setup, records: Sequence[AnyRecord]) -> Iterator[tuple[AnyRecord, Faulty]]:
    """What was found of each record, in the records' order, however many processes look for them."""
    processes = setup.config.cache.workers or len(os.sched_getaffinity(0))
    done: dict[int, Faulty] = {}
    shown = 0
    with run_all(Faults(setup.pipeline), enumerate(records), min(processes, len(records) // 4)) as results:
        for number, findings in results:
            done[number] = findings
            while shown in done:
                yield records[shown], done.pop(shown)
                shown += 1


def _plans(setup: Setup, records: Sequence[AnyRecord]) -> bool:
    """The split that would be used and what the cache will cost, of the records that are usable."""

    def split_lines() -> Iterator[str]:
        yield f"preset {setup.preset} splits them so:"
        yield from describe_split(setup.project, records, split(records, setup.config.data, setup.config.train.seed))

    def cache_lines() -> Iterator[str]:
        yield f"preset {setup.preset}: {describe_plan(setup.cache.plan(setup.pipeline, records))}"

    return all([_say_or_error(split_lines), _say_or_error(cache_lines)])


def _sides(setup: Setup, records: Sequence[AnyRecord]) -> dict[str, list[int]]:
    """The split that would be used, empty where there is none (said already)."""
    try:
        return split(records, setup.config.data, setup.config.train.seed)
    except BadInput:
        return {}


def _say_or_error(lines: Callable[[], Iterator[str]]) -> bool:
    try:
        for line in lines():
            print(line)
    except BadInput as error:
        print(f"error    {error}")
        return False
    return True
