"""An S3 server on this machine, for tests: moto behind a door that can be slow or broken.

    with S3(latency=0.1) as s3:
        s3.put("bucket", "plate/a.tif", data)
        config = RemoteConfig(endpoint=s3.endpoint, retries=2)
        s3.fail("truncated", "a.tif", times=1)

The tests of all packages and the benchmarks share it. It needs moto and flask, listens only on 127.0.0.1, and is gone
after the with-block. It keeps its answers to GET and HEAD in memory, so that a measurement finds the requested latency
and not moto's own.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from contextlib import suppress
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Literal, NamedTuple
from urllib.parse import quote, unquote

Fault = Literal["unavailable", "truncated", "short", "stalled", "dropped", "denied", "missing"]
"""Ways in which a request can fail.

unavailable: 503; truncated: the connection ends in the middle of the body; short: half of the body, sent as if it were
whole; stalled: nothing comes after half of the body; dropped: the connection ends before the answer; denied: 403;
missing: 404.
"""

_AT_ONCE = 128
_STALL = 120.0
_CHUNK = 1 << 16
_REFUSALS = {
    "unavailable": (503, "SlowDown"),
    "denied": (403, "AccessDenied"),
    "missing": (404, "NoSuchKey"),
}
_PER_CONNECTION = ("connection", "transfer-encoding", "content-length", "date", "server")
_SIGNED = "AWS4-HMAC-SHA256 Credential=test/20200101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"


class _Answer(NamedTuple):
    status: int
    headers: list[tuple[str, str]]
    body: bytes


class _Rule:
    def __init__(self, fault: Fault, match: str, times: int | None) -> None:
        self.fault, self.match, self.left = fault, match, times


class S3:
    """The server; `latency` is the seconds before each answer, `rate` the total bytes per second (None: unlimited)."""

    def __init__(self, latency: float = 0.0, rate: float | None = None) -> None:
        self.latency, self.rate = latency, rate
        self.requests: list[tuple[str, str]] = []
        """Method and path with query of every request, in order."""
        self.most_at_once = 0
        """Largest number of requests at the same time."""
        self._rules: list[_Rule] = []
        self._buckets: set[str] = set()
        self._kept: dict[tuple[Any, ...], _Answer] = {}
        self._under_way = 0
        self._sent_until = 0.0
        self._lock = threading.Lock()
        self._ended = threading.Event()

    def __enter__(self) -> S3:
        from moto.server import ThreadedMotoServer

        logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it logs a line per request
        self._moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._moto.start()
        self._moto_address = self._moto.get_host_and_port()
        self._door = _Door(self)
        threading.Thread(target=self._door.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        self.endpoint = f"http://127.0.0.1:{self._door.server_address[1]}"
        self._change("POST", "/moto-api/reset", b"", {})  # moto keeps its buckets in the process
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self._door.shutdown()
        self._door.server_close()
        self._moto.stop()

    def put(self, bucket: str, key: str, data: bytes, public: bool = True) -> None:
        """Store a file; create its bucket if missing. A `public` file may be read without credentials."""
        acl = {"Authorization": _SIGNED, "x-amz-acl": "public-read" if public else "private"}
        if bucket not in self._buckets:
            self._change("PUT", f"/{bucket}", b"", acl)
            self._buckets.add(bucket)
        self._change("PUT", f"/{bucket}/{quote(key)}", data, acl)

    def delete(self, bucket: str, key: str) -> None:
        self._change("DELETE", f"/{bucket}/{quote(key)}", b"", {"Authorization": _SIGNED})

    def fail(self, fault: Fault, match: str = "", times: int | None = None) -> None:
        """Let requests with `match` in their path and query fail: the next `times`, or all."""
        with self._lock:
            self._rules.append(_Rule(fault, match, times))

    def heal(self) -> None:
        """Forget all faults."""
        with self._lock:
            self._rules.clear()

    def count(self, match: str = "") -> int:
        """Return the number of requests so far with `match` in path and query."""
        return sum(match in path for _, path in self.requests)

    # ------------------------------------------------------------ the door's side

    def begun(self, method: str, path: str) -> Fault | None:
        """Note a request, and return its fault, if any."""
        with self._lock:
            self.requests.append((method, path))
            self._under_way += 1
            self.most_at_once = max(self.most_at_once, self._under_way)
            for rule in self._rules:
                if rule.match in unquote(path) and rule.left != 0:
                    rule.left = None if rule.left is None else rule.left - 1
                    return rule.fault
        return None

    def done(self) -> None:
        with self._lock:
            self._under_way -= 1

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> _Answer:
        """Return moto's answer, or its earlier one."""
        asked = (method, path, headers.get("Range"), "Authorization" in headers)
        kept = self._kept.get(asked)
        if kept is None:
            kept = self._ask(method, path, body, headers)
            if method in ("GET", "HEAD"):
                self._kept[asked] = kept
            else:
                self._kept.clear()
        return kept

    def pace(self, size: int) -> None:
        """Wait as long as the link takes for `size` bytes, after those that others are sending."""
        if self.rate is not None:
            with self._lock:
                self._sent_until = max(self._sent_until, time.monotonic()) + size / self.rate
                until = self._sent_until
            self.rest(until - time.monotonic())

    def rest(self, seconds: float) -> None:
        """Sleep, but not beyond the end of the server."""
        self._ended.wait(max(0.0, seconds))

    def _change(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> None:
        self._kept.clear()
        status, _, content = self._ask(method, path, body, headers)
        if status >= 400 and status != 409:  # 409: the bucket is there
            raise RuntimeError(f"{method} {path}: {status} {content.decode(errors='replace')}")

    def _ask(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> _Answer:
        connection = HTTPConnection(*self._moto_address, timeout=60)
        try:
            connection.request(method, path, body, headers)
            reply = connection.getresponse()
            kept = [(n, v) for n, v in reply.getheaders() if n.lower() not in _PER_CONNECTION]
            length = reply.getheader("Content-Length") if method == "HEAD" else None
            return _Answer(reply.status, [*kept, ("Content-Length", length)] if length else kept, reply.read())
        finally:
            connection.close()


class _Door(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = _AT_ONCE

    def __init__(self, s3: S3) -> None:
        self.s3 = s3
        self.places = threading.BoundedSemaphore(_AT_ONCE)
        super().__init__(("127.0.0.1", 0), _Handler)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        with self.places:
            super().process_request_thread(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors of clients that are gone."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Door

    def _handle(self) -> None:
        s3 = self.server.s3
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name.title(): value for name, value in self.headers.items()}
        fault = s3.begun(self.command, self.path)
        self._under_way = True
        try:
            s3.rest(s3.latency)
            if fault in _REFUSALS:
                status, code = _REFUSALS[fault]
                text = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()
                self._send(_Answer(status, [("Content-Type", "application/xml")], text), None)
            elif fault == "dropped":
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
            else:
                self._send(s3.answer(self.command, self.path, headers, body), fault)
        finally:
            self._done()

    def _done(self) -> None:
        """Count the request as done before its last bytes are sent.

        A client that has them may send its next request at once, and is still one request.
        """
        if self._under_way:
            self._under_way = False
            self.server.s3.done()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle

    def _send(self, answer: _Answer, fault: Fault | None) -> None:
        body = answer.body[: len(answer.body) // 2] if fault else answer.body
        self.send_response(answer.status)
        for name, value in answer.headers:
            self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(body if fault == "short" else answer.body)))
        if fault is None and not (body and self.server.s3.rate):
            self._done()
        self.end_headers()
        if self.command != "HEAD":
            view = memoryview(body)
            for begin in range(0, len(body), _CHUNK if self.server.s3.rate else max(1, len(body))):
                part = view[begin : begin + _CHUNK] if self.server.s3.rate else view
                self.server.s3.pace(len(part))
                if begin + len(part) == len(body) and fault is None:
                    self._done()
                self.wfile.write(part)
        if fault == "stalled":
            self.server.s3.rest(_STALL)
        if fault in ("truncated", "stalled"):
            self.close_connection = True
            with suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""
