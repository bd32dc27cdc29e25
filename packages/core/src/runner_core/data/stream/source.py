"""Numbered records, and how each becomes an entry of the LRU."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

from runner_core.base.errors import BadInput, DataErrors, OutOfSpace
from runner_core.contract import Pipeline
from runner_core.contract.records import AnyRecord, Prepared, at_url
from runner_core.data.cache.agree import differing, stale
from runner_core.data.cache.build import as_json
from runner_core.data.cache.identity import source_bytes
from runner_core.data.stream.bad import BadRecord
from runner_core.data.stream.entry import Entry, Layout
from runner_core.data.stream.fetch import claimed
from runner_core.data.stream.lru import Lru
from runner_core.data.stream.meter import Meter

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
        self.pipeline, self.records, self.names, self.lru = pipeline, records, names, lru
        self.layout: Layout | None = None
        self.files = sum(len(record.files) for record in records)
        self.remote = any(map(at_url, records))
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
