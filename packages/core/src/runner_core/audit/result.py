"""All that an audit found, and check.json: the same for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from runner_core.audit.checked import Checked
from runner_core.audit.examine import Examined
from runner_core.memory import MemoryPlan
from runner_core.project import AnyRecord, Table
from runner_core.protocols import CachePlan, Finding, Json

Status = Literal["ready", "refused"]


@dataclass(frozen=True)
class Audit:
    """`found` is by record key, of all records; `told`: findings, each with the key of the record that it is about, or
    None where it is about the set."""

    project: str
    preset: str
    data: str
    status: Status
    """Would training take these data?"""
    records: Sequence[AnyRecord]
    found: Mapping[str, Examined]
    checked: Checked
    told: Sequence[tuple[str | None, Finding]]
    tables: Sequence[Table]
    said: Sequence[str]
    """Of split and cache."""
    others: Mapping[str, int]
    """Files below the folder that belong to no record, by the ending of their names."""
    cache: CachePlan | None
    """None where no record is usable, or where it cannot be had."""
    memory: MemoryPlan | None = None
    """What a training takes; None where it is not known."""

    def levels(self) -> Counter[str]:
        """How many findings there are of each level."""
        return Counter(finding.level for _, finding in self.told)

    def side(self, key: str) -> str:
        """On which a usable record is; nothing of the others."""
        return self._sides().get(key, "")

    def _sides(self) -> dict[str, str]:
        keys = [record.key for record in self.checked.records]
        return {keys[n]: side for side, numbers in self.checked.sides.items() for n in numbers}

    def to_json(self) -> Json:
        """What check.json holds: see docs/your-own-data.md. All that is not finite is to become null."""
        sides, checked = self._sides(), self.checked
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
            "findings": [{"record": key, **_finding(finding)} for key, finding in self.told],
            "split": {
                side: {"records": len(numbers), "groups": sorted({checked.records[n].group for n in numbers})}
                for side, numbers in checked.sides.items()
            },
            "classes": {side: _balance(checked, numbers) for side, numbers in self._parts().items()},
            "cache": None if self.cache is None else _cache(self.cache),
            "memory": None if self.memory is None else self.memory.json(),
            "prepared_bytes": sum(found.prepared_bytes for found in checked.found),
            "each": [
                {
                    "record": record.key,
                    "group": record.group,
                    "side": sides.get(record.key),
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
