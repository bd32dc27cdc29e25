"""Numbered records, and how each becomes an entry of the LRU."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

from runner_core._errors import BadInput, DataErrors, OutOfSpace
from runner_core.cache.agree import differing, stale
from runner_core.cache.build import as_json
from runner_core.cache.identity import source_bytes
from runner_core.project import AnyRecord, Prepared, at_url
from runner_core.protocols import Pipeline
from runner_core.stream.bad import BadRecord
from runner_core.stream.claim import claimed
from runner_core.stream.entry import Entry, Layout
from runner_core.stream.lru import Lru
from runner_core.stream.meter import Meter

_FIRST = 3
"""Records that are tried before it is said that they cannot be used."""
_TRIES = 3
_AGAIN = 60.0
"""Seconds after which a record that could not be read for a passing reason is tried again."""


class Source:
    """`records`, prepared by `pipeline` and kept in `lru` under `names`. Picklable.

    `layout`, once it is known, is that of every record's arrays: one that has another is bad.
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
        """Of files on this machine; requests are counted by the client."""
        self._bad: dict[int, tuple[BadRecord, float]] = {}
        """Found by this process, and when."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("meter", "_bad")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    def learn(self) -> Entry:
        """Prepare records, from the first on, until one can be: it says what arrays all have.

        Raises BadRecord at once where all others must fail in the same way (the bucket does not exist, access is
        denied), DataErrors when the first few are bad, BadInput where the LRU has the record with other arrays than it
        is prepared to today.
        """
        for number, record in enumerate(self.records[:_FIRST]):
            try:
                made = self._made(number)
            except BadRecord as bad:
                if bad.everywhere:
                    raise
                continue
            before = self.lru.get(self.names[number])
            if before is not None and (other := differing(made.arrays, before.arrays)):
                raise stale(self.lru.folder, self.pipeline, record, other)
            self.layout, self._pattern = made.layout, record.key
            return self.lru.put(self.names[number], dict(made.arrays), made.meta)
        raise DataErrors([str(bad) for bad, _ in self._bad.values()])

    def there(self, number: int) -> bool:
        """Is there nothing to fetch? What is in the LRU is its newest then."""
        return self._known_bad(number) is not None or self.lru.touch(self.names[number])

    def kept(self, number: int) -> Entry | None:
        """The record from the LRU, None where it is not there. Raises BadRecord."""
        if bad := self._known_bad(number):
            raise bad
        entry = self.lru.get(self.names[number])
        if entry is not None:
            self._refuse_other_layout(number, entry)
        return entry

    def prepare(self, number: int) -> Entry:
        """The record from its files, and into the LRU; once, though several processes want it. Raises BadRecord,
        OutOfSpace."""
        with claimed(self.lru.folder.with_suffix(".lock"), self.names[number]):
            if (entry := self.kept(number)) is not None:  # another process had it in hand
                return entry
            made = self._made(number)
            self._refuse_other_layout(number, made)
            return self.lru.put(self.names[number], dict(made.arrays), made.meta)

    def _made(self, number: int) -> Entry:
        """The record from its files."""
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
            # Before Python 3.13 ast.literal_eval, by which NumPy reads the head of .npy files, may raise this when
            # several threads call it at once: https://github.com/python/cpython/issues/106905
            with suppress(SystemError):
                return self.pipeline(record)
        return self.pipeline(record)

    @contextmanager
    def _reading(self, record: AnyRecord) -> Iterator[None]:
        """Counts the record's files on this machine."""
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
