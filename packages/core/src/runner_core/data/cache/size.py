"""Estimate the size of prepared arrays."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from runner_core.base.errors import BadInput
from runner_core.contract import Array, Pipeline
from runner_core.contract.records import Record
from runner_core.data.cache.folder import CacheMeta
from runner_core.data.cache.identity import digest_json, source_bytes
from runner_core.data.cache.storage import Storage
from runner_core.data.cache.stored import PreparedStore
from runner_core.data.cache.write import BLOSC2, FLAT


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
        plain = sum(np.dtype(a.dtype).itemsize * sum(map(_count, a.shapes)) for a in meta.arrays.values())
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


def _count(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=np.int64))
