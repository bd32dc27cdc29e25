"""List files at URLs, and read many at once.

obstore sends the requests, in one event loop of this process. Retries are decided here, so that they can be counted and
incomplete bodies are noticed.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import random
import threading
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import astuple, replace
from datetime import timedelta
from itertools import islice
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from runner_core.base.calling import adds_extra
from runner_core.base.errors import BadInput
from runner_core.base.location import Url, refuse_secrets
from runner_core.data.stream.bad import Unreachable, first_line, meant
from runner_core.data.stream.credentials import of_profile, signs
from runner_core.data.stream.fetch import Meter
from runner_core.data.stream.listing import listed_at_once

if TYPE_CHECKING:
    from runner_core.config import RemoteConfig


Answer = TypeVar("Answer")
_FIRST_WAIT, _LONGEST_WAIT = 0.25, 15.0
"""Seconds before the first retry, doubled each time, and the longest wait."""
_WHOLE = 20
"""A request may take this many times `remote.timeout` in total, as long as bytes keep coming."""
_MANY, _TOGETHER = 200, 10_000
"""Files of a folder from which one listing is quicker than single requests; requests that start together."""
_IN_A_ROW, _LISTINGS = 10_000, 32
"""Files of a listing after which it goes on in several requests at once, and the most of those."""
_SORTED = ("s3", "gs")
"""Servers that list names in their order, from any name on."""
_AZURE = ("az", "adl", "azure", "abfs", "abfss")


class Client:
    """Reads and lists URLs under `remote` settings; its threads and connections belong to this process."""

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
        """Cancel all requests, because a thread that returns from one while Python ends would abort the process."""
        self._closed = True
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(_cancel_all(), self._loop).result(timeout=5)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(timeout=5)
        atexit.unregister(self.close)

    def read_many(self, urls: Sequence[Url]) -> list[bytes]:
        """Return the files' contents, requested all at once (`remote.connections` of this process at a time).

        Raises Unreachable for the first that cannot be read, after all retries.
        """
        return [bytes(buffer) for buffer in self.buffers(urls)]

    def buffers(self, urls: Sequence[Url]) -> list[memoryview]:
        """Return the files' contents like `read_many`, without copying them."""
        if self._closed:
            raise BadInput(f"{urls[0]} was not read, because the process is ending")
        reading = asyncio.run_coroutine_threadsafe(self._all(urls), self._loop)
        try:
            with _no_panic(urls[0]):
                return reading.result()
        except CancelledError:
            raise BadInput(f"{urls[0]}: reading was stopped, because the process is ending") from None
        finally:
            reading.cancel()

    async def _all(self, urls: Sequence[Url]) -> list[memoryview]:
        tasks = [asyncio.ensure_future(self._read(url)) for url in urls]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    def describe(self, urls: Sequence[Url]) -> list[Url]:
        """Return the files with their current size and etag.

        A file is returned unchanged if it does not exist or no server describes it. Folders from which many files are
        requested are listed if that is allowed. Raises Unreachable.
        """
        looking = asyncio.run_coroutine_threadsafe(self._described(urls), self._loop)
        with _no_panic(urls[0]):
            return looking.result()

    async def _described(self, urls: Sequence[Url]) -> list[Url]:
        folders: defaultdict[Url, list[Url]] = defaultdict(list)
        for url in urls:
            folders[url.parent].append(url)
        many = [folder for folder, own in folders.items() if len(own) >= _MANY and not _is_plain(folder)]
        nothing: dict[tuple[str, str], Url] = {}
        listings = await asyncio.gather(*(self._asked(folder, self._folder, nothing) for folder in many))
        known = {name: url for listing in listings for name, url in listing.items()}
        rest = [url for url in urls if _split(url) not in known]
        for first in range(0, len(rest), _TOGETHER):
            some = rest[first : first + _TOGETHER]
            found = await asyncio.gather(*(self._asked(url, self._head, url) for url in some))
            known |= {_split(url): url for url in found}
        return [replace(known[_split(url)], text=url.text) for url in urls]

    async def _asked(self, url: Url, request: Callable[[Url], Awaitable[Answer]], otherwise: Answer) -> Answer:
        """Return the answer to a request for a description, or `otherwise` if the server refuses it.

        Reading the file then says why.
        """
        try:
            return await self._tried(url, request)
        except Unreachable as error:
            if error.kind == "transient":
                raise
            return otherwise

    async def _head(self, url: Url) -> Url:
        root, path = _split(url)
        there = await self._obstore.head_async(self._store(root, url), path)
        return Url(url.text, there["size"], _mark(there))

    async def _folder(self, url: Url) -> dict[tuple[str, str], Url]:
        """Return the files directly in a folder."""
        root, path = _split(url)
        found = await self._obstore.list_with_delimiter_async(self._store(root, url), path or None)
        return {(root, at["path"]): Url(f"{root}/{at['path']}", at["size"], _mark(at)) for at in found["objects"]}

    async def _read(self, url: Url) -> memoryview:
        data = await self._tried(url, self._get)
        self.meter.add("files")
        self.meter.add("bytes", len(data))
        return data

    async def _tried(self, url: Url, request: Callable[[Url], Awaitable[Answer]]) -> Answer:
        """Return the answer to a request, after all retries."""
        for attempt in range(self._config.retries + 1):
            async with self._places:
                try:
                    with self.meter.running():
                        return await request(url)
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
        meta = answer.meta
        if url.etag is not None and _mark(meta) not in (None, url.etag):
            raise Unreachable(url, "corrupt", "it was replaced by another file since the data were listed; start anew")
        data = memoryview(await answer.bytes_async())
        wanted = meta["size"] if url.size is None else url.size
        if len(data) != wanted:
            raise Unreachable(url, "transient", f"only {len(data):,} of {wanted:,} bytes came")
        return data

    def list(self, url: Url) -> Iterator[Url]:
        """Yield every file below `url`, with size and etag, in the server's order.

        A long listing goes on in several requests at once, each of which lists the names between two folders. Raises
        Unreachable, and BadInput if there is no file.
        """
        if _is_plain(url):
            raise BadInput(f"{url}: a web server does not list its files: give a manifest that names them")
        begun = self.listed(url)
        found = list(islice(begun, _IN_A_ROW))
        if not found:
            raise BadInput(f"{url}: there is no file at or below this URL. Check its name")
        yield from found
        if len(found) < _IN_A_ROW:
            return
        if _kind(url.text.partition("://")[0]) not in _SORTED:
            yield from begun
            return
        begun.close()
        yield from listed_at_once(self, url, found[-1], min(self._config.connections, _LISTINGS))

    def listed(self, url: Url, after: str | None = None, until: str | None = None) -> Generator[Url]:
        """Yield the files below `url` with `after` < path <= `until`, one request at a time; raise Unreachable."""
        root, prefix = _split(url)
        last = after
        for attempt in range(self._config.retries + 1):
            try:
                with _no_panic(url):
                    for chunk in self._obstore.list(self._store(root, url), prefix or None, offset=last):
                        for found in chunk:
                            if until is not None and found["path"] > until:
                                return
                            last = found["path"]
                            yield Url(f"{root}/{last}", found["size"], _mark(found))
                return
            except Exception as error:
                failure = self._failure(url, error)
                if failure.kind != "transient" or attempt == self._config.retries:
                    raise failure from error
            self.meter.add("retries")
            time.sleep(self._wait(attempt))

    def folders(self, urls: Sequence[Url]) -> Sequence[Url]:
        """Return the folders directly in these folders, requested at once; raise Unreachable."""
        looking = asyncio.run_coroutine_threadsafe(self._all_folders(urls), self._loop)
        with _no_panic(urls[0]):
            return looking.result()

    async def _all_folders(self, urls: Sequence[Url]) -> Sequence[Url]:
        found = await asyncio.gather(*(self._tried(url, self._folders_in) for url in urls))
        return [folder for folders in found for folder in folders]

    async def _folders_in(self, url: Url) -> Sequence[Url]:
        root, path = _split(url)
        found = await self._obstore.list_with_delimiter_async(self._store(root, url), path or None)
        return [Url(f"{root}/{folder}") for folder in found["common_prefixes"]]

    def _wait(self, attempt: int) -> float:
        return min(_LONGEST_WAIT, _FIRST_WAIT * 2**attempt) * self._random.uniform(0.5, 1)

    # ------------------------------------------------------------ where, and what went wrong

    def store(self, url: Url) -> tuple[Any, str]:
        """Return obstore's store of a bucket or host, and the path in it, for libraries that read parts of files.

        The store retries by itself.
        """
        root, path = _split(url)
        with _no_panic(url):
            return self._open(root, url, self._config.retries), path

    def failure(self, url: Url, error: Exception) -> BadInput:
        """Return what went wrong with a store of `store`, as this client says it."""
        return self._failure(url, error)

    def _store(self, root: str, url: Url) -> Any:
        if root not in self._stores:
            self._stores[root] = self._open(root, url)
        return self._stores[root]

    def _open(self, root: str, url: Url, retries: int = 0) -> Any:
        """Return obstore's store for a bucket, container or host; by default it does not retry."""
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
            "retry_config": {"max_retries": retries},
        }
        try:
            if scheme in ("http", "https"):
                return stores.HTTPStore.from_url(root, **options)
            signed = signs(config, _kind(scheme))
            if not signed:
                options["skip_signature"] = True
            if _kind(scheme) == "s3":
                options |= of_profile() if signed else {}
                named = config.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
                options["region"] = named or options.get("region") or "us-east-1"
                if config.endpoint:
                    options["endpoint"] = config.endpoint
                return stores.S3Store(host, **options)
            return stores.from_url(root, **options)
        except BadInput as error:
            raise BadInput(f"{url}: {error}") from error
        except Exception as error:
            raise BadInput(f"{url}: this URL cannot be opened: {first_line(error)}") from error

    def _failure(self, url: Url, error: Exception) -> Unreachable:
        """Convert an error into Unreachable; raise BadInput if the URL itself is wrong."""
        if isinstance(error, Unreachable):
            return error
        if isinstance(error, BadInput):
            raise error
        kind = _kind(url.text.partition("://")[0])
        endpoint = self._config.endpoint if kind == "s3" else None
        return meant(url, error, self._config.retries + 1, signs(self._config, kind), endpoint)


_clients: dict[tuple[Any, ...], Client] = {}
_lock = threading.Lock()


def remote_client(config: RemoteConfig) -> Client:
    """Return this process's client for these settings."""
    name = (os.getpid(), *astuple(config))
    with _lock:
        if name not in _clients:
            _clients[name] = Client(config)
        return _clients[name]


@contextmanager
def _no_panic(url: Url) -> Iterator[None]:
    """Turn obstore's panics, which are no Exception in Python, into BadInput.

    It panics at settings that it cannot use, for example.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__name__ == "PanicException":
            message = f"{url}: obstore cannot work with this URL or with the settings under remote: {first_line(error)}"
            raise BadInput(message) from None
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
            f"data at a URL need the package obstore, which is not installed: `{adds_extra('stream')}` adds it"
        ) from error
    return obstore


def _split(url: Url) -> tuple[str, str]:
    """Return (bucket, container or host as a URL, path in it).

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


def _is_plain(url: Url) -> bool:
    """Return True if the URL is on a web server, which lists no files."""
    return url.text.startswith(("http://", "https://"))


def _mark(meta: Mapping[str, Any]) -> str | None:
    """Return a value that changes with a file's content: its etag, else the time of its change."""
    changed = meta.get("last_modified")
    return meta["e_tag"] or (f"changed {changed.isoformat()}" if changed else None)


def _kind(scheme: str) -> str:
    """Return the provider: s3, gs, az."""
    return "az" if scheme in _AZURE else {"s3a": "s3"}.get(scheme, scheme)
