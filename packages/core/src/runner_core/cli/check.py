"""`runner PROJECT check`: audit the data before GPU hours are spent on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace

from runner_core._errors import BadInput
from runner_core._text import about, aligned, counted, some
from runner_core.audit.checked import Checked
from runner_core.audit.examine import DECODE, Examined, examine
from runner_core.audit.fits import fits, memory_plan, prepared_already
from runner_core.audit.others import other_files
from runner_core.audit.page import write_audit
from runner_core.audit.result import Audit
from runner_core.audit.rules import set_rules
from runner_core.audit.start import set_faults
from runner_core.audit.tables import tables
from runner_core.cache.place import is_streaming
from runner_core.cli.data import data_folder, describe_plan, describe_split, read_records
from runner_core.cli.options import CheckOptions
from runner_core.cli.start import start_new
from runner_core.copies import find_copies
from runner_core.location import Location
from runner_core.memory import MemoryPlan
from runner_core.project import AnyRecord, Table
from runner_core.protocols import CachePlan, Finding
from runner_core.setup import Setup
from runner_core.splits import split
from runner_core.stream.bad import too_many, too_many_text
from runner_core.toolfolder import claimed, tool_folder

_REFUSALS = 5
"""Reasons that are told once more in the end."""


def check(name: str, arguments: Sequence[str]) -> int:
    started = start_new(name, "check", CheckOptions, arguments)
    setup, out = started.setup, started.options.out
    # refused before anything is read
    with nullcontext() if out is None else claimed(name, "check", out):
        return _check(setup, started.options)


def _check(setup: Setup, options: CheckOptions) -> int:
    folder = data_folder(setup, print)
    records = read_records(setup, folder)
    print(f"{folder}: {counted(len(records), 'record')} in {counted(len({r.group for r in records}), 'group')}")
    auditor = Auditor(setup, records)
    auditor.each()
    auditor.together()
    if options.fit:
        auditor.fit()
    result = auditor.result(folder)
    for shown in result.tables:
        _show(shown)
    auditor.conclude(result)
    try:
        page = write_audit(result, options.out or tool_folder(setup.name, "check", None))
        print(f"report: {page}")
    except (BadInput, OSError) as error:  # what it would say is on the screen
        print(f"NOTE: there is no report: {error}")
    return 0 if result.status == "ready" else 2


class Auditor:
    """An audit on its way: what it finds is printed at once."""

    def __init__(self, setup: Setup, records: Sequence[AnyRecord]) -> None:
        self.setup, self.records = setup, records
        self.streaming = is_streaming(setup.config, records)
        self.told: list[tuple[str | None, Finding]] = []
        self.said: list[str] = []
        self.found: dict[str, Examined] = {}
        self.checked = Checked([], [], {})
        self.cache: CachePlan | None = None
        self.memory: MemoryPlan | None = None

    def each(self) -> None:
        """Read every record."""
        for record, found in examine(self.setup, self.records):
            self.found[record.key] = found
            for finding in found.findings:
                mild = self.streaming and found.unreadable  # training goes on without a few of these
                self.tell(replace(finding, level="warning") if mild else finding, record.key)
        usable = [record for record in self.records if self.found[record.key].usable]
        self.checked = Checked(
            usable, [self.found[record.key] for record in usable], {}, len(self.records) - len(usable)
        )

    def together(self) -> None:
        """What those that can be used are together: their split, cache and copies, and what rules say of the set."""
        project, usable = self.setup.project, self.checked.records
        if usable:
            self._or_error("split", self._split)
            self._or_error("cache", self._plan)
        self._refuse_unreadable()
        copies = find_copies(usable, _digests(self.checked), self.checked.sides)
        of_all = [*set_faults(project, usable), *set_rules(project, self.checked)]
        if of_all and self.faulty:
            text = f"what is said of the records together leaves out {counted(self.faulty, 'faulty record')}"
            of_all.insert(0, Finding("together", "note", f"{text}: what the others lack may be there"))
        for finding in [*copies, *of_all]:
            self.tell(finding)

    def fit(self) -> None:
        """What a training takes of RAM, device and disk, of data that it would take."""
        if self.cache is None or not self.checked.sides or self.faulty > self.replaced:
            return
        try:
            self.memory = memory_plan(self.setup, self.checked, self.cache)
        except BadInput as error:
            self.tell(Finding("memory", "note", f"what a training takes is not known: {error}"))
            return
        for text in self.memory.warnings:
            self.tell(Finding("memory", "warning", text))
        if self.memory.refusal is not None:
            self.tell(Finding("memory", "error", self.memory.refusal))

    def tell(self, finding: Finding, key: str | None = None) -> None:
        self.told.append((key, finding))
        print(f"{finding.level:<8} {finding.message if key is None else about(key, finding.message)}")

    def result(self, folder: Location) -> Audit:
        others = other_files(folder, self.records)
        return Audit(
            project=self.setup.name,
            preset=self.setup.preset,
            data=str(folder),
            status="refused" if self._refusals() else "ready",
            records=self.records,
            found=self.found,
            checked=self.checked,
            told=self.told,
            tables=[*tables(self.checked, others), *fits(self.cache, self.memory)],
            said=self.said,
            others=others,
            cache=self.cache,
            memory=self.memory,
        )

    def conclude(self, result: Audit) -> None:
        """The counts, and below them why training refuses the data, where it does."""
        levels = result.levels()
        counts = [counted(levels[level], level) for level in ("error", "warning", "note")]
        print(", ".join([counted(self.faulty, "faulty record"), *counts]))
        if self.replaced:
            print(f"training reads other records in place of the {self.replaced} that cannot be read")
        refusals = self._refusals()
        for text in refusals[:_REFUSALS]:
            print(f"training refuses: {text}")
        if len(refusals) > _REFUSALS:
            print(f"training refuses: {counted(len(refusals) - _REFUSALS, 'more error')}, above")

    @property
    def faulty(self) -> int:
        """Records that cannot be used."""
        return len(self.records) - len(self.checked.records)

    @property
    def replaced(self) -> int:
        """Records that cannot be read, in whose place a training reads others."""
        some_left = bool(self.checked.records) and not too_many(self._unreadable, self._files)
        return self._unreadable if self.streaming and some_left else 0

    @property
    def _unreadable(self) -> int:
        return sum(found.unreadable for found in self.found.values())

    @property
    def _files(self) -> int:
        return sum(len(record.files) for record in self.records)

    def _refuse_unreadable(self) -> None:
        """Tell why a training of streamed records cannot take others in place of those that cannot be read."""
        if not self.streaming:
            return
        if too_many(self._unreadable, self._files):
            self.tell(Finding(DECODE, "error", too_many_text(self._unreadable, self._files)))
        elif not self.checked.records and self.faulty == self._unreadable:
            self.tell(Finding(DECODE, "error", "not one record can be read: there is nothing to train on"))

    def _refusals(self) -> list[str]:
        """Why training refuses the data: the first line of each error of the set, and all faulty records in one."""
        errors = [(key, finding) for key, finding in self.told if finding.level == "error"]
        alone = list(dict.fromkeys(key for key, _ in errors if key is not None))
        found = [finding.message.partition("\n")[0] for key, finding in errors if key is None]
        if alone:
            them = "it, or move it" if len(alone) == 1 else "them, or move them"
            text = f"{counted(len(alone), 'faulty record')} ({some(alone)}): repair {them} out of the folder"
            found.insert(0, text)
        return found

    def _split(self) -> None:
        setup, usable = self.setup, self.checked.records
        self._say(f"preset {setup.preset} splits them so:")
        sides = split(usable, setup.config.data, setup.config.train.seed)
        self.checked = replace(self.checked, sides=sides)
        for line in describe_split(setup.project, usable, sides):
            self._say(line)

    def _plan(self) -> None:
        plan = self.setup.cache.plan(self.setup.pipeline, self.checked.records)
        self.cache = prepared_already(plan, sum(found.prepared_bytes for found in self.checked.found))
        self._say(f"preset {self.setup.preset}: {describe_plan(self.cache)}")

    def _say(self, line: str) -> None:
        self.said.append(line)
        print(line)

    def _or_error(self, rule: str, part: Callable[[], None]) -> None:
        try:
            part()
        except BadInput as error:
            self.tell(Finding(rule, "error", str(error)))


def _digests(checked: Checked) -> list[str | None]:
    """Of each image as it was decoded: a scan is the same, however its file is compressed."""
    images = [None if found.facts is None else found.facts.image for found in checked.found]
    return [None if image is None else image.digest for image in images]


def _show(shown: Table) -> None:
    print(f"{shown.title}:")
    for line in aligned([shown.columns, *([str(cell) for cell in row] for row in shown.rows)]):
        print(line)
