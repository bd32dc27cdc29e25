"""The command line in a process that may not eat the machine, and that says what it took."""

from __future__ import annotations

import json
import os
import re
import resource
import tempfile
from pathlib import Path

USAGE = "RUNNER_HOSTILE_USAGE"
"""Variable: the file to write the usage into."""
CEILING = 6 << 30
"""Bytes beyond which an allocation fails: a bomb ends in an error of this process, not in one of the machine."""


def main() -> int:
    """Run `runner` with `sys.argv`; write the memory and the CPU time that it took."""
    from runner_core.cli import main as command

    tempfile.tempdir = None  # TMPDIR is this process's own
    before = _status("VmRSS")
    limit = _status("VmData") + CEILING
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    try:
        return command()
    finally:
        own, workers = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
        usage = {
            "growth": max(_status("VmHWM") - before, workers.ru_maxrss << 10),
            "cpu": own.ru_utime + own.ru_stime + workers.ru_utime + workers.ru_stime,
        }
        Path(os.environ[USAGE]).write_text(json.dumps(usage))


def _status(key: str) -> int:
    """Bytes that the kernel counts for this process."""
    found = re.search(rf"^{key}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) << 10
