"""Samples of records that are fetched as they are used: their order, what is announced, replaced, counted."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runner_core import PatchSamples, RowSamples, TileSamples
from runner_core.contract import StreamedSamples
from runner_core.data.loader import Loader
from runner_core.data.sampling import near_order, order

sys.path.insert(0, str(Path(__file__).parent / "data_toy"))
from streamed_toy import ROWS, FakeStream

KINDS = {
    "rows": lambda store, records: RowSamples(store, {"image": (0,)}, records),
    "patches": lambda store, records: PatchSamples(store, ("image",), (1, 4, 4), records, ROWS),
    "tiles": lambda store, records: TileSamples(store, ("image",), (1, 6, 6), records),
}
"""Each takes ROWS samples of a record."""


@st.composite
def groups(draw):
    """Samples of groups, in any order."""
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=30))
    return np.array(draw(st.permutations([g for g, n in enumerate(sizes) for _ in range(n)])), np.int64)


@given(groups(), st.integers(1, 12), st.integers(0, 2**40), st.integers(0, 50), st.integers(0, 200))
def test_samples_of_a_group_are_near_each_other(groups, block, seed, epoch, count):
    """Every pass is a permutation, at no place of which more than `block` groups are begun and not finished."""
    sequence = near_order(seed, epoch, groups, count, block)
    assert len(sequence) == count
    assert sequence.dtype == np.int64
    for begin in range(0, count, len(groups)):
        one = sequence[begin : begin + len(groups)]
        assert len(set(one.tolist())) == len(one)
        if len(one) == len(groups):
            of = groups[one]
            first = {g: int(np.flatnonzero(of == g)[0]) for g in set(of.tolist())}
            last = {g: int(np.flatnonzero(of == g)[-1]) for g in set(of.tolist())}
            for at in range(len(of)):
                assert sum(first[g] <= at < last[g] for g in first) <= block
    assert np.array_equal(sequence, near_order(seed, epoch, groups, count, block))
    assert np.array_equal(sequence[: count // 2], near_order(seed, epoch, groups, count // 2, block))


def test_with_room_for_all_the_order_is_the_usual_one():
    groups = np.repeat(np.arange(9), 4)
    assert np.array_equal(near_order(3, 5, groups, 80, block=9), order(3, 5, 36, 80, shuffle=True))


def test_new_groups_come_at_an_even_pace():
    """So the link is never asked for more at some times than at others: with 4 samples a group, every fourth sample is
    of a new one; and epochs differ."""
    groups = np.repeat(np.arange(2000), 4)
    sequence = near_order(0, 0, groups, len(groups), block=100)
    _, first = np.unique(groups[sequence], return_index=True)
    new = np.zeros(len(groups), int)
    new[first] = 1
    pace = new[400:-400].reshape(-1, 80).mean(axis=1)
    assert abs(pace.mean() - 0.25) < 0.02
    assert pace.max() < 0.45
    assert not np.array_equal(sequence, near_order(0, 1, groups, len(groups), block=100))
    assert not np.array_equal(sequence, near_order(1, 0, groups, len(groups), block=100))


def filled(samples, indices, epoch=0):
    indices = np.asarray(indices, np.int64)
    out = {name: np.empty((len(indices), *s.shape), s.dtype) for name, s in samples.spec.items()}
    samples.fill(indices, np.arange(len(indices)), 7, epoch, out)
    return out


@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_be_read_is_replaced(kind):
    """The record that the store names gives its sample and number; other records stay; each replacement is counted."""
    good, bad = FakeStream(), FakeStream(bad=[2, 5])
    records = [1, 2, 4, 5, 6]
    samples, whole = KINDS[kind](bad, records), KINDS[kind](good, records)
    every = range(len(samples))
    one, other = filled(samples, every), filled(whole, every)
    own = other["record"]
    assert one["record"].tolist() == [{2: 6, 5: 6}.get(r, r) for r in own.tolist()]
    moved = (one["record"] - own) * ROWS  # each pixel says its record and slice
    assert np.array_equal(one["image"], other["image"] + moved.reshape(-1, *[1] * (one["image"].ndim - 1)))
    assert samples.counters()["replaced"] == 2 * ROWS
    assert samples.counters()["replaced"] == 0
    assert bad.used == [(r, p, 0) for p, r in enumerate(own.tolist())]


@pytest.mark.parametrize("kind", KINDS)
def test_each_record_is_expected_once_in_the_order_of_use(kind):
    store = FakeStream()
    samples = KINDS[kind](store, [1, 2, 4])
    assert isinstance(samples, StreamedSamples)
    assert samples.streaming
    samples.expect(np.array([8, 2, 7, 1, 3]))
    assert store.expected == [4, 1, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_other_stores_are_read_as_they_always_were(kind):
    """`PatchSamples` and the others are `StreamedSamples` of any store, and say when nothing is fetched."""
    store = FakeStream(bad=[1])
    store.streamed = False
    samples = KINDS[kind](store, [1, 2, 4])
    assert not samples.streaming
    assert np.array_equal(samples.sequence(1, 2, 20, True), order(1, 2, 9, 20, True))
    samples.expect(np.arange(3))
    assert filled(samples, [0])["record"].tolist() == [1]
    assert samples.counters() == {}
    assert not store.expected
    assert not store.used


def batches(loader, epoch=0, first_step=0):
    got = []
    for batch in loader.batches(epoch, first_step):
        got.append({name: array.copy() for name, array in batch.arrays.items()})
        batch.release()
    return got


def same(one, other):
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        assert all(np.array_equal(a[name], b[name]) for name in a)


def patches(store):
    return PatchSamples(store, ("image",), (1, 4, 4), range(8), 3)


@pytest.mark.parametrize("workers", [1, 2])
def test_batches_and_counts_do_not_depend_on_workers(workers):
    here = Loader(patches(FakeStream(bad=[3])), batch_size=5, seed=3, shuffle=True)
    there = Loader(patches(FakeStream(bad=[3])), batch_size=5, seed=3, shuffle=True, workers=workers)
    try:
        same(batches(here), batches(there))
        one, other = here.counters(), there.counters()
        for name in ("replaced", "files", "bytes", "hits"):
            assert one[name] == other[name] > 0
        assert one["replaced"] == 3
        rate = one["files"] / one["fetched_seconds"]
        assert rate == 4
        assert other["files"] / other["fetched_seconds"] == pytest.approx(rate * workers)
        assert not here.counters()["files"]
        same(batches(here, 1, 2), batches(there, 1, 2))
    finally:
        there.close()


@settings(max_examples=20)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 8), st.integers(0, 3))
def test_ranks_share_one_sequence(ranks, batch_size, block, epoch):
    """Together the ranks take what one process would with the global batch."""
    drop = batch_size * ranks <= 8 * 3
    alone = Loader(
        patches(FakeStream(block=block)), batch_size=batch_size * ranks, seed=5, shuffle=True, drop_last=drop
    )
    parts = [
        Loader(
            patches(FakeStream(block=block)),
            **{"batch_size": batch_size, "seed": 5, "shuffle": True, "drop_last": drop, "rank": rank, "ranks": ranks},
        )
        for rank in range(ranks)
    ]
    wanted = [n for b in batches(alone, epoch) for n in b["record"].tolist()]
    steps = itertools.zip_longest(*(batches(part, epoch) for part in parts))
    assert [n for step in steps for b in step if b for n in b["record"].tolist()] == wanted


def test_batches_to_come_are_announced():
    """Two ahead of the one that is filled, into the next epoch, but not beyond the last."""
    store = FakeStream(block=1)
    samples = patches(store)
    assert samples.ahead == 0
    loader = Loader(samples, batch_size=4, seed=3, shuffle=True, prefetch=2, epochs=2)
    records = [samples.record_of_sample[samples.sequence(3, e, 24, True)].reshape(6, 4) for e in (0, 1)]
    known = [list(dict.fromkeys(batch.tolist())) for batch in [*records[0], *records[1][:2]]]
    totals = np.cumsum([len(b) for b in known]).tolist()
    seen = []
    for batch in loader.batches(0):
        seen.append(len(store.expected))
        batch.release()
    assert seen == totals[2:]
    assert store.expected == [r for batch in known for r in batch]
    store.expected.clear()
    assert len([batch.release() for batch in loader.batches(0, first_step=5)]) == 1
    assert store.expected == [r for batch in known[5:] for r in batch]
    store.expected.clear()
    assert len([batch.release() for batch in loader.batches(1, first_step=5)]) == 1
    assert store.expected == list(dict.fromkeys(records[1][5].tolist()))


def test_half_a_block_is_announced():
    store = FakeStream(records=40, block=12)
    samples = PatchSamples(store, ("image",), (1, 4, 4), range(40), 3)
    assert samples.ahead == 6 * 3
    loader = Loader(samples, batch_size=2, seed=3, shuffle=True)
    next(loader.batches(0)).release()
    sequence = samples.sequence(3, 0, 120, True)[: 2 + 18].reshape(-1, 2)
    wanted = [r for batch in samples.record_of_sample[sequence] for r in dict.fromkeys(batch.tolist())]
    assert store.expected == wanted


def test_workers_are_told_of_some_each(tmp_path):
    """One of two workers hears of the batches 0, 2, 4, the other of 1, 3, 5, long before they are filled."""
    store = FakeStream(records=40, block=12, heard=tmp_path)
    samples = PatchSamples(store, ("image",), (1, 4, 4), range(40), 3)
    loader = Loader(samples, batch_size=4, seed=3, shuffle=True, workers=2)
    try:
        batches(loader)
        told = [[int(n) for n in file.read_text().split()] for file in tmp_path.iterdir()]
    finally:
        loader.close()
    each = samples.record_of_sample[samples.sequence(3, 0, 120, True)].reshape(-1, 4)
    wanted = [[r for batch in each[n::2] for r in dict.fromkeys(batch.tolist())] for n in (0, 1)]
    assert sorted(told) == sorted(wanted)
    assert not store.expected


def test_validation_announces_nothing_beyond_its_end():
    store = FakeStream()
    loader = Loader(patches(store), batch_size=24, seed=3, shuffle=False)
    batches(loader)
    assert store.expected == list(range(8))
