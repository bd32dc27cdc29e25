"""Sample order and per-sample generators are pure functions."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from runner_core.data.sampling import order, random_below, random_words, sample_rng

SEEDS = st.integers(0, 2**63)
SMALL = st.integers(1, 60)


@settings(deadline=None)  # the machine is shared
@given(seed=SEEDS, epoch=st.integers(0, 10_000), length=SMALL, count=st.integers(0, 200))
def test_every_run_of_length_is_a_permutation(seed, epoch, length, count):
    sequence = order(seed, epoch, length, count, shuffle=True)
    assert sequence.dtype == np.int64
    assert len(sequence) == count
    for begin in range(0, count, length):
        part = sequence[begin : begin + length]
        assert len(set(part.tolist())) == len(part)
        assert set(part.tolist()) <= set(range(length))


@settings(deadline=None)  # the machine is shared
@given(seed=SEEDS, epoch=st.integers(0, 100), length=SMALL, count=st.integers(0, 150), longer=st.integers(0, 50))
def test_a_longer_epoch_begins_with_the_shorter_one(seed, epoch, length, count, longer):
    short, long = (order(seed, epoch, length, n, shuffle=True) for n in (count, count + longer))
    assert np.array_equal(short, long[:count])


@settings(deadline=None)  # the machine is shared
@given(length=SMALL, count=st.integers(0, 150))
def test_without_shuffle_samples_come_in_their_order(length, count):
    assert order(5, 3, length, count, shuffle=False).tolist() == [i % length for i in range(count)]


def test_epochs_seeds_and_passes_differ():
    base = order(1, 0, 100, 100, shuffle=True)
    assert not np.array_equal(base, order(1, 1, 100, 100, shuffle=True))
    assert not np.array_equal(base, order(2, 0, 100, 100, shuffle=True))
    assert not np.array_equal(base, order(1, 0, 100, 200, shuffle=True)[100:])


def test_the_order_is_what_it_was():
    """Changing these numbers changes every run that is resumed: raise a version if you must."""
    assert order(7, 3, 8, 10, shuffle=True).tolist() == [5, 1, 3, 7, 2, 6, 4, 0, 0, 5]
    assert sample_rng(7, 3, 5).integers(0, 1000, 4).tolist() == [53, 208, 654, 922]
    assert (random_words(7, 3, np.array([5])) >> np.uint64(54)).tolist() == [[849, 235, 440, 565]]
    assert (random_words(7, 3, np.array([5]), 6) >> np.uint64(54)).tolist() == [[849, 235, 440, 565, 397, 799]]


@settings(deadline=None)  # the machine is shared
@given(
    seed=SEEDS,
    epoch=st.integers(0, 1000),
    positions=st.lists(st.integers(0, 500), max_size=9),
    count=st.integers(1, 13),
)
def test_words_are_of_the_position_and_more_of_them_begin_alike(seed, epoch, positions, count):
    drawn = random_words(seed, epoch, np.array(positions, np.int64), count)
    assert drawn.shape == (len(positions), count)
    for position, own in zip(positions, drawn, strict=True):
        alone = random_words(seed, epoch, np.array([position]), 16)[0]
        assert np.array_equal(own, alone[:count])
        assert len(set(alone.tolist())) == 16


def test_numbers_below_are_as_likely():
    drawn = random_below(random_words(0, 0, np.arange(6000))[:, :2], np.array([6, 1]))
    assert ((np.bincount(drawn[:, 0], minlength=6) - 1000) ** 2 / 1000).sum() < 20.5  # χ², 5 degrees of freedom, 0.1 %
    assert not drawn[:, 1].any()
    largest = np.array([2**64 - 1], np.uint64)
    assert random_below(largest, np.array([2**32])).tolist() == [2**32 - 1]


@settings(deadline=None)  # the machine is shared
@given(seed=SEEDS, epoch=st.integers(0, 1000), index=st.integers(0, 2**40), stream=st.integers(0, 9))
def test_sample_rng_is_pure_and_its_streams_differ(seed, epoch, index, stream):
    draw = sample_rng(seed, epoch, index, stream).integers(0, 2**63, 4).tolist()
    assert draw == sample_rng(seed, epoch, index, stream).integers(0, 2**63, 4).tolist()
    for other in ((epoch, index + 1, stream), (epoch + 1, index, stream), (epoch, index, stream + 1)):
        assert draw != sample_rng(seed, *other).integers(0, 2**63, 4).tolist()


def test_drawing_much_from_one_sample_does_not_reach_the_next():
    first = sample_rng(0, 0, 0).integers(0, 2**63, 100_000)
    assert not np.isin(sample_rng(0, 0, 1).integers(0, 2**63, 1000), first).any()
