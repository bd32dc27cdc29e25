"""From files to samples: what crops, keeps and gives them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeGuard, runtime_checkable

import numpy as np

from runner_core.protocols.values import Array, Arrays, Json

if TYPE_CHECKING:
    from runner_core.project import AnyRecord, Decoded, Prepared


# ---------------------------------------------------------------- crop


@dataclass(frozen=True)
class Box:
    """A region of a grid: `start` and `stop` per axis (voxels, half open) within `shape`.

    `crop` takes it out of an array whose leading axes are the grid; `restore` puts it back into a full
    array, so that a prediction returns to the grid it came from.
    """

    start: tuple[int, ...]
    stop: tuple[int, ...]
    shape: tuple[int, ...]

    def crop(self, array: Array) -> Array:
        """View of `array` inside the box; axes after the grid's are kept."""
        return array[tuple(slice(a, b) for a, b in zip(self.start, self.stop, strict=True))]

    def restore(self, array: Array, fill: float = 0) -> Array:
        """`array` (the box's shape, plus trailing axes) inside a grid of `shape`, `fill` elsewhere."""
        full = np.full(self.shape + array.shape[len(self.shape) :], fill, dtype=array.dtype)
        self.crop(full)[...] = array
        return full


class Cropper(Protocol):
    """Chooses the box of a record that is worth caching. Pure: the same array gives the same box."""

    @property
    def settings(self) -> Mapping[str, Json]:
        """Name, version and parameters: part of the cache's key."""
        ...

    def box(self, guide: Array, spacing: Sequence[float]) -> Box:
        """`guide`: the array to look at, grid axes first; `spacing`: size of a voxel per grid axis (mm)."""
        ...


# ---------------------------------------------------------------- cache


class Pipeline(Protocol):
    """record → decode → crop → prepare, for one project under one set of settings."""

    @property
    def settings(self) -> Mapping[str, Json]:
        """Everything that changes prepared arrays: project, versions, settings of decode, crop, prepare."""
        ...

    def decode(self, record: AnyRecord) -> Decoded:
        """What the project's `decode` returns; files at URLs are fetched for it."""
        ...

    def __call__(self, record: AnyRecord) -> Prepared:
        """Decoded, cropped and prepared. Raises BadInput naming the file at fault."""
        ...


class StoredArray(Protocol):
    """One named array of every record, concatenated along the first axis where trailing shapes agree."""

    dtype: np.dtype[Any]
    shapes: Sequence[tuple[int, ...]]

    def read(self, record: int, region: tuple[slice, ...] | None = None) -> Array:
        """Array (or a region of it) of record number `record`; a read-only view where that is free."""
        ...

    def take(self, rows: Array, out: Array) -> None:
        """Gather rows (int64) of the concatenation into `out` (len(rows), *trailing), without copies between."""
        ...


class Store(Protocol):
    """Prepared arrays of every record, opened for reading. Picklable: a worker process opens it anew."""

    keys: Sequence[str]
    """The records' keys: record number n is `keys[n]`."""
    meta: Sequence[Mapping[str, Json]]
    """What `Decoded.meta` and the crop left of each record."""
    arrays: Mapping[str, StoredArray]
    """The prepared arrays by name."""
    device: bool
    """True when the user asked that the whole set live on the accelerator (`cache.mode: device`)."""
    identity: str
    """Digest of what the arrays were made of: the records' files, in order, and the pipeline's settings."""

    def close(self) -> None:
        """Let go of files and memory."""
        ...


class Streamed(Store, Protocol):
    """A store whose records are fetched and prepared ahead of their use; only the newest are kept.

    Every record has arrays of the same shapes. A record can also be read without `expect` and `usable`: the read then
    waits, and raises BadInput where the record is bad.
    """

    streamed: Literal[True]
    block: int
    """Records that may be in use around each other: about half of what is kept."""

    def begin(self, folder: Path) -> None:
        """A run with this folder begins, or goes on: bad records are written to, and replayed from, its
        bad_samples.jsonl. Called before the store goes to worker processes."""
        ...

    def expect(self, records: Array) -> None:
        """These records (int64) are used soon, in this order. Only queues them."""
        ...

    def usable(self, records: Array, positions: Array, epoch: int, among: Array) -> Array:
        """`records` (n,) int64 of the samples at `positions` (n,) int64 in `epoch`'s sequence, with each bad one
        replaced by one of `among`. Waits until all are there; they stay until the next call.

        Raises BadInput when too many are bad."""
        ...

    def counters(self) -> dict[str, float]:
        """What this process did since the last call: `files`, `bytes` and `retries` of its requests, and the
        `fetched_seconds` in which at least one was under way; of the records that batches wanted the `hits`, which
        were there, the `misses`, which were not, the `waited_seconds` for those and the `bad`, which were replaced."""
        ...


def is_streamed(store: Store) -> TypeGuard[Streamed]:
    return bool(getattr(store, "streamed", False))


@dataclass(frozen=True)
class CachePlan:
    """What a cache will take, computed before it is built."""

    mode: str
    records: int
    ready: int
    """Records that need no preparation because they are there already."""
    disk_bytes: int
    ram_bytes: int
    device_bytes: int
    folder: Path | None
    notes: tuple[str, ...] = ()


class Cache(Protocol):
    """Keeps prepared arrays: `plan` says what it will take, `open` builds what is missing and opens it."""

    def plan(self, pipeline: Pipeline, records: Sequence[AnyRecord]) -> CachePlan:
        """What the cache of these records takes on disk, in RAM and on the device; writes nothing."""
        ...

    def open(self, pipeline: Pipeline, records: Sequence[AnyRecord], say: Callable[[str], None]) -> Store:
        """The store of these records, in their order; `say` tells the user what is being done.

        Raises OutOfSpace before anything is written when the plan does not fit, DataErrors when records
        cannot be prepared (all of them listed)."""
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
        """The arrays of one sample by name; among them `record` (int64), the record's number in the store, where a
        metric or `on_device` asks for it."""
        ...

    def __len__(self) -> int:
        """Samples of an epoch that takes each once."""
        ...

    def fill(self, indices: Array, positions: Array, seed: int, epoch: int, out: Arrays) -> None:
        """Write samples `indices` (int64) into `out`: per name an array (len(indices), *shape).

        `positions` (int64): their places in the epoch's sequence. What is random takes its generator from them
        (`sample_rng(seed, epoch, position, stream=1)`), so that a sample drawn twice in an epoch differs.
        """
        ...


@runtime_checkable
class StreamedSamples(Samples, Protocol):
    """Samples that know what they will need, and what it took. Those of `runner_core.samples` are, of any store; of one
    that is not streamed they say so by `streaming`, and are asked nothing of this."""

    @property
    def streaming(self) -> bool:
        """Are records fetched as they are used?"""
        ...

    def sequence(self, seed: int, epoch: int, count: int, shuffle: bool) -> Array:
        """The epoch's sequence: `count` sample numbers (int64), in place of `sampling.order`."""
        ...

    @property
    def ahead(self) -> int:
        """Samples to come that it is good to know of."""
        ...

    def expect(self, indices: Array) -> None:
        """These samples will be filled soon, in this order. Does not wait."""
        ...

    def counters(self) -> dict[str, float]:
        """What filling took in this process since the last call: those of the store, and `replaced`, the samples that
        were taken of another record."""
        ...
