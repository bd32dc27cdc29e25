"""`runner PROJECT check --with RUN`: judge the labels by networks that never saw them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from runner_core.base.progress import record_bar
from runner_core.base.text import counted
from runner_core.cli.ensembles import label, load_ensemble, seen_by
from runner_core.cli.options import CheckOptions
from runner_core.cli.start import Started
from runner_core.contract import Finding
from runner_core.output.report.page import Block, lines
from runner_core.output.runfolder import tool_folder
from runner_core.tools.check.audit import Auditor
from runner_core.tools.labels.judge import WrongLabels
from runner_core.tools.labels.search import judged, refuse_unable
from runner_core.tools.labels.shown import MAPS, RULE, findings, notes, pictures, table, write_csv


@dataclass(frozen=True)
class Found:
    """Records by how suspicious their labels are, blocks for the report, and the folder for it."""

    found: WrongLabels
    blocks: Sequence[Block]
    folder: Path


def find_wrong_labels(members: Sequence[Started[CheckOptions]], auditor: Auditor) -> Found:
    """Judge the usable records, show and report the worst, and write the table."""
    setup, records = members[0].setup, auditor.checked.records
    ensemble, checkpoints = load_ensemble(members)
    refuse_unable(ensemble)
    folder = members[0].options.out or tool_folder(setup.name, "check", None)
    print(f"judging the labels of {counted(len(records), 'record')} with {label(members, checkpoints)}")
    _, seen = seen_by(members, auditor.records, records)
    ensemble = ensemble.knowing(seen)
    with (
        record_bar("predicting", len(records), sys.stdout) as bar,
        judged(ensemble, records, folder, bar) as (found, usual),
    ):
        drawn = [*pictures(found, ensemble, usual, folder / MAPS)]
    shown = table(found)
    if found.judged:
        print(f"{shown.title}:", *lines([shown]), sep="\n")
    for key, finding in findings(found):
        auditor.report(finding, key)
    for finding in notes(found):
        auditor.report(finding)
    for text in dict.fromkeys(note for one in seen for note in one.notes):
        auditor.report(Finding(RULE, "note", text))
    print(f"written: {write_csv(found, folder)}")
    return Found(found, [shown, *drawn] if found.judged else [], folder)
