"""Common base of samples, for stored records and for records that are fetched as they are used."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from runner_core.contract import Array, Store, is_streamed
from runner_core.data.sampling import near_order, order

_MOST_AHEAD = 4096
"""Largest number of samples to look ahead; more would not help with a link that stalls for longer."""


class RecordSamples:
    """Samples of a store's records.

    If records are fetched as they are used (`Streamed`), samples come in an order in which one fetch serves all samples
    of a record, and a record that cannot be read is replaced.
    """

    record_of_sample: Array
    """Record of each sample: (samples,) int64."""

    def __init__(self, store: Store) -> None:
        self._stream = store if is_streamed(store) else None
        self._replaced = 0

    def __len__(self) -> int:
        return len(self.record_of_sample)

    @property
    def streaming(self) -> bool:
        return self._stream is not None

    def sequence(self, seed: int, epoch: int, count: int, shuffle: bool) -> Array:
        """Return `count` sample numbers (int64) of one epoch."""
        if self._stream is not None and shuffle:
            return near_order(seed, epoch, self.record_of_sample, count, self._stream.block)
        return order(seed, epoch, len(self), count, shuffle)

    @property
    def ahead(self) -> int:
        """Number of coming samples to announce: those of half a block of records, which fit on the disk."""
        if self._stream is None:
            return 0
        return min(_MOST_AHEAD, self._stream.block // 2 * len(self) // max(1, len(self._all_records)))

    def expect(self, indices: Array) -> None:
        """Start fetching the records of samples `indices`, if records are fetched."""
        if self._stream is not None:
            records = self.record_of_sample[indices]
            self._stream.expect(records[np.sort(np.unique(records, return_index=True)[1])])

    def counters(self) -> dict[str, float]:
        """Return what fetching took in this process since the last call; `replaced` counts samples of other records."""
        if self._stream is None:
            return {}
        replaced, self._replaced = self._replaced, 0
        return self._stream.counters() | {"replaced": replaced}

    def _readable(self, records: Array, positions: Array, epoch: int) -> Array:
        """Return the records to read instead of `records`: the same ones, unless they cannot be read."""
        if self._stream is None:
            return records
        found = self._stream.usable(records, positions, epoch, self._all_records)
        self._replaced += int(np.count_nonzero(found != records))
        return found

    @cached_property
    def _all_records(self) -> Array:
        """Each record that has samples, once."""
        return np.unique(self.record_of_sample)
