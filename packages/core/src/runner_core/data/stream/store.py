"""Records that are fetched as they are used: how each becomes an entry of the LRU, and the store that samples see."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext, suppress
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from runner_core.base.errors import BadInput, DataErrors, OutOfSpace
from runner_core.contract import Array, Json, Pipeline, StoredArray
from runner_core.contract.records import AnyRecord, Prepared, at_url
from runner_core.data.cache.build import as_json
from runner_core.data.cache.identity import source_bytes
from runner_core.data.cache.storage import Region
from runner_core.data.cache.verification import differing, stale
from runner_core.data.columns import Digests, Same
from runner_core.data.stream.bad import FILE, BadRecord, BadSamples, stand_ins
from runner_core.data.stream.client import remote_client
from runner_core.data.stream.fetch import Fetcher, Meter, claimed
from runner_core.data.stream.lru import Entry, Layout, Lru
from runner_core.data.table import any_at_url, compact, files_of, keys_of

if TYPE_CHECKING:
    from runner_core.config import RemoteConfig


_FIRST = 3
"""Number of records tried before reporting that records cannot be used."""
_TRIES = 3
_AGAIN = 60.0
"""Seconds after which a record that failed for a passing reason is tried again."""


class Source:
    """`records`, prepared by `pipeline` and kept in `lru` under `names`; picklable.

    Once `layout` is known, a record whose arrays have another layout is bad.
    """

    def __init__(self, pipeline: Pipeline, records: Sequence[AnyRecord], names: Sequence[str], lru: Lru) -> None:
        self.pipeline, self.lru = pipeline, lru
        self.records, self.names = compact(records), names if isinstance(names, Digests) else Digests(names)
        self.layout: Layout | None = None
        self.files, self.remote = files_of(self.records), any_at_url(self.records)
        self._pattern = ""
        self._start()

    def _start(self) -> None:
        self.meter = Meter("files", "bytes")
        """Counts files on this machine; the client counts requests."""
        self._bad: dict[int, tuple[BadRecord, float]] = {}
        """Bad records found by this process, and when."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("meter", "_bad")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    def learn(self) -> Entry:
        """Prepare records, from the first on, until one succeeds; its arrays define the layout of all.

        Raises BadRecord at once if all others must fail in the same way (the bucket does not exist, access is denied),
        DataErrors if the first few are bad, and BadInput if the LRU has the record with other arrays than today's
        preparation gives.
        """
        for number, record in enumerate(self.records[:_FIRST]):
            try:
                fresh = self._prepare_fresh(number)
            except BadRecord as bad:
                if bad.everywhere:
                    raise
                continue
            before = self.lru.get(self.names[number])
            if before is not None and (other := differing(fresh.arrays, before.arrays)):
                raise stale(self.lru.folder, self.pipeline, record, other)
            self.layout, self._pattern = fresh.layout, record.key
            return self.lru.put(self.names[number], dict(fresh.arrays), fresh.meta)
        raise DataErrors([str(bad) for bad, _ in self._bad.values()])

    def there(self, number: int) -> bool:
        """Return True if nothing needs to be fetched; a record in the LRU becomes its newest."""
        return self._known_bad(number) is not None or self.lru.touch(self.names[number])

    def kept(self, number: int) -> Entry | None:
        """Return the record from the LRU, or None if it is missing; raise BadRecord."""
        if bad := self._known_bad(number):
            raise bad
        entry = self.lru.get(self.names[number])
        if entry is not None:
            self._refuse_other_layout(number, entry)
        return entry

    def prepare(self, number: int) -> Entry:
        """Prepare the record from its files and put it into the LRU, once even if several processes want it.

        Raises BadRecord and OutOfSpace.
        """
        with claimed(self.lru.folder.with_suffix(".lock"), self.names[number]):
            if (entry := self.kept(number)) is not None:  # another process was preparing it
                return entry
            fresh = self._prepare_fresh(number)
            self._refuse_other_layout(number, fresh)
            return self.lru.put(self.names[number], dict(fresh.arrays), fresh.meta)

    def _prepare_fresh(self, number: int) -> Entry:
        """Return the record, prepared from its files."""
        record = self.records[number]
        try:
            with nullcontext() if at_url(record) else self._reading(record):
                prepared = self._prepared(record)
            return Entry(prepared.arrays, as_json(record, prepared.meta))
        except OutOfSpace:
            raise
        except (BadInput, OSError) as error:
            raise self._found_bad(number, error) from error
        except Exception as error:
            error.add_note(f"(preparing record {record.key})")
            raise

    def _prepared(self, record: AnyRecord) -> Prepared:
        for _ in range(_TRIES):
            # Before Python 3.13 ast.literal_eval, with which NumPy reads the head of .npy files, may raise this when
            # several threads call it at once: https://github.com/python/cpython/issues/106905
            with suppress(SystemError):
                return self.pipeline(record)
        return self.pipeline(record)

    @contextmanager
    def _reading(self, record: AnyRecord) -> Iterator[None]:
        """Count the record's files on this machine."""
        with self.meter.running():
            yield
        self.meter.add("files", len(record.files))
        self.meter.add("bytes", source_bytes(record))

    def _refuse_other_layout(self, number: int, entry: Entry) -> None:
        if self.layout is not None and entry.layout != self.layout:
            own, usual = (", ".join(f"{n} {t} {s}" for n, t, s in layout) for layout in (entry.layout, self.layout))
            error = BadInput(
                f"its prepared arrays are {own}; those of {self._pattern} are {usual}: streamed records have one shape"
            )
            raise self._found_bad(number, error)

    def _known_bad(self, number: int) -> BadRecord | None:
        bad, tried = self._bad.get(number, (None, 0.0))
        if bad is None or (bad.kind == "transient" and time.monotonic() - tried > _AGAIN):
            return None
        return bad

    def _found_bad(self, number: int, error: BadInput | OSError) -> BadRecord:
        bad = BadRecord(self.records[number], error)
        self._bad[number] = bad, time.monotonic()
        return bad


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
        self.keys: Sequence[str] = keys_of(source.records)
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
        self._asked = bytearray(-(-len(self._source.records) // 8))
        """One bit for each record: whether a batch requested it; then the number of these records' files."""
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

    @property
    def records(self) -> Sequence[AnyRecord]:
        """All records; many of them are made when they are asked for."""
        return self._source.records

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
        byte, bit = number >> 3, 1 << (number & 7)
        if not self._asked[byte] & bit:
            self._asked[byte] |= bit
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
    """An array of every record."""

    def __init__(self, store: StreamStore, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self._store, self._name, self.dtype = store, name, dtype
        self.shapes: Sequence[tuple[int, ...]] = Same(shape, len(store.keys))

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
