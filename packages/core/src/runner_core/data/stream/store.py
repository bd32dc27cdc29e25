"""The store of streamed records, as samples see it."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from runner_core.base.errors import BadInput
from runner_core.contract import Array, Json, StoredArray
from runner_core.data.cache.storage import Region
from runner_core.data.stream.bad import FILE, BadRecord, BadSamples, stand_ins
from runner_core.data.stream.client import remote_client
from runner_core.data.stream.entry import Entry
from runner_core.data.stream.fetch import Fetcher
from runner_core.data.stream.meter import Meter
from runner_core.data.stream.source import Source

if TYPE_CHECKING:
    from runner_core.config import RemoteConfig

_OPEN_FILES = 1 << 16
"""Limit of open files; a batch holds each of its records open, and a shell's usual limit (1024) may be too low."""


class StreamStore:
    """`Streamed`: the records of `source`, which knows their layout.

    `ahead` says if expected records are fetched before they are requested. Picklable: threads, connections and open
    files belong to each process. Not for several threads at once.
    """

    streamed: Literal[True] = True
    device = False

    def __init__(self, source: Source, remote: RemoteConfig, identity: str, block: int, *, ahead: bool = True) -> None:
        assert source.layout is not None
        self.keys: Sequence[str] = [record.key for record in source.records]
        self.meta: Sequence[Mapping[str, Json]] = _Meta(self)
        self.arrays: Mapping[str, StoredArray] = {
            name: StreamedArray(self, name, np.dtype(kind), shape) for name, kind, shape in source.layout
        }
        self.identity, self.block = identity, block
        self._source, self._remote, self._ahead = source, remote, ahead
        self._bad_samples = BadSamples(source.files)
        self._start()

    def _start(self) -> None:
        self._fetcher: Fetcher | None = None
        self._held: dict[int, Entry] = {}
        """Records promised by the last `usable`."""
        self._read: tuple[int, Entry] | None = None
        """The last record read outside of it."""
        self._asked: set[int] = set()
        """Records that batches requested; then their number of files."""
        self._files_asked = 0
        self._meter = Meter("hits", "misses", "waited_seconds", "bad")

    def __getstate__(self) -> dict[str, Any]:
        own = ("_fetcher", "_held", "_read", "_asked", "_files_asked", "_numbers", "_meter")
        return {name: value for name, value in self.__dict__.items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    # ------------------------------------------------------------ Streamed

    def begin(self, folder: Path) -> None:
        self._bad_samples = BadSamples(self._source.files, folder / FILE)

    def expect(self, records: Array) -> None:
        if self._ahead:
            self._fetching().expect(dict.fromkeys(records.tolist()))

    def usable(self, records: Array, positions: Array, epoch: int, among: Array) -> Array:
        begun = time.monotonic()
        held, coming = self._ask(dict.fromkeys(records.tolist()))
        places = zip(records.tolist(), positions.tolist(), strict=True)
        chosen = [self._choose(record, position, epoch, among, held, coming) for record, position in places]
        self._held = {number: held[number] for number in chosen}
        if coming:
            self._meter.add("waited_seconds", time.monotonic() - begun)
        return np.asarray(chosen, np.int64)

    def counters(self) -> dict[str, float]:
        fetched = self._source.meter.take() | {"retries": 0.0}
        if self._source.remote:
            requests = remote_client(self._remote).meter.take()
            fetched = {name: fetched[name] + requests[name] for name in fetched}
        waits = self._meter.take()
        return fetched | {name: waits[name] for name in ("hits", "misses", "waited_seconds", "bad")}

    def close(self) -> None:
        """Stop the threads; stored records stay on disk."""
        if self._fetcher is not None:
            self._fetcher.close()
            self._fetcher = None
        self._held, self._read = {}, None

    # ------------------------------------------------------------ records

    def entry(self, number: int) -> Entry:
        """Return a record, waiting for it if necessary; raise BadRecord."""
        if number in self._held:
            return self._held[number]
        if self._read is None or self._read[0] != number:
            self._read = None  # not held any more while another one comes
            self._read = number, self._now(number)
        return self._read[1]

    def _now(self, number: int) -> Entry:
        """Return a record from the LRU, else from its files, before all expected ones."""
        return self._source.kept(number) or self._fetching().fetch(number).result()

    def _ask(self, numbers: Iterable[int]) -> tuple[dict[int, Entry], dict[int, Future[Entry]]]:
        """Return the stored records and futures of the others, requested all at once, without known bad ones."""
        held, coming = {}, {}
        for number in numbers:
            self._note(number)
            with suppress(BadRecord):
                entry = self._held.get(number) or self._source.kept(number)
                self._meter.add("misses" if entry is None else "hits")
                if entry is not None:
                    held[number] = entry
                else:
                    coming[number] = self._fetching().fetch(number)
        return held, coming

    def _choose(
        self,
        record: int,
        position: int,
        epoch: int,
        among: Array,
        held: dict[int, Entry],
        coming: Mapping[int, Future[Entry]],
    ) -> int:
        """Return `record` or its replacement at `position`, which then is in `held`."""
        before = self._bad_samples.recorded(self.keys[record], position, epoch)
        first = [] if before is None else [self._numbers[before]]
        bad: BadRecord | None = None
        for number in chain(first, [record], stand_ins(epoch, position, among)):
            try:
                if number not in held:
                    self._note(number)
                    held[number] = coming[number].result() if number in coming else self._now(number)
            except BadRecord as error:
                self._bad_samples.refuse_too_many(error, self._files_asked)
                bad = error if number == record else bad
                continue
            if number != record:
                self._meter.add("bad")
                if bad is not None:
                    self._bad_samples.replaced(bad, position, epoch, self.keys[number])
            return number
        raise BadInput(f"{bad}; and no record that was tried in its place can be used either")

    def _note(self, number: int) -> None:
        if number not in self._asked:
            self._asked.add(number)
            self._files_asked += len(self._source.records[number].files)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {key: number for number, key in enumerate(self.keys)}

    def _fetching(self) -> Fetcher:
        if self._fetcher is None:
            files = max(1, len(self._source.records[0].files))
            threads = -(-self._remote.connections // files) + 1 + len(os.sched_getaffinity(0))
            give_up = remote_client(self._remote).close if self._source.remote else lambda: None
            self._fetcher = Fetcher(self._source.prepare, self._source.there, give_up, threads)
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            if soft < (most := min(hard, _OPEN_FILES)):
                resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        return self._fetcher


class StreamedArray:
    """One array of every record."""

    def __init__(self, store: StreamStore, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self._store, self._name, self.dtype = store, name, dtype
        self.shapes: Sequence[tuple[int, ...]] = [shape] * len(store.keys)

    def read(self, record: int, region: Region | None = None) -> Array:
        array = self._store.entry(record).arrays[self._name]
        return array if region is None else array[region]

    def take(self, rows: Array, out: Array) -> None:
        size = self.shapes[0][0]
        records = rows // size
        for record in np.unique(records).tolist():
            places = np.flatnonzero(records == record)
            out[places] = self.read(record)[rows[places] - record * size]


class _Meta(Sequence[Mapping[str, Json]]):
    """Metadata that `decode` returned for each record, read on demand."""

    def __init__(self, store: StreamStore) -> None:
        self._store = store

    def __len__(self) -> int:
        return len(self._store.keys)

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return [self[n] for n in range(*number.indices(len(self)))]
        return self._store.entry(range(len(self))[number]).meta
