"""Random numbers as pure functions of their place of use.

Philox is a counter-based generator: its output is a function of (key, counter). Key = seed and purpose, counter = epoch
and index, so a sample drawn in any process, in any order, after any resume, is the same sample. Salmon et al.,
"Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from runner_core.contract import Array

_WORD = 2**64
_WORDS, _ORDER = 0, 1
"""Purpose words of the key: `random_words` and `order` have their own, sample streams count from 2."""


def order(seed: int, epoch: int, length: int, count: int, shuffle: bool) -> Array:
    """Return `count` sample numbers (int64) of one epoch over `length` samples.

    The first `length` are a permutation (0, 1, 2, … without `shuffle`), and so is every further run of `length`.

    >>> order(0, 0, 3, 7, shuffle=False)
    array([0, 1, 2, 0, 1, 2, 0])
    """
    if count and not length:
        raise ValueError("there is no sample to draw from")
    passes = -(-count // length) if count else 0
    drawn = [
        _generator(seed, _ORDER, epoch, number).permutation(length) if shuffle else np.arange(length)
        for number in range(passes)
    ]
    return _joined(drawn, count)


def near_order(seed: int, epoch: int, groups: Array, count: int, block: int) -> Array:
    """Return an order like `order`, shuffled, over len(groups) samples, with samples of a group near each other.

    After any sample, at most `block` groups have samples both behind and ahead of it (in one pass). `groups` (int64)
    holds the group of each sample. Groups come in random order, and each sample at a random place in a window of
    `block` groups that begins with its own. So new groups come at an even pace. Data fetched once for all samples of a
    group then need room for few groups, and an evenly fast link is enough. With no more than `block` groups the
    permutation is that of `order`.

    >>> near_order(0, 0, np.array([5, 5, 7, 7, 9, 9]), 6, block=1)
    array([1, 0, 2, 3, 4, 5])
    """
    return near_order_of(seed, epoch, np.unique(groups, return_inverse=True)[1], count, block)


def near_order_of(seed: int, epoch: int, group: Array | range, count: int, block: int) -> Array:
    """Return `near_order` of groups that are numbered from 0 without gaps, which takes long to do.

    A range says that each sample is a group of its own.
    """
    number_of_groups = len(group) if isinstance(group, range) else int(group.max(initial=-1)) + 1
    if number_of_groups <= block:
        return order(seed, epoch, len(group), count, shuffle=True)
    drawn = []
    for number in range(-(-count // len(group))):
        rng = _generator(seed, _ORDER, epoch, number)
        first = rng.permutation(number_of_groups)
        place = rng.random(len(group))  # many samples are many bytes: this array becomes the sum
        place *= block
        place += first if isinstance(group, range) else first[group]
        del first
        drawn.append(np.argsort(place, kind="stable"))
    return _joined(drawn, count)


def _joined(drawn: Sequence[Array], count: int) -> Array:
    """Return the first `count` of the numbers (int64), without a copy of a single array."""
    whole = drawn[0] if len(drawn) == 1 else np.concatenate([np.empty(0, np.int64), *drawn])
    return whole.astype(np.int64, copy=False)[:count]


def sample_rng(seed: int, epoch: int, index: int, stream: int = 0) -> np.random.Generator:
    """Return a generator for `index` in `epoch`, for example a sample's position in the epoch's sequence.

    Different values of `stream` are independent of each other; 0 is the augmentation's.
    """
    return _generator(seed, 2 + stream, epoch, index)


def random_words(seed: int, epoch: int, positions: Array, count: int = 4) -> Array:
    """Return `count` random words (uint64) for each of `positions` (int64): (len(positions), count).

    This is for samples that draw a few numbers (a patch's position). It is one call for the whole batch, where a
    generator per sample would take longer than copying the sample. The words of a position in the epoch's sequence do
    not depend on other positions, and its first words not on `count`.
    """
    if not len(positions):
        return np.empty((0, count), np.uint64)
    first = int(positions.min())
    span = int(positions.max()) - first + 1  # a batch's positions are a run, so no draw is wasted
    blocks = []
    for block in range(-(-count // 4)):  # Philox gives four words for a count
        counter = (epoch * _WORD + block) * _WORD + first
        bits = np.random.Philox(key=seed % _WORD + _WORDS * _WORD, counter=counter)
        blocks.append(bits.random_raw(4 * span).reshape(span, 4)[positions - first])
    return np.concatenate(blocks, axis=1)[:, :count]


def random_below(words: Array, sizes: Array) -> Array:
    """Return an integer (int64) from 0 to `sizes` - 1 for each of `words` (uint64); sizes up to 2³².

    >>> random_below(np.array([0, 2**63, 2**64 - 1], np.uint64), np.array([7, 7, 7]))
    array([0, 3, 6])
    """
    return ((words >> np.uint64(32)) * np.asarray(sizes).astype(np.uint64) >> np.uint64(32)).astype(np.int64)


def _generator(seed: int, purpose: int, epoch: int, index: int) -> np.random.Generator:
    # The counter's low words count the numbers drawn; its two high words say where we are.
    key = seed % _WORD + purpose * _WORD
    return np.random.Generator(np.random.Philox(key=key, counter=(epoch * _WORD + index) * _WORD**2))


_MASK = (1 << 64) - 1


def stream_seed(seed: int, step: int, rank: int = 0) -> int:
    """Return the 64-bit seed of the device's random numbers in one step of one rank.

    Three rounds of SplitMix64 (Steele, Lea & Flood, OOPSLA 2014): neighbouring steps get unrelated seeds.

    >>> stream_seed(0, 1) == stream_seed(0, 1), stream_seed(0, 1) == stream_seed(1, 0)
    (True, False)
    """
    value = 0
    for part in (seed, step, rank):
        value = (value + part + 0x9E3779B97F4A7C15) & _MASK
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
        value ^= value >> 31
    return value
