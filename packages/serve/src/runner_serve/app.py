"""HTTP: `GET /`, `GET /health` and `POST /predict/NAME`, within limits of size, time and number."""

from __future__ import annotations

import asyncio
import hmac
import math
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner_core import BadInput, RunnerError, size_text
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from runner_serve.worker import Gone, Hung, Worker

_DOUBLE = re.compile(r"(\.[a-z]{1,8})?\.[a-z0-9]{1,8}\Z")
_JOINED = (".nii.gz", ".csv.gz", ".ome.tif", ".ome.tiff")
"""Endings of two parts."""
_LOCAL_NAMES = ("127.0.0.1", "localhost", "[::1]")
"""What programs on this machine call it."""


@dataclass(frozen=True)
class Limits:
    """The limits of a request, and the number of requests that may wait."""

    bytes: int
    """Of an upload, and of what an archive holds."""
    seconds: float
    """Of an upload, of a prediction, and of the answer's way back: of each."""
    waiting: int
    """Requests that wait while another is predicted."""


class Refused(Exception):
    """A request that is answered with a status and one sentence."""

    def __init__(self, status: int, text: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.status, self.text, self.headers = status, text, dict(headers or {})


class Service:
    """The application's state: the worker, the places for requests, the folder for uploads."""

    def __init__(self, worker: Worker, limits: Limits, folder: Path, token: str | None, host: str) -> None:
        self._worker, self._limits, self._folder, self._token = worker, limits, folder, token
        self._names = (*_LOCAL_NAMES, host)
        self._taken = 0
        self._last_seconds = 1.0

    def app(self) -> ASGIApp:
        """Return the application."""
        routes = [
            Route("/", self._about, methods=["GET"]),
            Route("/health", self._health, methods=["GET"]),
            Route("/predict/{name:path}", _Endpoint(self), methods=["POST"]),
        ]
        return Starlette(routes=routes)

    def refuse_stranger(self, request: Request) -> None:
        """Raise Refused for a request without the token; without one, for what a page in a browser could send."""
        if self._token is not None:
            given = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
            if not hmac.compare_digest(given.encode(), self._token.encode()):
                raise Refused(401, "send the header Authorization: Bearer TOKEN", {"WWW-Authenticate": "Bearer"})
            return
        host = re.sub(r":\d+$", "", request.headers.get("host", ""))
        if "origin" in request.headers or host not in self._names:
            raise Refused(403, "without a token only programs on this machine are answered, and no web page")

    async def _about(self, request: Request) -> Response:
        try:
            self.refuse_stranger(request)
        except Refused as error:
            return _sentence(error)
        limits = {
            "megabytes": self._limits.bytes / 1e6,
            "seconds": self._limits.seconds,
            "waiting": self._limits.waiting,
        }
        usage = "POST a file to /predict/NAME; ?only=ENDING asks for one of the files that are written"
        return JSONResponse({**self._worker.facts, "limits": limits, "usage": usage})

    async def _health(self, request: Request) -> Response:
        ready = self._worker.is_ready
        self._worker.revive()
        return JSONResponse({"ready": ready, "requests": self._taken}, 200 if ready else 503)

    @contextmanager
    def place(self) -> Iterator[Path]:
        """Yield a folder for a request, which is then removed. Raises Refused if too many requests are here."""
        if self._taken > self._limits.waiting:
            seconds = str(max(1, math.ceil(self._taken * self._last_seconds)))
            raise Refused(503, "too many requests wait already: try again later", {"Retry-After": seconds})
        self._taken += 1
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        try:
            yield folder
        finally:
            self._taken -= 1
            shutil.rmtree(folder, ignore_errors=True)

    async def predicted(self, request: Request, folder: Path) -> Response:
        """Return the answer to a request whose upload goes into `folder`."""
        upload = folder / f"input{ending(request.path_params['name'])}"
        try:
            async with asyncio.timeout(self._limits.seconds):
                await self._receive(request, upload)
        except TimeoutError:
            raise Refused(408, f"the upload took longer than {self._limits.seconds:g} s") from None
        began = time.monotonic()
        try:
            only = request.query_params.get("only", "")
            found = await self._worker.predict(upload, only, self._limits.seconds, request.is_disconnected)
        except Gone:
            raise ClientDisconnect from None
        except BadInput as error:
            raise Refused(422, str(error)) from error
        except Hung as error:
            raise Refused(504, str(error)) from error
        except RunnerError as error:
            raise Refused(500, str(error)) from error
        self._last_seconds = time.monotonic() - began
        return FileResponse(found["file"], headers=found["headers"], filename=found["name"])

    async def _receive(self, request: Request, upload: Path) -> None:
        """Write the body into a file. Raises Refused as soon as it is too large."""
        most, size = self._limits.bytes, 0
        too_large = Refused(413, f"more than {size_text(most)}, the most that is taken", {"Connection": "close"})
        said = request.headers.get("content-length", "")
        if said.isdigit() and int(said) > most:
            raise too_large
        with upload.open("xb") as file:
            async for part in request.stream():
                size += len(part)
                if size > most:
                    raise too_large
                file.write(part)
        if not size:
            raise Refused(400, "the request has no body: send the file itself, as curl --data-binary @FILE does")

    async def send(self, response: Response, scope: Scope, receive: Receive, send: Send) -> None:
        """Send an answer, and give up on a client who takes too long to read it."""
        async with asyncio.timeout(self._limits.seconds):
            await response(scope, receive, send)


class _Endpoint:
    """`POST /predict/NAME`, which holds its place until the answer is sent."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service, request, began = self._service, Request(scope, receive), time.monotonic()
        status = 499  # the client is gone
        try:
            try:
                service.refuse_stranger(request)
                with service.place() as folder:
                    response = await service.predicted(request, folder)
                    status = response.status_code
                    await service.send(response, scope, receive, send)
            except Refused as error:
                status = error.status
                await service.send(_sentence(error), scope, receive, send)
        except (ClientDisconnect, TimeoutError):
            pass
        print(f"{time.strftime('%H:%M:%S')} predict {status} {time.monotonic() - began:.1f} s", file=sys.stderr)


def _sentence(error: Refused) -> Response:
    return PlainTextResponse(f"{error.text}\n", error.status, error.headers)


def ending(name: str) -> str:
    """Return the ending of a client's file name, the only part of it that is used. Raises Refused if it has none.

    >>> ending("../../etc/Scan.v2.NII.gz"), ending("a.b.tif"), ending("x.ome.tiff")
    ('.nii.gz', '.tif', '.ome.tiff')
    """
    found = _DOUBLE.search(name.lower())
    if found is None:
        raise Refused(415, "name the file in the address, as in /predict/scan.nii.gz: its ending says what it is")
    whole = found.group()
    return whole if whole in _JOINED else whole[whole.rindex(".") :]


def facts_text(facts: Mapping[str, Any]) -> str:
    """Return the line that says which network is served."""
    return f"{facts['project']}, {facts['weights']}"
