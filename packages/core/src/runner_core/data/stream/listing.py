"""List a large bucket in several requests at once, in the order of one request after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Protocol

from runner_core.base.location import Url

_EACH = 4
"""Parts of the listing for each thread: folders are of different sizes."""


class Lists(Protocol):
    """A client (`client.Client`)."""

    def listed(self, url: Url, after: str | None = None, until: str | None = None) -> Iterator[Url]: ...

    def folders(self, urls: Sequence[Url]) -> Sequence[Url]: ...


def listed_at_once(client: Lists, url: Url, last: Url, threads: int) -> Iterator[Url]:
    """Yield the files below `url` that come after the file `last`, as the server sorts them; raise Unreachable.

    The names of folders divide all names into ranges, and each thread lists one range after the other. So many small
    folders take no more requests than one large one.
    """
    after, depth = _path(last), last.text.count("/") - url.text.rstrip("/").count("/") - 1
    found = boundaries(client, url, depth, threads * _EACH)
    bounds = [after, *(path for path in found if path > after), None]
    with ThreadPoolExecutor(threads, "runner: listing") as pool:
        try:
            for part in pool.map(lambda ends: list(client.listed(url, *ends)), pairwise(bounds)):
                yield from part
        finally:
            pool.shutdown(cancel_futures=True)


def boundaries(client: Lists, url: Url, depth: int, count: int) -> list[str]:
    """Return paths of folders below `url`, in order: about `count` of the first level that has so many.

    It looks no deeper than `depth` levels, where files are: asking for folders there would list all files.
    """
    level: Sequence[Url] = []
    for _ in range(depth):
        deeper = client.folders(level or [url])
        if not deeper:
            break
        level = deeper
        if len(level) >= count:
            break
    paths = sorted(map(_path, level))
    return paths[:: max(1, len(paths) // count)]


def _path(url: Url) -> str:
    """Return a URL's path in its bucket."""
    return url.text.split("/", 3)[3]
