"""The content that each file at a URL had at its last use: one file with a hash of its address and one of its ETag."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path

import numpy as np

from runner_core.base.writing import whole_file
from runner_core.contract import Array
from runner_core.data.columns import map_array, save_array
from runner_core.data.table import hash_text

FILE = "objects.npy"
_FORMER = "objects.sqlite"
"""Where earlier versions kept the same."""


def changed(root: Path, etags: Callable[[], Iterator[tuple[str, str]]], known: Array | None = None) -> tuple[int, str]:
    """Return the number of files that had another ETag when they were last used, and the address of one.

    `etags` yields addresses and ETags, `known` has their hashes if they are known. All are remembered in `root` with
    their current ETag, if the disk allows it. Two processes that do so at once may forget what one of them found: then
    a change is not said, but still seen.
    """
    now = known
    if now is None:
        flat = chain.from_iterable((hash_text(url), hash_text(etag)) for url, etag in etags())
        now = np.fromiter(flat, np.uint64).reshape(-1, 2)
    _remove_former(root / _FORMER)
    before = _read(root / FILE)
    places = np.minimum(np.searchsorted(before[:, 0], now[:, 0]), max(0, len(before) - 1))
    there = before[places, 0] == now[:, 0] if len(before) else np.zeros(len(now), np.bool_)
    others = now[there & (before[places, 1] != now[:, 1]), 0] if len(before) else now[:0, 0]
    if len(others) or not there.all():
        _write(root / FILE, before, now)
    if not len(others):
        return 0, ""
    return len(np.unique(others)), next(url for url, _ in etags() if hash_text(url) == others[0])


def _read(file: Path) -> Array:
    """Return what is remembered, sorted by the hashes of addresses: (files, 2) uint64; none if it cannot be read."""
    try:
        found = map_array(file)
    except (OSError, ValueError, EOFError):
        found = np.empty(0)
    fits = found.ndim == 2 and found.shape[1] == 2 and found.dtype == np.uint64
    return found if fits else np.empty((0, 2), np.uint64)


def _remove_former(file: Path) -> None:
    """Remove the file of an earlier version; another one of that name stays."""
    with suppress(OSError):
        with file.open("rb") as former:
            head = former.read(4096)
        if head.startswith(b"SQLite format 3") and b"objects (url TEXT PRIMARY KEY, etag TEXT)" in head:
            file.unlink()


def _write(file: Path, before: Array, now: Array) -> None:
    _, first = np.unique(now[:, 0], return_index=True)
    now = now[first]
    both = np.concatenate([before[~np.isin(before[:, 0], now[:, 0])], now])
    both = both[np.argsort(both[:, 0])]
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(file) as temporary:
            save_array(temporary, both)
    except OSError:
        return  # a full or read-only disk: changes are not said at the next start
