"""Data from files to samples: croppers, caches, stores and samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeGuard, runtime_checkable

import numpy as np

from runner_core.contract.values import Array, Arrays, Json

if TYPE_CHECKING:
    from runner_core.contract.records import AnyRecord, Decoded, Prepared, Record


# ---------------------------------------------------------------- crop


@dataclass(frozen=True)
class Box:
    """A region of a grid: `start` and `stop` per axis (voxels, half open) within `shape`.

    `crop` takes the region out of an array with the grid as its leading axes; `restore` puts it back into a full array,
    so that a prediction returns to the grid it came from.
    """

    start: tuple[int, ...]
    stop: tuple[int, ...]
    shape: tuple[int, ...]

    def crop(self, array: Array) -> Array:
        """Return a view of `array` inside the box; axes after the grid's are kept."""
        return array[tuple(slice(a, b) for a, b in zip(self.start, self.stop, strict=True))]

    def restore(self, array: Array, fill: float = 0) -> Array:
        """Return `array` (the box's shape, plus trailing axes) inside a grid of `shape`, with `fill` elsewhere."""
        full = np.full(self.shape + array.shape[len(self.shape) :], fill, dtype=array.dtype)
        self.crop(full)[...] = array
        return full


class Cropper(Protocol):
    """Chooses the box of a record that is worth caching; the same array always gives the same box."""

    @property
    def settings(self) -> Mapping[str, Json]:
        """Name, version and parameters: part of the cache's key."""
        ...

    def box(self, guide: Array, spacing: Sequence[float]) -> Box:
        """Return the box to keep.

        `guide` is the array to look at, grid axes first. `spacing` is the size of a voxel per grid axis (mm).
        """
        ...


class Cropped(Protocol):
    """The record that `Project.predict` and `baseline` get: without labels, decoded and cropped as in training.

    It is decoded when its arrays are first asked for, and only once. The network, the untrained network and the
    baseline share these arrays: do not change them.
    """

    @property
    def record(self) -> Record:
        """The record, without the files and values that `DataSet.labels` names."""
        ...

    @property
    def decoded(self) -> Decoded:
        """The decoded record, cut to the box."""
        ...

    @property
    def box(self) -> Box:
        """The cropper's box; its `restore` leads back to the record's grid."""
        ...

    @property
    def prepared(self) -> Arrays:
        """The prepared arrays, as the cache would hold them."""
        ...


# ---------------------------------------------------------------- cache


class Pipeline(Protocol):
    """Decodes, crops and prepares records, for one project under one set of settings."""

    @property
    def settings(self) -> Mapping[str, Json]:
        """Everything that changes prepared arrays: project, versions, settings of decode, crop, prepare."""
        ...

    def decode(self, record: AnyRecord) -> Decoded:
        """Return the result of the project's `decode`, after fetching the files that are at URLs."""
        ...

    def __call__(self, record: AnyRecord) -> Prepared:
        """Decode, crop and prepare the record. Raises BadInput naming the file at fault."""
        ...


class StoredArray(Protocol):
    """A named array of every record, concatenated along the first axis if trailing shapes agree."""

    dtype: np.dtype[Any]
    shapes: Sequence[tuple[int, ...]]

    def read(self, record: int, region: tuple[slice, ...] | None = None) -> Array:
        """Return the array (or a region of it) of record number `record`; a read-only view if that is free."""
        ...

    def take(self, rows: Array, out: Array) -> None:
        """Gather rows (int64) of the concatenation into `out` (len(rows), *trailing), without copies in between."""
        ...


class Store(Protocol):
    """Prepared arrays of every record, opened for reading. Picklable: a worker process opens it anew."""

    keys: Sequence[str]
    """The records' keys: record number n is `keys[n]`."""
    meta: Sequence[Mapping[str, Json]]
    """Metadata of each record, from `Decoded.meta` and the crop."""
    arrays: Mapping[str, StoredArray]
    """The prepared arrays by name."""
    device: bool
    """True if the user asked to keep the whole set on the accelerator (`cache.mode: device`)."""
    identity: str
    """Digest of everything the arrays were made from: the records' files, in order, and the pipeline's settings."""

    def close(self) -> None:
        """Release files and memory."""
        ...


class Streamed(Store, Protocol):
    """A store that fetches and prepares records ahead of their use and keeps only the newest.

    Every record has arrays of the same shapes. A record can also be read without `expect` and `usable`: the read then
    waits, and raises BadInput if the record is bad.
    """

    streamed: Literal[True]
    block: int
    """Number of records that may be in use around each other: about half of those kept."""

    def begin(self, folder: Path) -> None:
        """Begin or resume a run in this folder; called before the store goes to worker processes.

        Bad records are written to, and replayed from, the folder's bad_samples.jsonl.
        """
        ...

    def expect(self, records: Array) -> None:
        """Queue these records (int64), which are used soon, in this order. Does not wait."""
        ...

    def usable(self, records: Array, positions: Array, epoch: int, among: Array) -> Array:
        """Return `records` with each bad one replaced by one of `among`.

        `records` (n,) int64 belong to the samples at `positions` (n,) int64 in `epoch`'s sequence. Waits until all are
        there; they stay until the next call. Raises BadInput when too many are bad.
        """
        ...

    def counters(self) -> dict[str, float]:
        """Return counts and times of this process since the last call.

        For its requests: `files`, `bytes`, `retries`, and `fetched_seconds`, the time in which at least one was under
        way. For the records that batches wanted: `hits` were there, `misses` were not, `waited_seconds` is the time
        spent waiting for those, and `bad` ones were replaced.
        """
        ...


def is_streamed(store: Store) -> TypeGuard[Streamed]:
    return bool(getattr(store, "streamed", False))


@dataclass(frozen=True)
class CachePlan:
    """The size of a cache, computed before it is built."""

    mode: str
    records: int
    ready: int
    """Records that are already prepared."""
    disk_bytes: int
    ram_bytes: int
    device_bytes: int
    folder: Path | None
    notes: tuple[str, ...] = ()


class Cache(Protocol):
    """Keeps prepared arrays: `plan` predicts the size, `open` builds what is missing and opens the store."""

    def plan(self, pipeline: Pipeline, records: Sequence[AnyRecord]) -> CachePlan:
        """Return the size of these records' cache on disk, in RAM and on the device; writes nothing."""
        ...

    def open(self, pipeline: Pipeline, records: Sequence[AnyRecord], say: Callable[[str], None]) -> Store:
        """Return the store of these records, in their order; `say` reports progress to the user.

        Raises OutOfSpace before anything is written when the plan does not fit, DataErrors when records cannot be
        prepared (all of them listed).
        """
        ...


# ---------------------------------------------------------------- samples


class SampleSpec(NamedTuple):
    """Shape (without the batch axis) and dtype of one array of a sample."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class Samples(Protocol):
    """The samples of one split: a pure function of (seed, epoch, position, index). Picklable."""

    @property
    def spec(self) -> Mapping[str, SampleSpec]:
        """The arrays of one sample by name.

        They include `record` (int64), the record's number in the store, if a metric or `on_device` asks for it.
        """
        ...

    def __len__(self) -> int:
        """Return the number of samples in an epoch that takes each once."""
        ...

    def fill(self, indices: Array, positions: Array, seed: int, epoch: int, out: Arrays) -> None:
        """Write samples `indices` (int64) into `out`: per name an array (len(indices), *shape).

        `positions` (int64) are their places in the epoch's sequence. Anything random takes its generator from them
        (`sample_rng(seed, epoch, position, stream=1)`), so that a sample drawn twice in an epoch differs.
        """
        ...


@runtime_checkable
class StreamedSamples(Samples, Protocol):
    """Samples that announce which records they need next, and count the cost.

    `PatchSamples`, `TileSamples` and `RowSamples` work with any store. If the store is not streamed, their
    `streaming` is False and nothing else here is called.
    """

    @property
    def streaming(self) -> bool:
        """True if records are fetched as they are used."""
        ...

    def sequence(self, seed: int, epoch: int, count: int, shuffle: bool) -> Array:
        """Return the epoch's sequence: `count` sample numbers (int64), in place of `sampling.order`."""
        ...

    @property
    def ahead(self) -> int:
        """Number of coming samples that should be announced."""
        ...

    def expect(self, indices: Array) -> None:
        """Announce that these samples are filled soon, in this order. Does not wait."""
        ...

    def counters(self) -> dict[str, float]:
        """Return this process's counts since the last call.

        They are the store's counters and `replaced`, the number of samples taken from another record.
        """
        ...
