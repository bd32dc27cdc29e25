"""All results of an audit, and check.json, which holds them for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from runner_core.contract import CachePlan, Finding, Json
from runner_core.contract.records import AnyRecord, Table
from runner_core.tools.check.checked import Checked
from runner_core.tools.check.examine import Examined
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
    """"ready" if training would accept these data."""
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
    """What a training takes, or None if unknown."""

    def levels(self) -> Counter[str]:
        """Return the number of findings of each level."""
        return Counter(finding.level for _, finding in self.findings)

    def side(self, key: str) -> str:
        """Return the split of a usable record, or ""."""
        return self._splits().get(key, "")

    def _splits(self) -> dict[str, str]:
        keys = [record.key for record in self.checked.records]
        return {keys[n]: side for side, numbers in self.checked.splits.items() for n in numbers}

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
                side: {"records": len(numbers), "groups": sorted({checked.records[n].group for n in numbers})}
                for side, numbers in checked.splits.items()
            },
            "classes": {side: _balance(checked, numbers) for side, numbers in self._parts().items()},
            "cache": None if self.cache is None else _cache(self.cache),
            "memory": None if self.memory is None else self.memory.json(),
            "prepared_bytes": sum(found.prepared_bytes for found in checked.found),
            "each": [
                {
                    "record": record.key,
                    "group": record.group,
                    "side": splits.get(record.key),
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
