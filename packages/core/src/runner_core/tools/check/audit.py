"""Audit data, record by record and over the set; check.json holds all results for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from runner_core.base.errors import BadInput
from runner_core.base.location import Location
from runner_core.base.text import about, counted, first_few
from runner_core.contract import CachePlan, Finding, Json
from runner_core.contract.records import AnyRecord, Table
from runner_core.contract.setup import Setup
from runner_core.data.cache import is_streaming
from runner_core.data.duplicates import find_duplicates
from runner_core.data.near_duplicates import LEAK, find_near_duplicates
from runner_core.data.pipeline import RecordPipeline
from runner_core.data.splits import split, spread
from runner_core.data.stream.bad import too_many, too_many_text
from runner_core.tools.check.facts import DECODE, Checked, Examined, examine
from runner_core.tools.check.rules import set_rules
from runner_core.tools.check.tables import fits, memory_plan, other_files, prepared_already, tables
from runner_core.tools.labels.judge import WrongLabels
from runner_core.training.data import describe_plan, describe_split, set_faults
from runner_core.training.memory import MemoryPlan

Status = Literal["ready", "refused"]


@dataclass(frozen=True)
class Audit:
    """Results of an audit.

    `found` is by record key, for all records. `findings` holds the findings, each with its record's key, or None for a
    finding about the set.
    """

    project: str
    preset: str
    data: str
    status: Status
    """"refused" if there is an error, "ready" otherwise."""
    records: Sequence[AnyRecord]
    found: Mapping[str, Examined]
    checked: Checked
    findings: Sequence[tuple[str | None, Finding]]
    tables: Sequence[Table]
    lines: Sequence[str]
    """Lines about split and cache."""
    others: Mapping[str, int]
    """Files below the folder that belong to no record, by suffix."""
    cache: CachePlan | None
    """None if no record is usable, or if the plan failed."""
    memory: MemoryPlan | None = None
    """The memory and disk that a training takes, or None if unknown."""
    wrong_labels: WrongLabels | None = None
    """Labels as networks judge them, or None if none were asked."""

    def levels(self) -> Counter[str]:
        """Return the number of findings of each level."""
        return Counter(finding.level for _, finding in self.findings)

    @property
    def only_leaks(self) -> bool:
        """True if there are errors, and training would not notice any of them."""
        return {finding.rule for _, finding in self.findings if finding.level == "error"} == {LEAK}

    def split_of(self, key: str) -> str:
        """Return the split of a usable record, or ""."""
        return self._splits().get(key, "")

    def _splits(self) -> dict[str, str]:
        keys = [record.key for record in self.checked.records]
        return {keys[n]: split for split, numbers in self.checked.splits.items() for n in numbers}

    def to_json(self) -> Json:
        """Return the content of check.json (see docs/your-own-data.md); values that are not finite must become null."""
        splits, checked = self._splits(), self.checked
        return {
            "project": self.project,
            "preset": self.preset,
            "data": self.data,
            "status": self.status,
            "records": len(self.records),
            "faulty": len(self.records) - len(checked.records),
            "other_files": dict(self.others),
            "groups": len({record.group for record in self.records}),
            "levels": {level: self.levels()[level] for level in ("error", "warning", "note")},
            "findings": [{"record": key, **_finding(finding)} for key, finding in self.findings],
            "split": {
                name: {"records": len(numbers), "groups": sorted({checked.records[n].group for n in numbers})}
                for name, numbers in checked.splits.items()
            },
            "classes": {name: _balance(checked, numbers) for name, numbers in self._parts().items()},
            "cache": None if self.cache is None else _cache(self.cache),
            "memory": None if self.memory is None else self.memory.json(),
            "wrong_labels": None if self.wrong_labels is None else self.wrong_labels.to_json(),
            "prepared_bytes": sum(found.prepared_bytes for found in checked.found),
            "each": [
                {
                    "record": record.key,
                    "group": record.group,
                    "split": splits.get(record.key),
                    "usable": self.found[record.key].usable,
                    **_facts(self.found[record.key]),
                }
                for record in self.records
            ],
        }

    def _parts(self) -> dict[str, Sequence[int]]:
        return {"all": range(len(self.checked.records)), **self.checked.parts}


def _finding(finding: Finding) -> dict[str, Json]:
    return {"level": finding.level, "rule": finding.rule, "message": finding.message}


def _balance(checked: Checked, numbers: Sequence[int]) -> Json:
    balance = checked.balance(numbers)
    return {
        "labelled_records": balance.records,
        "annotated_voxels": balance.annotated,
        "ignored_voxels": balance.ignored,
        "voxels": dict(balance.counts),
        "records": dict(balance.having),
    }


def _cache(plan: CachePlan) -> dict[str, Any]:
    return asdict(plan) | {"folder": None if plan.folder is None else str(plan.folder)}


def _facts(found: Examined) -> dict[str, Json]:
    if found.facts is None:
        return {"facts": None}
    facts = asdict(found.facts)
    for array in facts["arrays"].values():
        array.pop("digest")
    return {"prepared_bytes": found.prepared_bytes, "facts": facts}


_SPLIT = "split"
"""Rule of a finding about the split."""
_REFUSALS = 5
"""Number of reasons that are repeated at the end."""


class Auditor:
    """A running audit; it prints each finding at once."""

    def __init__(self, setup: Setup, records: Sequence[AnyRecord], left_out: Sequence[Finding] = ()) -> None:
        """`left_out` holds what `records` found but did not take."""
        self.setup, self.records, self.left_out = setup, records, left_out
        self.streaming = is_streaming(setup.config, records)
        self.findings: list[tuple[str | None, Finding]] = []
        self.lines: list[str] = []
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
                self.report(replace(finding, level="warning") if mild else finding, record.key)
        usable = [record for record in self.records if self.found[record.key].usable]
        self.checked = Checked(
            usable, [self.found[record.key] for record in usable], {}, len(self.records) - len(usable)
        )

    def together(self, different: Sequence[str] = ()) -> None:
        """Check the usable records together: their split, cache and duplicates, and the rules for the set.

        `different` holds keys of records that look alike, and that the user knows to be different from each other.
        """
        project, usable = self.setup.project, self.checked.records
        if usable:
            self._or_error(_SPLIT, self._split)
            self._or_error("cache", self._plan)
        self._refuse_unreadable()
        digests = _digests(self.checked)
        duplicates = find_duplicates(usable, digests, self.checked.splits)
        fingerprints = [found.fingerprint for found in self.checked.found]
        duplicates += find_near_duplicates(usable, fingerprints, digests, different)
        set_findings = [*set_faults(project, usable), *set_rules(project, self.checked)]
        if set_findings and self.faulty:
            text = f"checks of the whole set leave out {counted(self.faulty, 'faulty record')}"
            set_findings.insert(0, Finding("together", "note", f"{text}: it may contain what the others lack"))
        for finding in [*duplicates, *self.left_out, *set_findings]:
            self.report(finding)

    def fit(self) -> None:
        """Find what a training on these data takes of RAM, device and disk."""
        if self.cache is None or not self.checked.splits or self.faulty > self.replaced:
            return
        try:
            self.memory = memory_plan(self.setup, self.checked, self.cache)
        except BadInput as error:
            self.report(Finding("memory", "note", f"the memory of a training is unknown: {error}"))
            return
        for text in self.memory.warnings:
            self.report(Finding("memory", "warning", text))
        if self.memory.refusal is not None:
            self.report(Finding("memory", "error", self.memory.refusal))

    def report(self, finding: Finding, key: str | None = None) -> None:
        self.findings.append((key, finding))
        print(f"{finding.level:<8} {finding.message if key is None else about(key, finding.message)}")

    def result(self, folder: Location) -> Audit:
        others = other_files(folder, self.records)
        return Audit(
            project=self.setup.name,
            preset=self.setup.preset,
            data=str(folder),
            status="refused" if any(finding.level == "error" for _, finding in self.findings) else "ready",
            records=self.records,
            found=self.found,
            checked=self.checked,
            findings=self.findings,
            tables=[*tables(self.checked, others), *fits(self.cache, self.memory)],
            lines=self.lines,
            others=others,
            cache=self.cache,
            memory=self.memory,
        )

    def conclude(self, result: Audit) -> None:
        """Print the counts, and below them the errors: what training refuses, and leaks that it does not look for."""
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
        errors = {finding.rule for _, finding in self.findings if finding.level == "error"}
        if errors == {_SPLIT} and len({record.group for record in self.checked.records}) == 1:
            print("the records have no error: `predict` takes them, and --data.split none checks them without a split")
        if leaks := sum(finding.rule == LEAK for _, finding in self.findings):
            print(f"leak: {counted(leaks, 'error')} about near copies, above. Training does not look for them")

    @property
    def faulty(self) -> int:
        """Number of records that cannot be used."""
        return len(self.records) - len(self.checked.records)

    @property
    def replaced(self) -> int:
        """Number of records that cannot be read and that a training replaces by others."""
        some_left = bool(self.checked.records) and not too_many(self._unreadable, self._files)
        return self._unreadable if self.streaming and some_left else 0

    @property
    def _unreadable(self) -> int:
        return sum(found.unreadable for found in self.found.values())

    @property
    def _files(self) -> int:
        return sum(len(record.files) for record in self.records)

    def _refuse_unreadable(self) -> None:
        """Report why a training of streamed records cannot replace those that cannot be read."""
        if not self.streaming:
            return
        if too_many(self._unreadable, self._files):
            self.report(Finding(DECODE, "error", too_many_text(self._unreadable, self._files)))
        elif not self.checked.records and self.faulty == self._unreadable:
            self.report(Finding(DECODE, "error", "not one record can be read: there is nothing to train on"))

    def _refusals(self) -> list[str]:
        """Return why training refuses the data: the first line of each error of the set, all faulty records in one."""
        errors = [(key, found) for key, found in self.findings if found.level == "error" and found.rule != LEAK]
        alone = list(dict.fromkeys(key for key, _ in errors if key is not None))
        found = [finding.message.partition("\n")[0] for key, finding in errors if key is None]
        if alone:
            them = "it, or move it" if len(alone) == 1 else "them, or move them"
            text = f"{counted(len(alone), 'faulty record')} ({first_few(alone)}): repair {them} out of the folder"
            found.insert(0, text)
        return found

    def _split(self) -> None:
        setup, usable = self.setup, self.checked.records
        self._say(f"preset {setup.preset} splits them so:")
        splits = split(usable, setup.config.data, setup.config.train.seed)
        self.checked = replace(self.checked, splits=splits)
        validated = spread(usable, splits["validation"], setup.config.validate.records, setup.config.train.seed)
        for line in describe_split(setup.project, usable, splits, len(validated)):
            self._say(line)

    def _plan(self) -> None:
        plan = self.setup.cache(self.checked.records).plan(RecordPipeline.of(self.setup), self.checked.records)
        self.cache = prepared_already(plan, sum(found.prepared_bytes for found in self.checked.found))
        self._say(f"preset {self.setup.preset}: {describe_plan(self.cache)}")

    def _say(self, line: str) -> None:
        self.lines.append(line)
        print(line)

    def _or_error(self, rule: str, part: Callable[[], None]) -> None:
        try:
            part()
        except BadInput as error:
            self.report(Finding(rule, "error", str(error)))


def _digests(checked: Checked) -> list[str | None]:
    """Return a digest of each decoded image, which does not depend on its file's compression."""
    images = [None if found.facts is None else found.facts.image for found in checked.found]
    return [None if image is None else image.digest for image in images]
