"""Every write, fsync, rename and new file of checkpoints, caches, run folders and stream entries fails in turn, on a
full disk and on a broken one, once and from then on: nothing that was promised is lost, nothing torn passes for whole,
and with room again the work goes on and leaves nothing behind.
"""

from __future__ import annotations

import errno
import shutil
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from runner_core.base.errors import BadInput
from runner_core.output.sinks import Late

sys.path.insert(0, str(Path(__file__).parent / "crash"))
from disk import Disk, Fault
from scenarios import SCENARIOS, WEEKLY

FAULTS = {
    "full": Fault(0, errno.ENOSPC),
    "full from then on": Fault(0, errno.ENOSPC, lasting=True),
    "broken": Fault(0, errno.EIO),
    "broken from then on": Fault(0, errno.EIO, lasting=True),
}
MARKS = {"full": pytest.mark.weekly, "broken from then on": pytest.mark.slow}
KINDS = {"stream": {"resize", "unlink"}, "roomy stream": {"resize"}}
"""What fails besides writes, renames, and new files and folders."""
CASES = [
    pytest.param(name, fault, marks=pytest.mark.weekly if name in WEEKLY else MARKS.get(fault, ()))
    for name in SCENARIOS
    for fault in FAULTS
]


@pytest.mark.parametrize("name, fault", CASES)
def test_an_operation_that_fails_loses_nothing(name: str, fault: str, tmp_path: Path) -> None:
    scenario = SCENARIOS[name]()
    scenario.prepare(tmp_path)
    failed, at = set(), 0
    while True:
        folder = tmp_path / f"failed-{at}"
        folder.mkdir()
        with Disk(folder, replace(FAULTS[fault], at=at)) as disk, suppress(OSError, Late, BadInput):
            scenario.work(folder, disk.mark)  # the command line says what went wrong
        if not disk.failed:
            break
        try:
            with Disk(folder):
                scenario.check(folder, [op.label for op in disk.log if op.kind == "mark"])
        except Exception as error:
            error.add_note(f"operation {at} ({disk.failed}) of {name} failed")
            raise
        failed.add(disk.failed.partition(" ")[0])
        shutil.rmtree(folder)
        at += 1
    assert at > 50
    assert failed >= {"write", "create", "mkdir", "rename", *KINDS.get(name, ())}
