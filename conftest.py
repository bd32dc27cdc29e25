"""How the tests run in parallel: as many processes as cores and memory allow, which share the cores' threads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
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


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """`-n auto`. `-n 0` runs the tests in pytest's own process, where --pdb works and one test starts at once."""
    cores = len(os.sched_getaffinity(0))
    return max(1, min(cores, MOST, psutil.virtual_memory().total // (GIGABYTES_EACH << 30)))


def pytest_configure(config: pytest.Config) -> None:
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
    # As the Keras engine sets it: some tests import TensorFlow first, which reads it then.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    # One GPU among several processes: none takes all of its memory.
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def _takes_long(item: pytest.Item) -> bool:
    timeout = item.get_closest_marker("timeout")
    return timeout is not None and timeout.args[0] > 600


@pytest.hookimpl(tryfirst=True)  # before `-m` is looked at
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the kill check of our projects' contracts once a week: tests/test_resume.py kills each of them more often.

    Tests with a long timeout come first, so that no process waits for the last one.
    """
    items.sort(key=lambda item: not _takes_long(item))
    for item in items:
        if "[killed_and_resumed_equals_never_killed]" in item.name:
            item.add_marker("weekly")


@pytest.fixture(scope="session")
def forked() -> Iterator[Forked]:
    """Import once what many command lines need: they start in an instant."""
    from runner_core.testing.forked import COMMANDS, TORCH, Forked

    with Forked(os.environ, [*COMMANDS, *(TORCH if find_spec("torch") else ())]) as forked:
        yield forked
