"""`runner watch [RUN…]`: a page on this machine that follows runs while they train."""

from __future__ import annotations

import secrets
import signal
import threading
from collections.abc import Sequence
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import socket
from typing import Any

from runner_core.base.calling import runner
from runner_core.base.errors import BadInput
from runner_core.cli.arguments import Parser
from runner_core.output.runfolder import RUNS
from runner_core.tools.watch import Watch

_PORT = 8787
_THREADS = 16
_TIMEOUT = 20.0
"""Seconds that a browser may take to send its request or to read the answer."""


def watch(arguments: Sequence[str]) -> int:
    parser = Parser(
        prog="runner watch",
        description="Follow runs in a browser while they train: state, curves, reports with pictures. Reads only.",
    )
    parser.add_argument(
        "runs", nargs="*", type=Path, metavar="RUN", help="run folders, or folders of runs (default: runs, with all)"
    )
    parser.add_argument("--port", type=int, metavar="N", help=f"port on 127.0.0.1 (default: {_PORT}, or a free one)")
    parser.add_argument("--debug", action="store_true", help="show tracebacks of errors")
    options = parser.parse_args(list(arguments))
    if not options.runs and not RUNS.exists():
        raise BadInput(
            f"there is no folder {RUNS} here: go to the folder in which you train, or name a run: {runner()} watch RUN"
        )
    server = _server(Watch(options.runs or [RUNS]), options.port)
    port = server.server_address[1]
    print(f"watching: http://127.0.0.1:{port}/{server.token}/", flush=True)
    print(f"from another machine: ssh -L {port}:127.0.0.1:{port} THIS_MACHINE, then open the same address there")
    print("Ctrl-C ends the watching; the runs go on", flush=True)
    # No KeyboardInterrupt: raised inside a callback of the garbage collector, Python would print and forget it.
    before = signal.signal(signal.SIGINT, lambda *_: threading.Thread(target=server.shutdown).start())
    try:
        server.serve_forever()
        print("\nno longer watching")
    finally:
        signal.signal(signal.SIGINT, before)
        server.server_close()
    return 0


def _server(runs: Watch, port: int | None) -> _Server:
    """Return a server on the port, or without one on the usual port or a free one. Raises BadInput."""
    if port is not None and not 0 <= port < 65536:
        raise BadInput(f"--port {port}: a port lies from 0 to 65535")
    for wanted in (_PORT, 0) if port is None else (port,):
        try:
            return _Server(("127.0.0.1", wanted), runs)
        except OSError as error:
            problem = error.strerror or error
    raise BadInput(f"port {port} of 127.0.0.1 cannot be used: {problem}; name another one with --port, or leave it out")


class _Server(ThreadingHTTPServer):
    """Answers whoever knows the token, with at most `_THREADS` requests at a time."""

    daemon_threads = True
    allow_reuse_address = False

    def __init__(self, address: tuple[str, int], runs: Watch) -> None:
        super().__init__(address, _Handler)
        self.runs, self.token = runs, secrets.token_urlsafe(18)
        self._free = threading.BoundedSemaphore(_THREADS)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            return self.shutdown_request(request)
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: socket | tuple[bytes, socket], client_address: Any) -> None:
        """Say nothing: a browser that went away is no error."""


class _Handler(BaseHTTPRequestHandler):
    """Two addresses: /TOKEN/ is the page of all runs, /TOKEN/run/NUMBER the report of one. No path names a file."""

    server: _Server
    timeout = _TIMEOUT
    server_version, sys_version = "runner", ""

    def do_GET(self) -> None:
        page, status = self._page()
        body = page.encode(errors="backslashreplace")
        self.send_response(status)
        for name, value in {
            "Content-Type": "text/html; charset=utf-8",
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
        }.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET

    def _page(self) -> tuple[str, HTTPStatus]:
        _, token, *rest = [*self.path.partition("?")[0].split("/"), ""][:6]
        if not secrets.compare_digest(token.encode(), self.server.token.encode()):
            return "the address lacks the token that `runner watch` printed\n", HTTPStatus.FORBIDDEN
        try:
            if rest[:2] == ["", ""]:
                return self.server.runs.page(), HTTPStatus.OK
            if rest[0] == "run" and rest[1].isascii() and rest[1].isdigit() and len(rest[1]) < 7 and rest[2:] == [""]:
                found = self.server.runs.report(int(rest[1]))
                if found is not None:
                    return found, HTTPStatus.OK
        except (BadInput, OSError) as error:
            return escape(str(error)), HTTPStatus.INTERNAL_SERVER_ERROR
        return "there is no such page\n", HTTPStatus.NOT_FOUND

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing about each request."""
