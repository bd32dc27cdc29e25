"""A store as streaming gives it, in memory: it notes what it is asked for. Worker processes import this module."""

from __future__ import annotations

import os

import numpy as np

ROWS, SIDE = 3, 6


class Array:
    def __init__(self, whole):
        self.whole = whole
        self.dtype = whole.dtype
        self.shapes = [whole.shape[1:]] * len(whole)

    def read(self, record, region=None):
        return self.whole[record] if region is None else self.whole[record][region]

    def take(self, rows, out):
        np.take(self.whole.reshape(-1, *self.whole.shape[2:]), rows, axis=0, out=out, mode="clip")


class FakeStream:
    """`records` stacks of ROWS slices, every pixel the record's number and slice; `bad` cannot be read: the next of
    `among` stands in. Each counts as two files, fetched in half a second. What is expected is also
    noted in the folder `heard`, in a file for each process."""

    streamed = True
    device = False
    identity = "fake"

    def __init__(self, records=8, block=4, bad=(), heard=None):
        rows = np.arange(records * ROWS, dtype=np.int32).reshape(records, ROWS, 1, 1)
        self.arrays = {"image": Array(np.broadcast_to(rows, (records, ROWS, SIDE, SIDE)).copy())}
        self.keys = [f"r{n}" for n in range(records)]
        self.meta = [{} for _ in range(records)]
        self.block, self.bad = block, frozenset(bad)
        self.expected: list[int] = []
        self.used: list[tuple[int, int, int]] = []
        self.fetched = 0
        self.heard = heard

    def begin(self, folder):
        pass

    def expect(self, records):
        self.expected += records.tolist()
        if self.heard is not None:
            with open(self.heard / str(os.getpid()), "a") as file:
                file.write("".join(f"{r} " for r in records.tolist()))

    def usable(self, records, positions, epoch, among):
        assert not set(records.tolist()) - set(among.tolist())
        self.used += [(r, p, epoch) for r, p in zip(records.tolist(), positions.tolist(), strict=True)]
        self.fetched += len(set(records.tolist()))
        good = [r for r in among.tolist() if r not in self.bad]
        return np.array([good[r % len(good)] if r in self.bad else r for r in records.tolist()], np.int64)

    def counters(self):
        fetched, self.fetched = self.fetched, 0
        return {"files": 2 * fetched, "bytes": 1e6 * fetched, "fetched_seconds": 0.5 * fetched, "hits": fetched}

    def close(self):
        pass
