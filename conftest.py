"""How the tests run in parallel: as many processes as cores and memory allow, which share the cores' threads."""

from __future__ import annotations

import os

import psutil
import pytest

GIGABYTES_EACH = 4
"""A process that has run torch's and TensorFlow's tests holds 3 GB, and starts others."""

MOST = 8
"""More of them wait for the few long tests at the end."""


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """`-n auto`. `-n 0` runs the tests in pytest's own process, where --pdb works and one test starts at once."""
    cores = len(os.sched_getaffinity(0))
    return max(1, min(cores, MOST, psutil.virtual_memory().total // (GIGABYTES_EACH << 30)))


def pytest_configure(config: pytest.Config) -> None:
    workers = len(getattr(config.option, "tx", None) or ())
    if not workers:  # -n 0, or one of the workers: it inherits what follows
        return
    threads = str(max(1, min(4, len(os.sched_getaffinity(0)) // workers)))
    for library in ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "BLOSC_NTHREADS"):
        os.environ.setdefault(library, threads)
    # One GPU among several processes: none takes all of its memory.
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
