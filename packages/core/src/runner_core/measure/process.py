"""A worker process of a trial, as its parent sees it: lines of JSON over pipes, and an eye on what it takes.

Whatever frameworks print goes into a file, of which a failure shows the end.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from runner_core._errors import RunnerError
from runner_core._files import size_text
from runner_core.protocols import Json

_LOOK = 0.5
"""Seconds between two looks at the memory that the process takes."""
_TOLD = 2000
"""Characters of what the process printed last that a failure keeps."""
_PATIENCE = 3.0
"""Seconds that it may take to end."""
_MOST_REST = 2.0
"""Seconds to wait for threads and processes that fill batches ahead."""


class TrialFailed(RunnerError):
    """These settings cannot be measured. `memory`: it was too little; `output`: what the process printed last."""

    def __init__(self, reason: str, memory: bool = False, output: str = "") -> None:
        super().__init__(reason)
        self.reason, self.memory, self.output = reason, memory, output


class WorkerProcess:
    """`runner_core.measure.worker`, started. It ends when it is closed, and when this process ends, however.

    `memory_bytes`: host memory of its own (without files that it maps) at which it is ended; `say` is told what it has
    to tell before it answers.
    """

    def __init__(self, memory_bytes: int | None, say: Callable[[str], None]) -> None:
        self._memory_bytes, self._say = memory_bytes, say
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "runner_core.measure.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._output,
        )
        self._unread = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, what: str, arguments: Mapping[str, Json], timeout: float | None) -> Json:
        """The answer to a request, within `timeout` seconds. Raises TrialFailed, after which it must be closed."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": what, **arguments}).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise self._ended() from None
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            match json.loads(self._line(until)):
                case {"say": text}:
                    self._say(text)
                case {"failed": reason, "memory": memory}:
                    raise TrialFailed(reason, memory, self._printed())
                case {"answer": answer}:
                    return answer

    def close(self) -> None:
        """Its memory is free afterwards."""
        for pipe in (self._process.stdin, self._process.stdout):  # it ends when its requests do
            with suppress(OSError):
                pipe.close()  # type: ignore[union-attr]
        try:
            self._process.wait(timeout=_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._output.close()

    def _line(self, until: float | None) -> bytes:
        """The next line that the process writes. Watches its memory while it waits."""
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        while b"\n" not in self._unread:
            if not select.select([pipe], [], [], _LOOK)[0]:
                self._refuse_more_memory()
                if until is not None and time.monotonic() > until:
                    raise TrialFailed("took longer than there is time for", output=self._printed())
                continue
            if not (more := os.read(pipe, 1 << 16)):
                raise self._ended()
            self._unread += more
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _refuse_more_memory(self) -> None:
        if self._memory_bytes is not None and (taken := own_memory(self.pid)) > self._memory_bytes:
            limit = size_text(self._memory_bytes)
            raise TrialFailed(f"took {size_text(taken)} of memory, more than the {limit} it may", memory=True)

    def _ended(self) -> TrialFailed:
        """Why the process is gone."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=_PATIENCE)
        code, output = self._process.returncode, self._printed()
        if code is not None and code < 0:
            name = signal.Signals(-code).name
            short = name == "SIGKILL"
            hint = " (often the system, short of memory: see `dmesg`)" if short else ""
            return TrialFailed(f"killed by {name}{hint}", short, output)
        last = output.strip().splitlines()
        return TrialFailed(f"ended with exit code {code}{f': {last[-1]}' if last else ''}", output=output)

    def _printed(self) -> str:
        """The end of what the process printed."""
        self._output.seek(0, os.SEEK_END)
        self._output.seek(max(0, self._output.tell() - _TOLD))
        return self._output.read().decode(errors="replace")


def own_memory(pid: int) -> int:
    """Bytes of RAM that a process and those below it hold now for themselves: without what they share, and without the
    files that they map. 0 of one that is gone."""
    import psutil

    total = 0
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        for one in [process, *process.children(recursive=True)]:
            with suppress(psutil.Error):
                held = one.memory_info()
                total += max(0, held.rss - getattr(held, "shared", 0))
    return total


def rest() -> None:
    """Wait until what fills batches ahead in this process, and below it, has nothing more to do: others have their turn
    now."""
    until = time.monotonic() + _MOST_REST
    before = _processor_seconds()
    while time.monotonic() < until:
        time.sleep(0.02)
        now = _processor_seconds()
        if now - before < 0.005:
            return
        before = now


def _processor_seconds() -> float:
    """Of this process and those below it."""
    import psutil

    total, process = 0.0, psutil.Process()
    for one in [process, *process.children(recursive=True)]:
        with suppress(psutil.Error):
            used = one.cpu_times()
            total += used.user + used.system
    return total
