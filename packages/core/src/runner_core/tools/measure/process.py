"""The process in which a trial trains: requests and answers in lines of JSON over pipes, with its memory watched.

Output of frameworks goes into a file; a failure shows its end.
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
from pathlib import Path

from runner_core.base.errors import RunnerError
from runner_core.base.files import size_text
from runner_core.contract import Json
from runner_core.training.launchers import beside_each_other, in_place

_LOOK = 0.5
"""Seconds between two measurements of the process's memory."""
_TOLD = 2000
"""Characters of the process's last output that a failure keeps."""
_PATIENCE = 3.0
"""Seconds that the process may take to end."""


class TrialFailed(RunnerError):
    """Raised if settings cannot be measured.

    `memory` means that memory did not suffice. `output` is the process's last output. `waited` means that it only took
    too long.
    """

    def __init__(self, reason: str, memory: bool = False, output: str = "", waited: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.memory, self.output, self.waited = reason, memory, output, waited


class WorkerProcess:
    """`runner_core.tools.measure.worker` as a process, which ends when it is closed or this process ends.

    The process is stopped when its own host memory (without files that it maps) reaches `memory_bytes`. `say` receives
    its messages before an answer. `variables` are added to its environment.
    """

    def __init__(
        self, memory_bytes: int | None, say: Callable[[str], None], variables: Mapping[str, str] | None = None
    ) -> None:
        self._memory_bytes, self._say = memory_bytes, say
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "runner_core.tools.measure.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._output,
            env={**os.environ, **(variables or {})},
        )
        self._unread = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, what: str, arguments: Mapping[str, Json], timeout: float | None) -> Json:
        """Return the answer to a request within `timeout` seconds; raise TrialFailed, then close the process."""
        self.tell(what, arguments)
        return self.answer(timeout)

    def tell(self, what: str, arguments: Mapping[str, Json]) -> None:
        """Send a request, whose answer `answer` returns; raise TrialFailed."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": what, **arguments}).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise self._ended() from None

    def answer(self, timeout: float | None) -> Json:
        """Return the answer to the request before; raise TrialFailed, also after `timeout` seconds."""
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
        """End the process, so that its memory is free."""
        for pipe in (self._process.stdin, self._process.stdout):  # the process ends when its requests do
            with suppress(OSError):
                pipe.close()  # type: ignore[union-attr]
        try:
            self._process.wait(timeout=_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._output.close()

    def _line(self, until: float | None) -> bytes:
        """Return the next line that the process writes; watch its memory while waiting."""
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        while b"\n" not in self._unread:
            if not select.select([pipe], [], [], _LOOK)[0]:
                self._refuse_more_memory()
                if until is not None and time.monotonic() > until:
                    raise TrialFailed("took longer than there is time for", output=self._printed(), waited=True)
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
        """Return why the process is gone."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=_PATIENCE)
        code, output = self._process.returncode, self._printed()
        if code is not None and code < 0:
            name = signal.Signals(-code).name
            short = name == "SIGKILL"
            hint = " (the system often does this when memory runs out: see `dmesg`)" if short else ""
            return TrialFailed(f"killed by {name}{hint}", short, output)
        last = output.strip().splitlines()
        return TrialFailed(f"ended with exit code {code}{f': {last[-1]}' if last else ''}", output=output)

    def _printed(self) -> str:
        """Return the end of the process's output."""
        self._output.seek(0, os.SEEK_END)
        self._output.seek(max(0, self._output.tell() - _TOLD))
        return self._output.read().decode(errors="replace")


class Crew:
    """The other processes of a trial on several devices, and this one's place as the first of `count`.

    Each gets every request, so that all take the same steps. `folder` is where they meet.
    """

    def __init__(self, count: int, folder: Path) -> None:
        os.environ.update(beside_each_other(count, folder / "meeting"))
        self._others = [WorkerProcess(None, lambda text: None, in_place(number, count)) for number in range(1, count)]
        os.environ.update(in_place(0, count))

    def tell(self, what: str, arguments: Mapping[str, Json]) -> None:
        for other in self._others:
            other.tell(what, arguments)

    def settle(self) -> None:
        """Wait until all have answered; raise the first one's TrialFailed."""
        for other in self._others:
            other.answer(None)

    def failure(self, error: Exception) -> Exception:
        """Return why this process failed: the reason of another one if that failed first."""
        for other in self._others:
            try:
                other.answer(_PATIENCE)
            except TrialFailed as failure:
                if not failure.waited:
                    return failure
        return error


def own_memory(pid: int) -> int:
    """Return the private RAM (bytes) of a process and its children, 0 if it is gone.

    Shared memory and mapped files do not count.
    """
    import psutil

    total = 0
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        for one in [process, *process.children(recursive=True)]:
            with suppress(psutil.Error):
                held = one.memory_info()
                total += max(0, held.rss - getattr(held, "shared", 0))
    return total
