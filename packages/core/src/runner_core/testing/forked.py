"""Command lines of `runner` in processes that begin with everything imported.

A process that trains with torch imports for seconds; tests start many. Here one process imports, and forks itself for
each command: it has folder, environment, output and end of its own, as one that was started anew.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile

_CODE = "from runner_core.testing.forked import serve; serve({0})"  # -c: spawned workers have no main module to import
_MODULES = ("numpy", "tyro", "yaml", "runner_core.cli.train", "runner_core.cli.evaluate", "runner_core.training")
_WITH_TORCH = ("runner_core.engines.torch.engine", "torch._dynamo", "torch._inductor.config")
"""The last two come with the first optimizer, and take as long as torch."""
_MOST = 1 << 17
"""Bytes of a request: words, folder, environment."""


class Forked:
    """Runs command lines one after another; `environment`: that of the process in which everything is imported.

    Commands may have others, but for what is read while Python starts or frameworks are imported: numbers of threads,
    and what begins with PYTHON, PYTHONPATH apart."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-c", _CODE.format(theirs.fileno())]
            null = subprocess.DEVNULL
            self._process = subprocess.Popen(
                command, env=dict(environment), stdin=null, stdout=null, pass_fds=[theirs.fileno()]
            )

    def run(
        self, words: Sequence[str], folder: Path, environment: Mapping[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """`runner WORD…` in `folder`. Raises subprocess.TimeoutExpired."""
        request = json.dumps({"words": list(words), "folder": str(folder), "environment": dict(environment)}).encode()
        with TemporaryFile() as out, TemporaryFile() as err:
            socket.send_fds(self._socket, [request], [out.fileno(), err.fileno()])
            pid = int(self._answer(None))
            try:
                code = int(self._answer(timeout))
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                self._answer(None)
                raise subprocess.TimeoutExpired(["runner", *words], timeout) from None
            said = []
            for file in (out, err):
                file.seek(0)
                said.append(file.read().decode())
        return subprocess.CompletedProcess(["runner", *words], code, *said)

    def _answer(self, timeout: float | None) -> bytes:
        self._socket.settimeout(timeout)
        answer = self._socket.recv(64)
        if not answer:
            raise RuntimeError(f"the process that forks has ended with {self._process.wait()}")
        return answer

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


def serve(number: int) -> None:
    """Fork for each request that comes through the inherited socket of this number, until it is closed."""
    for name in (*_MODULES, *(_WITH_TORCH if find_spec("torch") else ())):
        importlib.import_module(name)
    own = [entry for entry in sys.path if entry not in os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    with socket.socket(fileno=number) as requests:
        while True:
            request, files, _, _ = socket.recv_fds(requests, _MOST, 2)
            if not request:
                return
            pid = os.fork()
            if not pid:
                break
            for file in files:
                os.close(file)
            requests.send(str(pid).encode())
            requests.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())
    _become(json.loads(request), files, own)


def _become(request: Mapping[str, object], files: Sequence[int], path: Sequence[str]) -> None:
    """This process is from now on the one that was asked for."""
    words, environment = request["words"], request["environment"]
    assert isinstance(words, list)
    assert isinstance(environment, dict)
    for file, standard in zip(files, (1, 2), strict=True):
        os.dup2(file, standard)
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(str(request["folder"]))
    sys.path[:] = [*filter(None, environment.get("PYTHONPATH", "").split(os.pathsep)), *path]
    sys.argv = ["runner", *words]
    importlib.invalidate_caches()
    from runner_core.cli import main

    sys.exit(main())
