"""Fixtures: a trained toy, and a real server of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from runner_core.testing.toy import train_toy

_HELPERS = Path(__file__).parent / "served"
sys.path.insert(0, str(_HELPERS))

from real_server import Server, serving  # noqa: E402


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which the toy of `served_toy` is installed."""
    folder = tmp_path_factory.mktemp("toy")
    info = folder / "toy-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("[runner.projects]\ntoy = served_toy\n")
    path = os.pathsep.join([str(folder), str(_HELPERS)])
    fixed = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "SERVED_FOLDER": str(folder), "COLUMNS": "200"}
    return {**os.environ, **fixed}


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_toy(tmp_path_factory.mktemp("trained"), "serve")


@pytest.fixture(scope="session")
def server(run: Path, environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with one place to wait in and little room; at the end SIGTERM must stop it cleanly."""
    with serving(
        run, environment, tmp_path_factory.mktemp("server"), "--max-megabytes", "0.05", "--queue", "1"
    ) as found:
        yield found
        worker = found.worker()
        found.process.terminate()
        out, _ = found.process.communicate(timeout=60)
        assert (found.process.returncode, out) == (0, "stopped\n")
        assert not worker.is_running()
        assert list(found.folder.glob("runner-*")) == []
