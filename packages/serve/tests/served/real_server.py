"""A real server of a toy in a process of its own, and a client."""

from __future__ import annotations

import http.client
import io
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


@dataclass
class Server:
    process: subprocess.Popen[str]
    port: int
    folder: Path
    """Its TMPDIR."""
    log: Path

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
            got = connection.getresponse()
            return Answer(got.status, {name.lower(): value for name, value in got.getheaders()}, got.read())
        finally:
            connection.close()

    def post(self, body: bytes, name: str = "a.npy", **headers: str) -> Answer:
        return self.ask("POST", f"/predict/{name}", body, **headers)

    def worker(self) -> psutil.Process:
        (found,) = psutil.Process(self.process.pid).children()
        return found


def npy(first: float | None = None) -> bytes:
    """A toy's image as a file; `first` is its first pixel."""
    image = np.random.default_rng(5).normal(0, 0.3, (16, 16)).astype(np.float32)
    image[4:10, 4:10] += 1
    if first is not None:
        image[0, 0] = first
    file = io.BytesIO()
    np.save(file, image)
    return file.getvalue()


@contextmanager
def serving(run: Path, environment: Mapping[str, str], folder: Path, *words: str, **more: str) -> Iterator[Server]:
    """Start a server, and yield it once it listens; it is killed at the end if it still runs."""
    uploads, log = folder / "uploads", folder / "log"
    uploads.mkdir()
    command = [str(Path(sys.executable).with_name("runner")), "toy", "serve", str(run), "--port", "0", *words]
    env = {**environment, "TMPDIR": str(uploads), **more}
    with log.open("w") as errors:
        process = subprocess.Popen(command, env=env, cwd=folder, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r":(\d+)/", line)
        assert found is not None, line + log.read_text()
        yield Server(process, int(found[1]), uploads, log)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.communicate()
