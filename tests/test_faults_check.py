"""`check` finds faults that are put into the five projects' data, and says nothing of sound ones.

`pytest tests/test_faults_check.py -m ""` ends with a table of them.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from itertools import count
from pathlib import Path

import pytest
import seeded_data
import seeded_tiffs
from faults import PROPERTY, Bench, seeded, sound
from runner_core import BadInput, Json
from runner_core.cli.check import check
from runner_core.data.phantoms import phantom_folder
from runner_core.data.splits import split
from runner_core.plugins import discovery
from runner_core.plugins.manager import Plugins
from seeded_data import REFUSED, Data, DataFault

SEEDED: dict[str, list[DataFault]] = {
    "ssmunet": seeded_data.SSMUNET,
    "brainunet": seeded_data.BRAINUNET,
    "openkbp": seeded_data.OPENKBP,
    "vesuvius": seeded_tiffs.VESUVIUS,
    "dinocell": seeded_tiffs.DINOCELL,
}

ITS_OWN: dict[str, dict[str, int]] = {"dinocell": {"decode": 2}}
"""Findings that are right about a phantom: two of dinocell's images are damaged."""


class Audits:
    """Audits of one project's phantom: of copies of it, each with a fault. `folder`: also the `Bench`'s, which shares
    the phantom."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        plugins = Plugins.load(name, without=tuple(discovery.extensions()))
        kind = plugins.project()
        self._config = kind.presets["demo"]()
        self._config.cache.dir = folder / "cache"
        self._project = kind(self._config)
        self._numbers = count(1)

    def of(self, damage: Callable[[Data], None], settings: Mapping[str, Json]) -> tuple[int, Counter[str]]:
        """Exit code, and how often each rule warned or worse. A refusal before any record is read is of the rule
        `refused`."""
        phantom = phantom_folder(self._project, lambda text: None)
        place = self.folder / f"data-{next(self._numbers)}"
        shutil.copytree(phantom, place)
        try:
            damage(self._data(place))
            return self._check(place, settings)
        finally:
            shutil.rmtree(place)

    def _data(self, place: Path) -> Data:
        records = self._project.records(place)
        sides = split(records, self._config.data, self._config.train.seed)
        return Data(place, {side: [records[number] for number in numbers] for side, numbers in sides.items()})

    def _check(self, place: Path, settings: Mapping[str, Json]) -> tuple[int, Counter[str]]:
        out = place.with_name(f"{place.name}-audit")
        flags = {"preset": "demo", "data": place, "out": out, "cache.dir": self._config.cache.dir, "cache.workers": 1}
        words = [word for name, value in {**flags, **settings}.items() for word in (f"--{name}", str(value))]
        words += [word for name in discovery.extensions() for word in ("--no-extension", name)]
        try:
            code = check(self.name, words)
        except BadInput:  # as `runner` ends
            return REFUSED, Counter(["refused"])
        told = json.loads((out / "check.json").read_text(encoding="utf-8"))["findings"]
        return code, Counter(finding["rule"] for finding in told if finding["level"] != "note")


@pytest.fixture(scope="session")
def audits(benches: Callable[[str], Bench]) -> Callable[[str], Audits]:
    return cache(lambda name: Audits(name, benches(name).folder))


@pytest.mark.parametrize("project, fault", list(seeded(SEEDED, lambda project, rule: project)))
def test_a_fault_is_found(
    audits: Callable[[str], Audits],
    project: str,
    fault: DataFault,
    record_property: Callable[[str, object], None],
) -> None:
    code, told = audits(project).of(fault.damage, fault.settings)
    found = told[fault.rule] > ITS_OWN.get(project, {}).get(fault.rule, 0)
    record_property(PROPERTY, [project, f"check: {fault.name}", fault.rule, "found" if found else "missed"])
    if fault.missed:
        assert not found, f"this is found by now: {fault.missed}"
    else:
        assert found, f"{fault.rule!r} says nothing; said was: {told}"
    assert code == fault.code, told


@pytest.mark.parametrize("project, settings", [*sound(SEEDED)])
def test_sound_data_are_not_warned_of(
    audits: Callable[[str], Audits],
    project: str,
    settings: Mapping[str, Json],
    record_property: Callable[[str, object], None],
) -> None:
    code, told = audits(project).of(lambda data: None, settings)
    silent = told == ITS_OWN.get(project, {})
    record_property(PROPERTY, [project, f"check: none {settings or ''}", "", "silent" if silent else "false alarm"])
    assert silent, told
    assert code == 0
