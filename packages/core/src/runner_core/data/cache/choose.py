"""Estimate a cache's size, and choose its mode from what exists and what fits, or refuse with numbers and a remedy."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from runner_core.base.errors import BadInput, OutOfSpace
from runner_core.base.files import size_text
from runner_core.base.resources import available_ram
from runner_core.contract import Array, Pipeline
from runner_core.contract.records import Record
from runner_core.data.cache.build import BLOSC2, FLAT, MEMORY
from runner_core.data.cache.folder import CacheMeta
from runner_core.data.cache.identity import digest_json, source_bytes
from runner_core.data.cache.storage import PreparedStore, Storage
from runner_core.data.columns import Shapes

if TYPE_CHECKING:
    from runner_core.config import CacheConfig


@dataclass(frozen=True)
class Size:
    """Bytes of all prepared arrays.

    `plain` is the uncompressed size and `compressed` the size with blosc2, estimated from a `sample` whose arrays are
    one `share`-th of all.
    """

    plain: int
    sample: Sequence[Array] = ()
    share: float = 1

    @cached_property
    def compressed(self) -> int:
        return self._judged(BLOSC2)

    def kept_by(self, storage: Storage) -> int:
        """Return the bytes on the disk."""
        if storage.name == FLAT.name:
            return self.plain
        return self.compressed if storage is BLOSC2 else self._judged(storage)

    def _judged(self, storage: Storage) -> int:
        return round(self.share * sum(map(storage.bytes, self.sample)))


class Estimator:
    """Estimates sizes from one record, prepared once, or from an existing cache."""

    def __init__(self) -> None:
        self._prepared: dict[str, list[Array]] = {}
        self.seconds = math.inf
        """Seconds that preparing one record took; infinite if unknown."""

    def of_records(self, pipeline: Pipeline, records: Sequence[Record]) -> Size:
        """Return the size estimated from the record with the median file size, or from the next readable one."""
        sizes = [source_bytes(record) for record in records]
        by_size = sorted(range(len(records)), key=sizes.__getitem__)
        for number in by_size[len(by_size) // 2 :] + by_size[: len(by_size) // 2]:
            with suppress(BadInput, OSError):
                sample = self._sample(pipeline, records[number])
                share = sum(sizes) / sizes[number] if sizes[number] else len(records)
                return Size(round(share * sum(a.nbytes for a in sample)), sample, share)
        return Size(0)  # no record can be prepared: building reports why

    def of_cache(self, folder: Path, meta: CacheMeta, storage: Storage) -> Size:
        """Return the exact size, with a sample from the cache; raise Damaged or OSError."""
        plain = sum(np.dtype(a.dtype).itemsize * _items(a.shapes) for a in meta.arrays.values())
        store = PreparedStore.open(folder, storage)
        sample = [a.read(len(meta.keys) // 2) for a in store.arrays.values()]
        store.close()
        return Size(plain, sample, plain / max(1, sum(a.nbytes for a in sample)))

    def _sample(self, pipeline: Pipeline, record: Record) -> list[Array]:
        """Return the prepared arrays of one record."""
        files = {role: str(path) for role, path in record.files.items()}
        key = digest_json([dict(pipeline.settings), record.key, files])
        if key not in self._prepared:
            begun = time.perf_counter()
            self._prepared = {key: list(pipeline(record).arrays.values())}
            self.seconds = time.perf_counter() - begun
        return self._prepared[key]


def _items(shapes: Sequence[tuple[int, ...]]) -> int:
    return int(shapes.starts[-1]) if isinstance(shapes, Shapes) else sum(map(math.prod, shapes))


_LEAVE_FREE = 0.05
STORAGES = {"memmap": FLAT, "device": FLAT, "memory": MEMORY, "blosc2": BLOSC2}
"""The storage of each mode."""


class Limit(NamedTuple):
    """Bytes that a new cache may take, and the source of this limit."""

    size: int
    source: str
    from_setting: bool


def choose_mode(
    config: CacheConfig, folder: Path, built: Collection[str], size: Size, own: Storage | None = None
) -> tuple[str, str]:
    """Return (mode, reason or ""); raise OutOfSpace with a remedy if it does not fit.

    `built` names the storages in which exactly these records are cached already; they take no further disk space. `own`
    is an extension's storage, which then is the mode.
    """
    mode: str = config.mode if own is None else own.name
    why = ""
    if mode == "auto":
        mode, why = _automatic(config, folder, built, size)
    if mode == "memory" and size.plain > (there := available_ram()):
        raise OutOfSpace(
            f"cache.mode memory takes {size_text(size.plain)} of RAM, {size_text(there)} are available: set cache.mode "
            "to memmap, which needs none of its own"
        )
    storage = own or STORAGES[mode]
    wanted = size.kept_by(storage)
    limit = _disk_limit(config, folder)
    if storage.name not in built and wanted > limit.size:
        raise OutOfSpace(
            f"the cache takes about {size_text(wanted)} of disk, {limit.source} {size_text(limit.size)}: "
            + _remedy(size, limit, storage)
        )
    return mode, why


def _automatic(config: CacheConfig, folder: Path, built: Collection[str], size: Size) -> tuple[str, str]:
    """Choose a memory map, or blosc2 if that exists already or only that fits."""
    if "flat" in built:
        return "memmap", ""
    if "blosc2" in built:
        return "blosc2", "blosc2: these records are there in that form"
    limit = _disk_limit(config, folder)
    if size.plain <= limit.size or size.compressed > limit.size:
        return "memmap", ""
    return "blosc2", (
        f"blosc2, since a memory map takes about {size_text(size.plain)} and {limit.source} {size_text(limit.size)}"
    )


def _disk_limit(config: CacheConfig, folder: Path) -> Limit:
    existing = next(p for p in (folder, *folder.parents) if p.exists())
    free = int(shutil.disk_usage(existing).free * (1 - _LEAVE_FREE))
    if config.max_gb is not None and config.max_gb * 1e9 < free:
        return Limit(int(config.max_gb * 1e9), "cache.max_gb allows", True)
    return Limit(free, f"the disk of {existing} has (less 5 %)", False)


def _remedy(size: Size, limit: Limit, storage: Storage) -> str:
    if storage is not BLOSC2 and size.compressed <= limit.size:
        return f"set cache.mode to blosc2 (about {size_text(size.compressed)})"
    if limit.from_setting:
        return (
            f"set cache.max_gb to {math.ceil(size.compressed / 1e7) / 100} with cache.mode blosc2, or cache.mode to off"
        )
    plain, compressed = (size_text(math.ceil(n / (1 - _LEAVE_FREE))) for n in (size.kept_by(storage), size.compressed))
    other = "" if storage is BLOSC2 else f", or {compressed} with `--cache.mode blosc2`"
    return f"set cache.dir to a disk with {plain} free{other}, or use `--cache.mode off`"
