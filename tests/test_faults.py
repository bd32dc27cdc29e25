"""Faults that are put into the five real projects are found, and sound trainings of the same length are silent.

`pytest tests/test_faults.py -m ""` ends with a table of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import seeded_brainunet
import seeded_dinocell
import seeded_openkbp
import seeded_ssmunet
import seeded_vesuvius
from faults import PROPERTY, Bench, Fault, seeded, sound

SEEDED: dict[str, list[Fault]] = {
    "brainunet": seeded_brainunet.FAULTS,
    "ssmunet": seeded_ssmunet.FAULTS,
    "openkbp": seeded_openkbp.FAULTS,
    "vesuvius": seeded_vesuvius.FAULTS,
    "dinocell": seeded_dinocell.FAULTS,
}


OF_THE_ENGINE = {
    "gradients clipped",
    "learning rate zero",
    "precision",
    "saved is not validated",
    "splits",
    "weights unchanged",
}
"""Rules that find the same in every project of an engine, because they ask nothing of the project."""


def judge(project: str, rule: str) -> str:
    if rule not in OF_THE_ENGINE:
        return project
    return "keras" if project == "openkbp" else "torch"


@pytest.mark.parametrize("project, fault", list(seeded(SEEDED, judge)))
def test_a_fault_is_found(
    benches: Callable[[str], Bench], project: str, fault: Fault, record_property: Callable[[str, object], None]
) -> None:
    found = benches(project).findings({**fault.settings, **fault.wrong}, fault.inject, fault.rule)
    told = any(finding.rule == fault.rule for finding in found)
    record_property(PROPERTY, [project, fault.name, fault.rule, "found" if told else "missed"])
    if fault.missed:
        assert not told, f"this is found by now: {fault.missed}"
    else:
        assert told, f"{fault.rule!r} says nothing; said was: {found}"


@pytest.mark.parametrize("project, settings", list(sound(SEEDED)))
def test_a_sound_training_is_silent(
    benches: Callable[[str], Bench],
    project: str,
    settings: Mapping[str, Any],
    record_property: Callable[[str, object], None],
) -> None:
    """Findings that follow from the clock do not count: this machine may be slow."""
    bench = benches(project)
    found = [finding for finding in bench.findings(settings) if not finding.timed]
    record_property(PROPERTY, [project, f"none {settings or ''}", "", "false alarm" if found else "silent"])
    assert bench.summary["status"] == "done", bench.summary["reason"]
    assert not found
