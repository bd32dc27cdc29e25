"""Fixtures of the tests that cross packages: the command line in a subprocess, and the real data if it is there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import hostile
import pytest
from faults import PROPERTY, Bench, table
from workspace import SHARED, Runner


@pytest.fixture
def real_brains() -> Path:
    """Folder of real T1 scans with brain masks; the test is skipped where it is absent."""
    folder = SHARED / "brainunet"
    if not folder.is_dir():
        pytest.skip(f"no real scans at {folder} (set RUNNER_TEST_DATA to the folder that holds brainunet/)")
    return folder


@pytest.fixture
def real_patients() -> Path:
    """Folder of real OpenKBP patients (train-pats, validation-pats); the test is skipped where it is absent."""
    folder = SHARED / "openkbp"
    if not folder.is_dir():
        pytest.skip(f"no real patients at {folder} (set RUNNER_TEST_DATA to the folder that holds openkbp/)")
    return folder


@pytest.fixture
def real_plate() -> Path:
    """Folder of real Cell Painting (3 wells, 2 sites, 5 channels, uint16); the test is skipped where it is absent."""
    folder = SHARED / "dinocell" / "plate1"
    if not folder.is_dir():
        pytest.skip(f"no real images at {folder} (set RUNNER_TEST_DATA to the folder that holds dinocell/)")
    return folder


@pytest.fixture(scope="session")
def cache_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache folder for the session, so that the phantom is made and prepared once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def runner(tmp_path: Path, cache_home: Path, request: pytest.FixtureRequest) -> Runner:
    """`runner("list")` runs a command line in an empty folder and returns the finished process. `fresh`, or with
    variables that Python reads when it starts: the installed console script, which imports everything itself."""

    def run(
        *words: str | Path, timeout: float = 540, fresh: bool = False, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "XDG_CACHE_HOME": str(cache_home), "COLUMNS": "200", **environment}
        if not fresh and not any(name.startswith("PYTHON") for name in environment):
            return request.getfixturevalue("forked").run([*map(str, words)], tmp_path, env, timeout)
        command = [str(Path(sys.executable).with_name("runner")), *map(str, words)]
        return subprocess.run(
            command, cwd=tmp_path, env=env, text=True, capture_output=True, timeout=timeout, check=False
        )

    return run


@pytest.fixture(scope="session")
def benches(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Bench]:
    """`benches("brainunet")`: its short trainings (`faults`), all of which share one phantom and cache."""
    return cache(lambda name: Bench(name, tmp_path_factory.mktemp(f"faults-{name}")))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The seeded faults that were looked for and found, and the hostile cases."""
    reports = [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]
    for title, lines in ((PROPERTY, table), (hostile.PROPERTY, hostile.table)):
        if rows := [value for report in reports for name, value in report.user_properties if name == title]:
            terminalreporter.section(f"{title}s")
            for line in lines(rows):
                terminalreporter.write_line(line)
