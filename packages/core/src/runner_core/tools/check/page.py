"""Write the audit as a page and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from runner_core.base.files import size_text
from runner_core.base.text import about, counted, shape_text
from runner_core.base.writing import replace_json, replace_text
from runner_core.contract.records import AnyRecord, Table
from runner_core.output.report.page import Block, Note, Page, html
from runner_core.tools.check.audit import Audit

_ROWS = 200
_FINDINGS = 50
"""Largest number of findings of each level."""
_STATUS = {"ready": ("done", "ready to train"), "refused": ("failed", "training refuses it")}


def write_audit(audit: Audit, folder: Path, pictures: Sequence[Block] = (), wrong_labels: Sequence[Block] = ()) -> Path:
    """Write check.json and report.html into `folder`, each whole or not at all; return the page's path."""
    replace_json(folder / "check.json", audit.to_json())
    replace_text(folder / "report.html", render(audit, pictures, wrong_labels))
    return folder / "report.html"


def render(audit: Audit, pictures: Sequence[Block] = (), wrong_labels: Sequence[Block] = ()) -> str:
    """Return the page as HTML text."""
    groups = counted(len({record.group for record in audit.records}), "group")
    where = f"{audit.data}: {counted(len(audit.records), 'record')} in {groups} · preset {audit.preset}"
    return html(
        Page(
            f"{audit.project}: {audit.data}",
            f"{audit.project} data",
            [Note(where)],
            [
                ("Findings", [*_findings(audit)]),
                ("Wrong labels", wrong_labels),
                ("Pictures", pictures),
                ("The data", audit.tables),
                ("Split and cache", [Note(line) for line in audit.lines]),
                ("Records", [*_records(audit)]),
            ],
            ("failed", "has copies in two groups") if audit.only_leaks else _STATUS[audit.status],
        )
    )


def _findings(audit: Audit) -> Iterator[Block]:
    """Yield the findings, the worst level first."""
    if not audit.findings:
        yield Note("No finding: nothing looks wrong.", "good")
    for level in ("error", "warning", "note"):
        own = [(key, finding) for key, finding in audit.findings if finding.level == level]
        for key, finding in own[:_FINDINGS]:
            text = finding.message if key is None else about(key, finding.message)
            yield Note(text, level, f"{level}: {finding.rule}")
        if len(own) > _FINDINGS:
            yield Note(f"… {counted(len(own) - _FINDINGS, f'{level} more', f'{level}s more')} in check.json")


def _records(audit: Audit) -> Iterator[Block]:
    """Yield a table of the records, the unusable ones first."""
    order = sorted(audit.records, key=lambda record: audit.found[record.key].usable)
    columns = ("record", "group", "split", "shape", "spacing (mm)", "files", "prepared", "annotated", "findings")
    yield Table("records", "One by one", columns, [_row(audit, record) for record in order[:_ROWS]])
    if len(order) > _ROWS:
        yield Note(f"… {len(order) - _ROWS:,} more in check.json")


def _row(audit: Audit, record: AnyRecord) -> list[str]:
    found = audit.found[record.key]
    split = audit.split_of(record.key) if found.usable else "cannot be used"
    findings = sum(finding.level != "note" for finding in found.findings)
    row = [record.key, record.group, split]
    if (facts := found.facts) is None:
        return [*row, *5 * [""], str(findings)]
    annotated = ""
    if (labels := facts.annotation) is not None and labels.ignored is not None:
        annotated = f"{labels.annotated / max(1, labels.annotated + labels.ignored):.1%}"
    spacing = "" if all(mm == 1 for mm in facts.spacing) else " × ".join(f"{mm:.3g}" for mm in facts.spacing)
    sizes = size_text(facts.file_bytes), size_text(found.prepared_bytes)
    return [*row, shape_text(facts.shape), spacing, *sizes, annotated, str(findings)]
