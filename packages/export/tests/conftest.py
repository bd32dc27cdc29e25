"""Fixtures: a trained toy, installed by its metadata, and its exports."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from runner_core import Run
from runner_core.testing.toy import train_toy

_HELPERS = Path(__file__).parent / "toys"
sys.path.insert(0, str(_HELPERS))


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder on the path, in which the toy of `export_toy` is installed."""
    folder = tmp_path_factory.mktemp("toy")
    info = folder / "toy-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("[runner.projects]\ntoy = export_toy\n")
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))


@pytest.fixture(scope="session")
def run(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(train_toy(tmp_path_factory.mktemp("trained"), "export"))


@pytest.fixture(scope="session")
def exported(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`exported(format)` returns a folder with the toy's export; do not change it."""
    found: dict[str, Path] = {}

    def export(name: str) -> Path:
        if name not in found:
            found[name] = tmp_path_factory.mktemp(name) / "out"
            run.export(found[name], to=name)
        return found[name]

    return export
