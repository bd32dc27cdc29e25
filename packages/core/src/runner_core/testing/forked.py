"""Start processes in which everything is already imported.

A process that trains with torch imports for seconds, and tests start many. Here one process imports, and forks itself
for each of them. The fork has its own folder, environment, output and end, like a new process.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile

from runner_core.base.interpreter import leave

COMMANDS = ("numpy", "tyro", "yaml", "runner_core.cli.train", "runner_core.cli.evaluate", "runner_core.training.run")
TORCH = ("runner_core.engines.torch.engine", "torch._dynamo", "torch._inductor.config")
"""The last two modules come with the first optimizer, and take as long as torch. TensorFlow cannot be forked."""
_CODE = "from runner_core.testing.forked import serve; serve({0}, {1})"  # spawned workers have no main module to import
_MOST = 1 << 17
"""Largest number of bytes of a request: words, folder, environment."""


class Forked:
    """Runs processes one after another; `environment` is that of the process in which `modules` are imported.

    The forks may have other environments. PYTHONPATH and OMP_NUM_THREADS take effect, but other variables that are read
    while Python starts (PYTHON…) or frameworks are imported do not.
    """

    def __init__(self, environment: Mapping[str, str], modules: Sequence[str]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-c", _CODE.format(theirs.fileno(), [*modules])]
            null = subprocess.DEVNULL
            self._process = subprocess.Popen(
                command, env=dict(environment), stdin=null, stdout=null, pass_fds=[theirs.fileno()]
            )

    def __enter__(self) -> Forked:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._process.wait()

    def run(
        self,
        words: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        timeout: float,
        call: str = "runner_core.cli:main",
    ) -> subprocess.CompletedProcess[str]:
        """Run `runner WORD…` in `folder`, or another function that reads `sys.argv` and returns the exit code.

        Raises subprocess.TimeoutExpired.
        """
        asked = {"call": call, "words": [*words], "folder": str(folder), "environment": dict(environment)}
        request = json.dumps(asked).encode()
        with TemporaryFile() as out, TemporaryFile() as err:
            socket.send_fds(self._socket, [request], [out.fileno(), err.fileno()])
            pid = int(self._answer(None))
            try:
                code = int(self._answer(timeout))
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                self._answer(None)
                raise subprocess.TimeoutExpired(["runner", *words], timeout) from None
            outputs = []
            for file in (out, err):
                file.seek(0)
                outputs.append(file.read().decode())
        return subprocess.CompletedProcess(["runner", *words], code, *outputs)

    def _answer(self, timeout: float | None) -> bytes:
        self._socket.settimeout(timeout)
        answer = self._socket.recv(64)
        if not answer:
            raise RuntimeError(f"the process that forks has ended with {self._process.wait()}")
        return answer


def serve(number: int, modules: Sequence[str]) -> None:
    """Fork for each request that comes through the inherited socket of this number, until it is closed."""
    for name in modules:
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
    become(json.loads(request), files, own)


def become(request: Mapping[str, object], files: Sequence[int], path: Sequence[str]) -> None:
    """Turn this process into the requested one."""
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
    if (torch := sys.modules.get("torch")) and (threads := environment.get("OMP_NUM_THREADS")):
        torch.set_num_threads(int(threads))
    gc.freeze()
    leave(pkgutil.resolve_name(str(request["call"])))
