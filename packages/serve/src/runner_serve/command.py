"""`runner PROJECT serve`: the flags, the token, the listening socket."""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
import math
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from runner_core import BadInput, ParsedCommand, parse_command
from tyro.conf import Suppress

from runner_serve.app import Limits, Service, facts_text
from runner_serve.worker import Worker

TOKEN = "RUNNER_SERVE_TOKEN"
"""Variable of the environment with the token."""
_SHORTEST_TOKEN = 16
_CONNECTIONS = 64
"""Most connections; further ones get 503."""
_LAST_SECONDS = 10
"""Time that requests have to end when the server is stopped."""


@dataclass(kw_only=True)
class Flags:
    """Serve a run's network over HTTP: POST a file, get the files that `predict` writes.

    For programs on this machine, and with a token for those in a lab's network. It is not made for the internet.
    """

    host: str = "127.0.0.1"
    """Address to listen on. Another than this machine's own needs a token, in the variable RUNNER_SERVE_TOKEN."""
    port: int = 8600
    """Port; 0 takes a free one, which is printed."""
    max_megabytes: float = 1000.0
    """Largest upload (MB), and the most that an uploaded archive may hold."""
    timeout_seconds: float = 600.0
    """Longest time for an upload, and for a prediction; its process is then killed."""
    queue: int = 4
    """Requests that may wait while another is predicted; further ones get 503."""
    inputs: Suppress[tuple[str, ...]] = ()
    out: Suppress[Path] = Path()
    part: Suppress[str] = ""
    disagreement: Suppress[bool] = False
    label_tables: Suppress[bool] = False
    """Flags of predict that name what a client sends here, or what it gets."""


def serve(project: str, parser: argparse.ArgumentParser, words: Sequence[str]) -> int:
    """Serve a trained network over HTTP: send a file, get the files that predict writes."""
    parsed = parse_command(project, "predict", words, flags=Flags, extension="serve", prog=parser.prog)
    flags: Flags = parsed.options
    _refuse_wrong(flags)
    token = _token(flags.host)
    listening = _listen(flags.host, flags.port)
    with listening, _private_folder() as folder:
        limits = Limits(int(flags.max_megabytes * 1e6), flags.timeout_seconds, flags.queue)
        asyncio.run(_serve(Worker(_about(parsed, limits, folder)), limits, folder, token, flags.host, listening))
    print("stopped")
    return 0


def _refuse_wrong(flags: Flags) -> None:
    """Raise BadInput for a number that cannot be meant."""
    for name, value, right in (
        ("port", flags.port, 0 <= flags.port <= 65535),
        ("max-megabytes", flags.max_megabytes, 0 < flags.max_megabytes < math.inf),
        ("timeout-seconds", flags.timeout_seconds, 0 < flags.timeout_seconds < math.inf),
        ("queue", flags.queue, flags.queue >= 0),
    ):
        if not right:
            raise BadInput(f"--{name} {value}: this number cannot be used")


def _about(parsed: ParsedCommand, limits: Limits, folder: Path) -> dict[str, object]:
    """Return what the process with the network is told, as JSON can hold it."""
    options = {
        name: [str(one) if isinstance(one, Path) else one for one in value] if isinstance(value, tuple) else value
        for name, value in parsed.keywords().items()
    }
    run = str(Path(parsed.options.run).expanduser())
    about = {"run": run, "project": parsed.project, "options": options}
    return {**about, "most_bytes": limits.bytes, "folder": str(folder)}


def _token(host: str) -> str | None:
    """Return the token that clients must send. Raises BadInput if there is none and others can reach the server."""
    token = os.environ.get(TOKEN, "")
    if token and (len(token) < _SHORTEST_TOKEN or not token.isascii()):
        raise BadInput(f"{TOKEN} must have at least {_SHORTEST_TOKEN} letters and digits (openssl rand -hex 24)")
    if not token and not _is_local(host):
        raise BadInput(f"--host {host}: others could use this server: set {TOKEN} to a token (openssl rand -hex 24)")
    return token or None


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listen(host: str, port: int) -> socket.socket:
    """Return a bound socket; nothing is accepted before the network is loaded. Raises BadInput if it is taken."""
    try:
        family, kind, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except (OSError, OverflowError) as error:
        raise BadInput(f"--host {host} --port {port}: {getattr(error, 'strerror', None) or error}") from error
    return listening


@contextmanager
def _private_folder() -> Iterator[Path]:
    """Yield a folder for uploads that nobody else can read, and remove it."""
    folder = Path(tempfile.mkdtemp(prefix="runner-serve-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _serve(
    worker: Worker, limits: Limits, folder: Path, token: str | None, given: str, listening: socket.socket
) -> None:
    """Load the network, listen, and return once a signal has stopped the server and all of its requests."""
    try:
        await worker.start()
        app = Service(worker, limits, folder, token, given).app()
        config = uvicorn.Config(
            app, loop="asyncio", http="h11", ws="none", lifespan="off", log_level="warning", access_log=False,
            server_header=False, limit_concurrency=_CONNECTIONS, timeout_graceful_shutdown=_LAST_SECONDS,
        )  # fmt: skip
        host, port = listening.getsockname()[:2]
        place = f"[{host}]" if ":" in host else host
        listening.listen()
        print(f"{facts_text(worker.facts)}: http://{place}:{port}/ (Ctrl-C stops it)", flush=True)
        for number in (signal.SIGINT, signal.SIGTERM):  # uvicorn raises them again once it has stopped
            signal.signal(number, lambda *_: None)
        await uvicorn.Server(config).serve(sockets=[listening])
    finally:
        await worker.stop()
