"""Write the audit as a page and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path

from runner_core.base.files import size_text
from runner_core.base.text import about, counted, shape_text
from runner_core.base.writing import replace_json, replace_text
from runner_core.contract.records import AnyRecord
from runner_core.output.report.page import page, section, table
from runner_core.tools.check.audit import Audit

_ROWS = 200
_FINDINGS = 50
"""Largest number of findings of each level."""
_STATUS = {"ready": ("done", "ready to train"), "refused": ("failed", "training refuses it")}


def write_audit(audit: Audit, folder: Path) -> Path:
    """Write check.json and report.html into `folder`, each whole or not at all; return the page's path."""
    replace_json(folder / "check.json", audit.to_json())
    replace_text(folder / "report.html", render(audit))
    return folder / "report.html"


def render(audit: Audit) -> str:
    """Return the page as HTML text."""
    kind, status = _STATUS[audit.status]
    groups = counted(len({record.group for record in audit.records}), "group")
    head = (
        f'<header><h1>{escape(audit.project)} data <span class="status {kind}">{status}</span></h1>'
        f"<p>{escape(audit.data)}: {counted(len(audit.records), 'record')} in {groups} · preset "
        f"{escape(audit.preset)}</p></header>"
    )
    body = [
        head,
        section("Findings", "".join(_findings(audit))),
        section("The data", "".join(table(t.title, t.columns, t.rows, t.name) for t in audit.tables)),
        section("Split and cache", "".join(f"<p>{escape(line)}</p>" for line in audit.lines)),
        section("Records", _records(audit)),
    ]
    return page(f"{audit.project}: {audit.data}", "".join(body))


def _findings(audit: Audit) -> Iterator[str]:
    """Yield the findings, the worst level first."""
    if not audit.findings:
        yield '<p class="finding good">No finding: nothing looks wrong.</p>'
    for level in ("error", "warning", "note"):
        own = [(key, finding) for key, finding in audit.findings if finding.level == level]
        for key, finding in own[:_FINDINGS]:
            text = finding.message if key is None else about(key, finding.message)
            yield f'<p class="finding {level}"><b>{level}: {escape(finding.rule)}</b> {escape(text)}</p>'
        if len(own) > _FINDINGS:
            yield f"<p>… {counted(len(own) - _FINDINGS, f'{level} more', f'{level}s more')} in check.json</p>"


def _records(audit: Audit) -> str:
    """Return a table of the records, the unusable ones first."""
    order = sorted(audit.records, key=lambda record: audit.found[record.key].usable)
    more = f"<p>… {len(order) - _ROWS:,} more in check.json</p>" if len(order) > _ROWS else ""
    columns = ("record", "group", "split", "shape", "spacing (mm)", "files", "prepared", "annotated", "findings")
    rows = [_row(audit, record) for record in order[:_ROWS]]
    return table("One by one", columns, rows, "records") + more


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
