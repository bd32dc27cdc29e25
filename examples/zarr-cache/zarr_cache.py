"""Prepared arrays in zarr stores (format 3): whatever reads zarr can look into the cache.

Each of the cache's arrays is a group with one zarr array a record, named 0, 1, 2, … in the order of meta.json, in
chunks that are compressed one by one:

- whole rows where all records have rows of one shape: slices, which training gathers row by row;
- blocks of at most 64 per axis where they differ: volumes, out of which training reads regions.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from runner_core import Layout, PreparedCache, RunConfig, hookimpl
from zarr.codecs import BloscCodec

Shape = tuple[int, ...]
BLOCK = 64
ROWS_BYTES = 1 << 16
"""Rows smaller than this share a chunk."""


@hookimpl
def runner_cache(config: RunConfig) -> PreparedCache | None:
    """Only where the user leaves the choice open: `cache.mode memmap` and the others stay the core's."""
    return PreparedCache(config.cache, storage=ZarrStorage()) if config.cache.mode == "auto" else None


class ZarrStorage:
    """Stores the arrays of the core's cache; the protocol is runner_core.data.cache.storage.Storage."""

    name = "zarr"

    def create(self, path: Path, first: np.ndarray) -> ZarrWriter:
        return ZarrWriter(zarr.open_group(path, mode="w", zarr_format=3))

    def open(self, path: Path, dtype: np.dtype, shapes: Sequence[Shape]) -> ZarrArray:
        return ZarrArray(path, dtype, shapes)

    def bytes(self, array: np.ndarray) -> int:
        group = zarr.group()  # in memory
        write(group, 0, array, row_chunk(array))
        return int(group["0"].nbytes_stored())


class ZarrWriter:
    """One array of every record: slices, until a record's rows have another shape; then all are volumes."""

    def __init__(self, group: zarr.Group) -> None:
        self.group = group
        self.count = 0
        self.row_shapes: set[Shape] = set()

    def append(self, array: np.ndarray) -> None:
        if len(self.row_shapes) == 1 and array.shape[1:] not in self.row_shapes:
            for number in range(self.count):  # most often it is one that was written as slices
                earlier = self.group[str(number)][...]
                write(self.group, number, earlier, block_chunk(earlier))
        self.row_shapes.add(array.shape[1:])
        write(self.group, self.count, array, row_chunk(array) if len(self.row_shapes) == 1 else block_chunk(array))
        self.count += 1

    def close(self) -> None:
        pass


class ZarrArray(Layout):
    """One array of every record, for reading. Opened at the first read, so in each worker process anew."""

    def __init__(self, path: Path, dtype: np.dtype, shapes: Sequence[Shape]) -> None:
        super().__init__(dtype, shapes)
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return ZarrArray, (self.path, self.dtype, self.shapes)

    @cached_property
    def record(self) -> Any:
        """Record number → its zarr array; finding one costs more than reading a slice of it."""
        group = zarr.open_group(self.path, mode="r")
        return cache(lambda number: group[str(number)])

    def read(self, record: int, region: tuple[slice, ...] | None = None) -> np.ndarray:
        return np.asarray(self.record(record)[region or ...])

    def take(self, rows: np.ndarray, out: np.ndarray) -> None:
        self.row_shape()  # refuses records whose rows differ
        for record, places, own in self.by_record(rows):
            out[places] = self.record(record).oindex[own]


def write(group: zarr.Group, number: int, array: np.ndarray, chunk: Shape) -> None:
    codec = BloscCodec(cname="lz4", shuffle="shuffle" if array.itemsize > 1 else "noshuffle")
    # write_empty_chunks: a chunk of zeros that is missing could not be told from one that was lost
    group.create_array(
        str(number), data=array, chunks=chunk, compressors=codec, overwrite=True, config={"write_empty_chunks": True}
    )


def row_chunk(array: np.ndarray) -> Shape:
    if not array.ndim or not array.size:
        return block_chunk(array)
    return (min(len(array), max(1, ROWS_BYTES // array[:1].nbytes)), *array.shape[1:])


def block_chunk(array: np.ndarray) -> Shape:
    return tuple(min(BLOCK, max(1, length)) for length in array.shape)
