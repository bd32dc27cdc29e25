"""What samples of a store's records have in common, whether the records are there or are fetched as they are used."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from runner_core.protocols import Array, Store, is_streamed
from runner_core.sampling import near_order, order

_MOST_AHEAD = 4096
"""Samples: more look-ahead would not make up for a link that stands still for longer."""


class OfRecords:
    """Samples taken of a store's records. Where records are fetched as they are used (`protocols.Streamed`), they come
    in an order in which a fetched record serves for all its samples, and one that cannot be read is replaced."""

    record_of_sample: Array
    """The record of each sample (samples,) int64."""

    def __init__(self, store: Store) -> None:
        self._stream = store if is_streamed(store) else None
        self._replaced = 0

    def __len__(self) -> int:
        return len(self.record_of_sample)

    @property
    def streaming(self) -> bool:
        return self._stream is not None

    def sequence(self, seed: int, epoch: int, count: int, shuffle: bool) -> Array:
        """Sample numbers (int64, `count` of them) of one epoch."""
        if self._stream is not None and shuffle:
            return near_order(seed, epoch, self.record_of_sample, count, self._stream.block)
        return order(seed, epoch, len(self), count, shuffle)

    @property
    def ahead(self) -> int:
        """Samples to come of which it is good to know: those of half a block of records, for which there is room."""
        if self._stream is None:
            return 0
        return min(_MOST_AHEAD, self._stream.block // 2 * len(self) // max(1, len(self._all_records)))

    def expect(self, indices: Array) -> None:
        """Have the records of samples `indices` fetched, where that is to be done."""
        if self._stream is not None:
            records = self.record_of_sample[indices]
            self._stream.expect(records[np.sort(np.unique(records, return_index=True)[1])])

    def counters(self) -> dict[str, float]:
        """What fetching took in this process since the last call; `replaced`: samples taken of another record."""
        if self._stream is None:
            return {}
        replaced, self._replaced = self._replaced, 0
        return self._stream.counters() | {"replaced": replaced}

    def _readable(self, records: Array, positions: Array, epoch: int) -> Array:
        """The records to read in place of `records`: themselves, where they can be read."""
        if self._stream is None:
            return records
        found = self._stream.usable(records, positions, epoch, self._all_records)
        self._replaced += int(np.count_nonzero(found != records))
        return found

    @cached_property
    def _all_records(self) -> Array:
        """Each record of which there are samples, once."""
        return np.unique(self.record_of_sample)
