"""Betti matching counts: hand-made volumes, Euler's formula, a textbook reduction, and the library's own results."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from runner_vesuvius.metric.betti import betti_counts, betti_numbers, find_cavities
from runner_vesuvius.metric.elimination import independent
from runner_vesuvius.metric.loops import find_loops
from scipy import ndimage


def ball(radius, shape=(17, 17, 17), centre=(8, 8, 8)):
    grid = np.indices(shape) - np.reshape(centre, (3, 1, 1, 1))
    return (grid**2).sum(0) <= radius**2


def ring(centre, normal, radius=5, thick=1.5, shape=(21, 21, 21)):
    grid = np.indices(shape) - np.reshape(centre, (3, 1, 1, 1))
    flat = np.sqrt((np.delete(grid, normal, 0) ** 2).sum(0))
    return (flat - radius) ** 2 + grid[normal] ** 2 <= thick**2


def sheet(*holes):
    volume = np.zeros((12, 20, 20), bool)
    volume[5:7] = True
    for y, x in holes:
        volume[:, y : y + 3, x : x + 3] = False
    return volume


def betti(mask):
    """Components, loops and cavities: those that never die do not count."""
    return betti_counts(mask, np.zeros_like(mask))[:, 1].tolist()


def euler(mask):
    """Voxels - edges + squares - cubes of the foreground."""
    total = 0
    for spans in itertools.product((0, 1), repeat=3):
        cells = np.ones([n - s for n, s in zip(mask.shape, spans, strict=True)], bool)
        for corner in itertools.product(*[range(s + 1) for s in spans]):
            cells &= mask[tuple(slice(c, c + n) for c, n in zip(corner, cells.shape, strict=True))]
        total += (-1) ** sum(spans) * int(cells.sum())
    return total


def test_known_betti_numbers():
    torus = ring((10, 10, 10), 0, 6, 3)
    linked = ring((10, 10, 8), 0) | ring((10, 10, 13), 1)
    tube = ring((10, 10, 10), 0, 6, 3.6) & ~ring((10, 10, 10), 0, 6, 1.2)
    assert betti(ball(6)) == [0, 0, 0]
    assert betti(ball(6) & ~ball(4)) == [0, 0, 1]
    assert betti(torus) == [0, 1, 0]
    assert betti(tube) == [0, 2, 1]
    assert betti(linked) == [1, 2, 0]
    assert betti(sheet()) == [0, 0, 0]
    assert betti(sheet((4, 4), (12, 9))) == [0, 2, 0]
    assert betti(np.zeros((5, 5, 5), bool)) == [0, 0, 0]
    assert betti(np.ones((5, 5, 5), bool)) == [0, 0, 0]
    assert betti(~ball(6)) == [0, 0, 1]


def test_sheets_joined_by_a_bridge():
    apart = np.zeros((20, 20, 20), bool)
    apart[4:6], apart[12:14] = True, True
    once = apart.copy()
    once[:, 5:7, 5:7][4:14] = True
    twice = once.copy()
    twice[:, 14:16, 14:16][4:14] = True
    assert betti_counts(once, apart).tolist() == [[0, 0, 1], [0, 0, 0], [0, 0, 0]]
    assert betti_counts(twice, apart).tolist() == [[0, 0, 1], [0, 1, 0], [0, 0, 0]]
    assert betti_counts(apart, apart).tolist() == [[1, 1, 1], [0, 0, 0], [0, 0, 0]]


def test_only_what_is_at_the_same_place_matches():
    one, other = sheet((3, 3)), sheet((14, 12))
    assert betti_counts(one, one)[1].tolist() == [1, 1, 1]
    assert betti_counts(one, sheet((4, 4)))[1].tolist() == [1, 1, 1]  # the holes overlap
    assert betti_counts(one, other)[1].tolist() == [0, 1, 1]  # together they have none
    assert betti_counts(one, sheet((3, 3), (14, 12)))[1].tolist() == [1, 1, 2]
    shell = ball(7) & ~ball(3)
    assert betti_counts(shell, ball(6) & ~ball(2))[2].tolist() == [1, 1, 1]
    assert betti_counts(shell, ball(3))[2].tolist() == [0, 1, 0]


@given(arrays(bool, array_shapes(min_dims=3, max_dims=3, max_side=8)))
@settings(deadline=None, max_examples=200)
def test_eulers_formula(mask):
    cavities = find_cavities(mask)
    loops = find_loops(mask, cavities.first)
    components = ndimage.label(mask)[1]
    assert components - loops.number + len(cavities.numbers) == euler(mask)
    assert betti_numbers(mask) == (components, loops.number, len(cavities.numbers))


@given(st.integers(0, 10**9), st.floats(0.2, 0.8))
@settings(deadline=None, max_examples=20)
def test_loops_are_cycles_within_the_mask(seed, share):
    rng = np.random.default_rng(seed)
    mask = ndimage.gaussian_filter(rng.random((13, 12, 11)), 0.7)
    mask = mask > np.quantile(mask, share)
    loops = find_loops(mask, find_cavities(mask).first)
    assert ndimage.label(mask)[1] - loops.number + len(find_cavities(mask).numbers) == euler(mask)
    step = np.array([12 * 11, 11, 1])
    for k in range(loops.number):
        edges = loops.edges[loops.starts[k] : loops.starts[k + 1]]
        ends = np.concatenate([edges // 3, edges // 3 + step[edges % 3]])
        assert len(np.unique(edges)) == len(edges)
        assert mask.ravel()[ends].all()
        assert (np.bincount(ends) % 2 == 0).all()


@given(st.integers(0, 10**9), st.integers(1, 12), st.integers(0, 20))
@settings(deadline=None)
def test_elimination_finds_what_adds_to_the_rank(seed, columns, number):
    rng = np.random.default_rng(seed)
    rows = rng.random((number, columns + 4)) < rng.random()
    linked = np.concatenate([np.flatnonzero(row) for row in rows] or [[]]).astype(np.int32)
    found = independent(linked, np.cumsum([0, *rows.sum(1)]), 2, columns + 2)  # of the columns between two more
    spanned = {0}
    for row, is_new in zip(rows[:, 2:-2], found, strict=True):
        value = int("".join(map(str, row.astype(int))), 2)
        assert is_new == (value not in spanned)
        spanned |= {value ^ other for other in spanned}


def reduced(rows, columns, dimension):
    """Birth → death by the reduction modulo 2 of textbooks: births in the order of `rows`, deaths of `columns`."""
    place = {cell: k for k, cell in enumerate(rows[dimension])}
    pivots, pairs = {}, {}
    for cell in columns[dimension + 1]:
        chain = 0
        for axis in range(3):
            if cell[axis] % 2:
                for side in (-1, 1):
                    chain ^= 1 << place[(*cell[:axis], cell[axis] + side, *cell[axis + 1 :])]
        while chain and chain.bit_length() in pivots:
            chain ^= pivots[chain.bit_length()]
        if chain:
            pivots[chain.bit_length()] = chain
            pairs[rows[dimension][chain.bit_length() - 1]] = cell
    return pairs


def textbook(predicted, truth):
    """Betti matching as it is defined. A cell is its place in a grid of half voxels: odd where it extends."""

    def value(mask, cell):
        return not all(mask[v] for v in itertools.product(*[{c // 2, (c + 1) // 2} for c in cell]))

    def order(mask):
        cells = sorted(
            itertools.product(*[range(2 * n - 1) for n in mask.shape]),
            key=lambda c: (value(mask, c), [k // 2 for k in c], normal(c)),
        )
        return [[c for c in cells if sum(k % 2 for k in c) == d] for d in range(4)]

    def normal(cell):
        odd = [k for k in range(3) if cell[k] % 2]
        return odd[0] if len(odd) == 1 else next((k for k in range(3) if k not in odd), 0)

    union = predicted | truth
    orders = [order(mask) for mask in (predicted, truth, union)]
    counts = np.zeros((3, 3), np.int64)
    for d in range(3):
        deaths = {}
        for k, mask in enumerate((predicted, truth)):
            own = [b for b, death in reduced(orders[k], orders[k], d).items() if value(mask, b) < value(mask, death)]
            counts[d, 1 + k] = len(own)
            image = reduced(orders[k], orders[2], d)
            deaths[k] = {image[b] for b in own if b in image}
        alive = {
            death for b, death in reduced(orders[2], orders[2], d).items() if value(union, b) < value(union, death)
        }
        counts[d, 0] = len(deaths[0] & deaths[1] & alive)
    return counts


@given(st.integers(0, 10**9), array_shapes(min_dims=3, max_dims=3, max_side=5), st.floats(0.2, 0.9))
@settings(deadline=None, max_examples=60)
def test_textbook(seed, shape, share):
    rng = np.random.default_rng(seed)
    predicted = rng.random(shape) < share
    truth = predicted ^ (rng.random(shape) < 0.2)
    np.testing.assert_array_equal(betti_counts(predicted, truth), textbook(predicted, truth))


@pytest.mark.parametrize(("share", "dimension"), [(0.6, 1), (0.95, 2)])
def test_textbook_with_many_loops_and_cavities(share, dimension):
    rng = np.random.default_rng(24)
    truth = rng.random((7, 7, 7)) < share
    predicted = truth ^ (rng.random(truth.shape) < 0.04)
    counts = betti_counts(predicted, truth)
    np.testing.assert_array_equal(counts, textbook(predicted, truth))
    assert 0 < counts[dimension, 0] < counts[dimension, 1:].min()


# made by: Betti-Matching-3D (as in topolosses 0.2.0), of `pair(side, share, noise, seed)`
PINNED: dict[tuple[int, float, float, int], list[list[int]]] = {
    (8, 0.5, 0.1, 0): [[0, 5, 0], [2, 8, 3], [0, 0, 0]],
    (16, 0.3, 0.02, 1): [[7, 36, 7], [4, 11, 4], [0, 1, 0]],
    (24, 0.5, 0.01, 2): [[4, 42, 4], [51, 61, 52], [1, 6, 1]],
    (32, 0.4, 0.05, 3): [[18, 439, 19], [107, 291, 117], [0, 13, 0]],
    (32, 0.7, 0.2, 4): [[0, 270, 1], [116, 1762, 141], [0, 4, 2]],
    (33, 0.15, 0.1, 5): [[76, 1767, 82], [15, 109, 18], [0, 0, 0]],
}


def pair(side, share, noise, seed):
    """Two volumes of smooth shapes, the second with speckles: the same on every machine."""
    rng = np.random.Generator(np.random.Philox(seed))
    field = rng.integers(0, 256, (side + 4, side + 4, side + 4)).astype(np.int64)
    for axis in range(3):
        field = sum(np.take(field, range(k, field.shape[axis] - 2 + k), axis) for k in range(3))
        field = sum(np.take(field, range(k, field.shape[axis] - 2 + k), axis) for k in range(3))
    truth = field > np.sort(field, axis=None)[int(field.size * (1 - share))]
    return truth ^ (rng.integers(0, 1000, truth.shape) < 1000 * noise), truth


@pytest.mark.parametrize("case", PINNED)
def test_pinned(case):
    assert betti_counts(*pair(*case)).tolist() == PINNED[case]
