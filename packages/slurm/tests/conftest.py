"""Fixtures: a toy project, the command line, and a SLURM cluster of two nodes on this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "cluster"))

from real_slurm import Cluster, Runner


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PYTHONPATH in which the core's toy project is installed."""
    folder = tmp_path_factory.mktemp("toy")
    info = folder / "toy-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("[runner.projects]\ntoy = runner_core.testing.toy\n")
    return folder


@pytest.fixture
def environment(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    fixed = {"PYTHONPATH": str(toy), "COLUMNS": "200", "OMP_NUM_THREADS": "1"}
    fixed["XDG_CACHE_HOME"] = str(toy / "cache")
    return {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")} | fixed


@pytest.fixture
def runner(tmp_path: Path, environment: dict[str, str]) -> Runner:
    """`runner("toy", "submit")` runs the command line in an empty folder."""

    def run(*words: str | Path, code: int | None = 0, **more: str) -> subprocess.CompletedProcess[str]:
        command = [str(Path(sys.executable).with_name("runner")), *map(str, words)]
        env = environment | more
        done = subprocess.run(command, cwd=tmp_path, env=env, text=True, capture_output=True, timeout=400, check=False)
        assert code is None or done.returncode == code, done.stdout + done.stderr
        return done

    return run


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A real SLURM; tests are skipped where its programs are not installed."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin"
    if missing := [
        name for name in ("munged", "slurmctld", "slurmd", "sbatch") if shutil.which(name, path=path) is None
    ]:
        pytest.skip(f"SLURM is not installed here: no {', '.join(missing)} (Debian: apt-get install slurm-wlm munge)")
    found = Cluster(tmp_path_factory.mktemp("slurm"))
    try:
        found.start()
    except (AssertionError, OSError) as error:
        found.stop()
        pytest.skip(f"SLURM does not start here: {error}")
    yield found
    found.stop()
