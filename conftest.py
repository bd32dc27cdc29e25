"""How the tests run in parallel: as many processes as cores and memory allow, which share the cores' threads.

And how .ci/run runs a test once, though its package is tested alone and in the workspace: by `--write-passed` and
`--leave-out`.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import psutil
import pytest

if TYPE_CHECKING:
    from runner_core.testing.forked import Forked

GIGABYTES_EACH = 4
"""A process that has run torch's and TensorFlow's tests holds 3 GB, and starts others."""

MOST = 8
"""More of them wait for the few long tests at the end."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("once")
    group.addoption("--write-passed", type=Path, metavar="FILE", help="add the names of the tests that pass to FILE")
    group.addoption("--leave-out", type=Path, metavar="FILE", help="leave out the tests that FILE names, if there")


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """`-n auto`. `-n 0` runs the tests in pytest's own process, where --pdb works and one test starts at once."""
    cores = len(os.sched_getaffinity(0))
    return max(1, min(cores, MOST, psutil.virtual_memory().total // (GIGABYTES_EACH << 30)))


def pytest_configure(config: pytest.Config) -> None:
    if config.option.write_passed and not hasattr(config, "workerinput"):  # a worker's reports come to the one process
        config.pluginmanager.register(Passed(config.option.write_passed))
    # No test asserts a time: a busy machine needs long for an example that takes no time on an idle one.
    hypothesis.settings.register_profile(
        "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )
    hypothesis.settings.load_profile("any machine")
    # Tests start hundreds of processes: where nothing is kept, each compiles all of torch or TensorFlow anew.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    workers = len(getattr(config.option, "tx", None) or ())
    if not workers:  # -n 0, or one of the workers: it inherits what follows
        return
    threads = str(max(1, min(4, len(os.sched_getaffinity(0)) // workers)))
    for library in ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "BLOSC_NTHREADS"):
        os.environ.setdefault(library, threads)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that spin while they wait take it from the others
    # As the Keras engine sets it: some tests import TensorFlow first, which reads it then.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    # One GPU among several processes: none takes all of its memory.
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


class Passed:
    """Add the name of each test that passes to a file; a skipped test, or one that is known to fail, is none."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed and not hasattr(report, "wasxfail"):
            with self._file.open("a", encoding="utf-8") as names:
                names.write(f"{report.nodeid}\n")


def _turn(item: pytest.Item) -> int:
    """Return 0 for a test with a long timeout, 1 for a slow one, 2 for all others."""
    timeout = item.get_closest_marker("timeout")
    if timeout is not None and timeout.args[0] > 600:
        return 0
    return 1 if item.get_closest_marker("slow") else 2


LONG_CHECKS = {
    "brainunet": "prepare_settings_name_what_prepare_reads",
    "dinocell": "judgement_fits_together",
    "vesuvius": "prepare_settings_name_what_prepare_reads",
}
"""Checks of our projects' contracts that take more than 10 s."""


@pytest.hookimpl(tryfirst=True)  # before `-m` is looked at
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run the kill check of our projects' contracts once a week: tests/test_resume.py kills each of them more often.

    Long tests come first, so that no process waits for the last one.
    """
    for item in items:
        for project, check in LONG_CHECKS.items():
            if f"packages/{project}/tests/test_contract.py" in item.nodeid and f"[{check}]" in item.name:
                item.add_marker("slow")
    items.sort(key=_turn)
    for item in items:
        if "[killed_and_resumed_equals_never_killed]" in item.name:
            item.add_marker("weekly")
    file = config.option.leave_out
    passed = set(file.read_text("utf-8").splitlines()) if file and file.exists() else set()
    wanted, done = [], []
    for item in items:
        (done if item.nodeid in passed and not item.get_closest_marker("everywhere") else wanted).append(item)
    if done:
        config.hook.pytest_deselected(items=done)
        items[:] = wanted


@pytest.hookimpl(tryfirst=True)  # before the fixtures
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Give a test that draws without a seed of its own the same numbers every time, whatever ran before it."""
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture(scope="session")
def forked() -> Iterator[Forked]:
    """Import once what many command lines need: they start in an instant."""
    from runner_core.testing.forked import COMMANDS, TORCH, Forked

    with Forked(os.environ, [*COMMANDS, *(TORCH if find_spec("torch") else ())]) as forked:
        yield forked
