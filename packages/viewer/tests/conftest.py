"""Fixtures: a trained toy that shows layers, installed for this process and for those that it starts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from runner_core.testing.toy import train_toy


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Install the toy; the environment in which other processes find it."""
    folder = tmp_path_factory.mktemp("toy")
    info = folder / "toy-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("[runner.projects]\ntoy = viewed_toy\n")
    places = [str(folder), str(Path(__file__).parent)]
    with pytest.MonkeyPatch.context() as patch:
        for place in places:
            patch.syspath_prepend(place)
        yield {**os.environ, "PYTHONPATH": os.pathsep.join(places), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}


@pytest.fixture(scope="session")
def run(toy: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_toy(tmp_path_factory.mktemp("trained"), "viewer")
