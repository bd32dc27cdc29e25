"""Starts one process per device, for `train.devices` of 2 and more.

It passes signals on and ends with the exit code of the first process that failed. `cli.train` decides what the
processes do; torchrun and srun may start them as well.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from runner_core.training.signals import HANDLED
from runner_core.training.team import RENDEZVOUS, PeerLost

_CODE = "import sys; from runner_core.cli import main; sys.exit(main())"
_PATIENCE = 10.0
"""Seconds that the other processes have to notice a failure, and again to end at SIGTERM, before they are killed: a
process that waits for a GPU's answer notices nothing."""
_LOOK = 0.05


def launch(arguments: Sequence[str], count: int) -> int:
    """Run `runner ARGUMENTS` in `count` local processes; return the exit code of the first that fails, else 0."""
    with tempfile.TemporaryDirectory(prefix="runner-") as folder:
        environment = {**os.environ, RENDEZVOUS: str(Path(folder) / "meeting"), "WORLD_SIZE": str(count)}
        environment.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // count)))
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
        processes: list[subprocess.Popen[bytes]] = []
        with _passed_on(processes):
            for number in range(count):
                place = {"RANK": str(number), "LOCAL_RANK": str(number), "LOCAL_WORLD_SIZE": str(count)}
                # In its own process group: this process receives a terminal's Ctrl-C and passes it on once.
                command = [sys.executable, "-c", _CODE, *arguments]
                processes.append(subprocess.Popen(command, env=environment | place, process_group=0))
            return _first_failure(processes)


@contextmanager
def _passed_on(processes: Sequence[subprocess.Popen[bytes]]) -> Iterator[None]:
    """Pass this process's signals on to all of these, and do nothing else; none outlives the context."""

    def pass_on(number: int, frame: FrameType | None) -> None:
        for process in processes:
            process.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in HANDLED}
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()
        for number, handler in before.items():
            signal.signal(number, handler)


def _first_failure(processes: Sequence[subprocess.Popen[bytes]]) -> int:
    """Wait for all processes, and return the exit code of the first that failed.

    Once one has failed, the others get SIGTERM if they do not end by themselves, and then SIGKILL.
    """
    ended: dict[int, int] = {}
    failed_at: float | None = None
    remedies = [signal.SIGTERM, signal.SIGKILL]
    while len(ended) < len(processes):
        for number, process in enumerate(processes):
            if number not in ended and (code := process.poll()) is not None:
                ended[number] = code
                if code and failed_at is None:
                    failed_at = time.monotonic()
        waited = 0.0 if failed_at is None else time.monotonic() - failed_at
        if remedies and waited > _PATIENCE * (3 - len(remedies)):
            remedy = remedies.pop(0)
            for number, process in enumerate(processes):
                if number not in ended:
                    process.send_signal(remedy)
        time.sleep(_LOOK)
    failures = [(number, code) for number, code in ended.items() if code]
    number, code = next((f for f in failures if f[1] != PeerLost.exit_code), (0, failures[0][1] if failures else 0))
    if code >= 0:
        return code
    name = signal.Signals(-code).name
    hint = " (often the system, short of memory: see `dmesg`)" if name == "SIGKILL" else ""
    whole = "the newest checkpoint is whole: --resume goes on from there"
    print(f"runner: process {number} of {len(processes)} was ended by {name}{hint}; {whole}", file=sys.stderr)
    return 128 - code
