"""Files at URLs: listed, and read many at once.

obstore does the requests, in one event loop of this process; what is tried again, and when it is given up, is decided
here, so that it can be counted and a body that is too short is seen.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import random
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import astuple
from datetime import timedelta
from types import ModuleType
from typing import TYPE_CHECKING, Any

from runner_core._errors import BadInput
from runner_core.location import Url, refuse_secrets
from runner_core.stream.failure import Unreachable, first_line, meant
from runner_core.stream.meter import Meter

if TYPE_CHECKING:
    from runner_core.config import RemoteConfig

_FIRST_WAIT, _LONGEST_WAIT = 0.25, 15.0
"""Seconds before a request is tried again; twice as long each time."""
_WHOLE = 20
"""A request may take so many times `remote.timeout` in all, as long as bytes keep coming."""
_AZURE = ("az", "adl", "azure", "abfs", "abfss")
_CREDENTIALS = {
    "s3": (
        "AWS_ACCESS_KEY_ID",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    ),
    "gs": ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_KEY"),
    "az": ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_KEY", "AZURE_CLIENT_ID", "AZURE_FEDERATED_TOKEN_FILE"),
}
"""Environment variables that say that there are credentials."""


class Client:
    """Reads and lists URLs under `remote` settings. Its threads and connections are this process's own."""

    def __init__(self, config: RemoteConfig) -> None:
        if config.endpoint and not config.endpoint.startswith(("http://", "https://")):
            raise BadInput(f"remote.endpoint must begin with http:// or https://, not {config.endpoint!r}")
        self._config = config
        self._obstore = _obstore()
        self._stores: dict[str, Any] = {}
        self._loop = asyncio.new_event_loop()
        self._places = asyncio.Semaphore(config.connections)
        self._random = random.Random()  # the run's own generators are not touched
        self.meter = Meter("files", "bytes", "retries")
        self._closed = False
        self._thread = threading.Thread(target=self._loop.run_forever, name="runner: requests", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def __reduce__(self) -> Any:
        raise TypeError("a client belongs to its process: make another one with stream.client.client(config)")

    def close(self) -> None:
        """Give up what is under way. A thread that came back from a request while Python ends would abort it."""
        self._closed = True
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(_cancel_all(), self._loop).result(timeout=5)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(timeout=5)
        atexit.unregister(self.close)

    def read_many(self, urls: Sequence[Url]) -> list[bytes]:
        """The files' contents, requested all at once (`remote.connections` of this process at a time).

        Raises Unreachable for the first that cannot be read, after all retries.
        """
        return [bytes(buffer) for buffer in self.buffers(urls)]

    def buffers(self, urls: Sequence[Url]) -> list[memoryview]:
        """The same without copying them."""
        if self._closed:
            raise BadInput(f"{urls[0]}: nothing more is read, since the process ends")
        reading = asyncio.run_coroutine_threadsafe(self._all(urls), self._loop)
        try:
            with _no_panic(urls[0]):
                return reading.result()
        except CancelledError:
            raise BadInput(f"{urls[0]}: reading was given up, since the process ends") from None
        finally:
            reading.cancel()

    async def _all(self, urls: Sequence[Url]) -> list[memoryview]:
        tasks = [asyncio.ensure_future(self._read(url)) for url in urls]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def _read(self, url: Url) -> memoryview:
        for attempt in range(self._config.retries + 1):
            async with self._places:
                try:
                    with self.meter.running():
                        data = await self._get(url)
                    self.meter.add("files")
                    self.meter.add("bytes", len(data))
                    return data
                except Exception as error:
                    failure = self._failure(url, error)
                    if failure.kind != "transient" or attempt == self._config.retries:
                        raise failure from error
            self.meter.add("retries")
            await asyncio.sleep(self._wait(attempt))
        raise AssertionError

    async def _get(self, url: Url) -> memoryview:
        root, path = _split(url)
        answer = await self._obstore.get_async(self._store(root, url), path)
        told = answer.meta
        if url.etag is not None and told["e_tag"] not in (None, url.etag):
            raise Unreachable(url, "corrupt", "it was replaced by another file since the data were listed; start anew")
        data = memoryview(await answer.bytes_async())
        wanted = told["size"] if url.size is None else url.size
        if len(data) != wanted:
            raise Unreachable(url, "transient", f"only {len(data):,} of {wanted:,} bytes came")
        return data

    def list(self, url: Url) -> Iterator[Url]:
        """Every file below `url`, with size and etag, in the server's order. Raises Unreachable; BadInput where there
        is none."""
        if url.text.startswith(("http://", "https://")):
            raise BadInput(f"{url}: a web server does not list its files: give a manifest that names them")
        root, prefix = _split(url)
        last = None
        for attempt in range(self._config.retries + 1):
            try:
                with _no_panic(url):
                    for chunk in self._obstore.list(self._store(root, url), prefix or None, offset=last):
                        for found in chunk:
                            last = found["path"]
                            yield Url(f"{root}/{last}", found["size"], found["e_tag"])
                if last is None:
                    raise BadInput(f"{url}: nothing is there: no file lies below it. Check its name")
                return
            except Exception as error:
                failure = self._failure(url, error)
                if failure.kind != "transient" or attempt == self._config.retries:
                    raise failure from error
            self.meter.add("retries")
            time.sleep(self._wait(attempt))

    def _wait(self, attempt: int) -> float:
        return min(_LONGEST_WAIT, _FIRST_WAIT * 2**attempt) * self._random.uniform(0.5, 1)

    # ------------------------------------------------------------ where, and what went wrong

    def _signed(self, kind: str) -> bool:
        """Are requests signed?"""
        if self._config.credentials != "auto":
            return self._config.credentials == "environment"
        return any(os.environ.get(name) for name in _CREDENTIALS.get(kind, ()))

    def _store(self, root: str, url: Url) -> Any:
        if root not in self._stores:
            self._stores[root] = self._open(root, url)
        return self._stores[root]

    def _open(self, root: str, url: Url) -> Any:
        """obstore's own for a bucket, container or host."""
        config = self._config
        scheme, _, host = root.partition("://")
        stores = self._obstore.store
        if scheme == "file":
            return stores.LocalStore("/")
        options: dict[str, Any] = {
            "client_options": {
                "allow_http": scheme == "http" or (config.endpoint or "").startswith("http://"),
                "connect_timeout": timedelta(seconds=min(config.timeout, 10)),
                "read_timeout": timedelta(seconds=config.timeout),
                "timeout": timedelta(seconds=config.timeout * _WHOLE),
            },
            "retry_config": {"max_retries": 0},
        }
        try:
            if scheme in ("http", "https"):
                return stores.HTTPStore.from_url(root, **options)
            if not self._signed(_kind(scheme)):
                options["skip_signature"] = True
            if _kind(scheme) == "s3":
                options["region"] = config.region or os.environ.get("AWS_REGION") or "us-east-1"
                if config.endpoint:
                    options["endpoint"] = config.endpoint
                return stores.S3Store(host, **options)
            return stores.from_url(root, **options)
        except Exception as error:
            raise BadInput(f"{url}: this URL cannot be opened: {first_line(error)}") from error

    def _failure(self, url: Url, error: Exception) -> Unreachable:
        """What an error means to the user; BadInput is raised: it is of the URL itself."""
        if isinstance(error, Unreachable):
            return error
        if isinstance(error, BadInput):
            raise error
        kind = _kind(url.text.partition("://")[0])
        endpoint = self._config.endpoint if kind == "s3" else None
        return meant(url, error, self._config.retries + 1, self._signed(kind), endpoint)


_clients: dict[tuple[Any, ...], Client] = {}
_lock = threading.Lock()


def client(config: RemoteConfig) -> Client:
    """This process's client for these settings."""
    name = (os.getpid(), *astuple(config))
    with _lock:
        if name not in _clients:
            _clients[name] = Client(config)
        return _clients[name]


@contextmanager
def _no_panic(url: Url) -> Iterator[None]:
    """What obstore thinks impossible, of a setting that it cannot use say, is no Exception in Python."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ == "PanicException":
            said = f"{url}: obstore cannot work with this URL or with the settings under remote: {first_line(error)}"
            raise BadInput(said) from None
        raise


async def _cancel_all() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _obstore() -> ModuleType:
    try:
        import obstore
        import obstore.exceptions
        import obstore.store
    except ImportError as error:
        raise BadInput(
            "data at a URL need the package obstore, which is not installed: install the extra runner-core[stream]"
        ) from error
    return obstore


def _split(url: Url) -> tuple[str, str]:
    """(bucket, container or host as a URL, path there).

    >>> _split(Url("s3://bucket/plate 1/a.tif")), _split(Url("az://account/container/a.tif"))
    (('s3://bucket', 'plate 1/a.tif'), ('az://account/container', 'a.tif'))
    """
    refuse_secrets(url)
    scheme, _, rest = url.text.partition("://")
    host, _, path = rest.partition("/")
    if scheme in ("http", "https"):
        from urllib.parse import unquote

        path = unquote(path)
    elif scheme in ("az", "adl", "azure"):
        container, _, path = path.partition("/")
        host = f"{host}/{container}"
    return f"{scheme}://{host}", path.strip("/")


def _kind(scheme: str) -> str:
    """The provider: s3, gs, az."""
    return "az" if scheme in _AZURE else {"s3a": "s3"}.get(scheme, scheme)
