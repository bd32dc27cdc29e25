"""Persistent homology and Betti matching, against the textbook's algorithm, Betti numbers, and the authors' library."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runner_vesuvius.persistence import Matching, Pairs, barcode, match
from scipy import ndimage

Cell = tuple[int, int, int]
"""In doubled coordinates: even along an axis: at a voxel; odd: between two."""
CASES = json.loads((Path(__file__).parent / "betti_matching_cases.json").read_text("utf-8"))


# ---------------------------------------------------------------- the textbook: a dense matrix, column by column


class Plain:
    """All cells of a volume, by dimension, in the order of its sublevel filtration."""

    def __init__(self, volume: np.ndarray) -> None:
        shape = tuple(2 * length - 1 for length in volume.shape)
        self.value: dict[Cell, float] = {}
        self.cells: list[list[Cell]] = [[], [], [], []]
        for cell in itertools.product(*map(range, shape)):
            corners = itertools.product(*({at // 2, (at + 1) // 2} for at in cell))
            self.value[cell] = max(float(volume[corner]) for corner in corners)
            self.cells[dimension(cell)].append(cell)
        for cells in self.cells:
            cells.sort(key=lambda cell: (self.value[cell], [at // 2 for at in cell], kind(cell)))
        self.place = [{cell: i for i, cell in enumerate(cells)} for cells in self.cells]


def dimension(cell: Cell) -> int:
    return sum(at % 2 for at in cell)


def kind(cell: Cell) -> int:
    """Return the axis along which an edge runs, or the axis along which a square does not."""
    return [at % 2 for at in cell].index(dimension(cell) % 2) if dimension(cell) in (1, 2) else 0


def reduced(rows: Plain, columns: Plain, k: int) -> dict[Cell, Cell]:
    """Death of each birth of dimension k, by the standard algorithm (Edelsbrunner, Letscher, Zomorodian 2002); columns
    are whole numbers, whose bits are the rows."""
    with_lowest: dict[int, int] = {}
    found = {}
    for cell in columns.cells[k + 1]:
        column = 0
        for axis, step in itertools.product(range(3), (-1, 1)):
            if cell[axis] % 2:
                column ^= 1 << rows.place[k][(*cell[:axis], cell[axis] + step, *cell[axis + 1 :])]
        while column and column.bit_length() in with_lowest:
            column ^= with_lowest[column.bit_length()]
        if column:
            with_lowest[column.bit_length()] = column
            found[rows.cells[k][column.bit_length() - 1]] = cell
    return found


def plain_match(first: np.ndarray, second: np.ndarray) -> list[tuple[list[Any], list[Any], list[Any]]]:
    """Return by dimension the bars of `first`, of `second`, and the pairs of bars that match, as sorted values."""
    a, b, both = Plain(first), Plain(second), Plain(np.minimum(first, second))
    result = []
    for k in range(3):
        bars = [
            {x: (own.value[x], own.value[y]) for x, y in reduced(own, own, k).items() if own.value[x] < own.value[y]}
            for own in (a, b)
        ]
        births = [{y: x for x, y in reduced(own, both, k).items()} for own in (a, b)]
        ends = [y for x, y in reduced(both, both, k).items() if both.value[x] < both.value[y]]
        same = [
            bars[0][births[0][end]] + bars[1][births[1][end]]
            for end in ends
            if births[0][end] in bars[0] and births[1][end] in bars[1]
        ]
        result.append((sorted(bars[0].values()), sorted(bars[1].values()), sorted(same)))
    return result


def bars(volume: np.ndarray, pairs: Pairs) -> list[tuple[float, float]]:
    flat = volume.ravel()
    return list(zip(flat[pairs.births].tolist(), flat[pairs.deaths].tolist(), strict=True))


def ours(first: np.ndarray, second: np.ndarray, found: Matching) -> tuple[list[Any], list[Any], list[Any]]:
    same = [x + y for x, y in zip(bars(first, found.first), bars(second, found.second), strict=True)]
    return (
        sorted([*bars(first, found.first), *bars(first, found.only_first)]),
        sorted([*bars(second, found.second), *bars(second, found.only_second)]),
        sorted(same),
    )


@st.composite
def volumes(draw: st.DrawFn, count: int = 1, largest: int = 4) -> list[np.ndarray]:
    """Draw volumes of a few levels, so that many voxels are equal, or of all different values."""
    shape = tuple(draw(st.integers(1, largest)) for _ in range(3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    levels = [draw(st.sampled_from([2, 3, 5, None])) for _ in range(count)]
    return [rng.integers(0, n, shape).astype(np.float32) if n else rng.random(shape) for n in levels]


@given(volumes(2))
@settings(max_examples=60, deadline=None)
def test_matches_as_the_plain_algorithm_does(pair: list[np.ndarray]) -> None:
    first, second = pair
    for found, expected in zip(match(first, second), plain_match(first, second), strict=True):
        assert ours(first, second, found) == expected


@pytest.mark.parametrize("seed", range(20))
def test_matches_a_truth_and_an_unsure_prediction_as_the_plain_algorithm_does(seed: int) -> None:
    """Part of the work is taken over then from the comparison image."""
    rng = np.random.default_rng(seed)
    truth = (rng.random((3, 5, 4)) < 0.5).astype(float)
    prediction = np.round(rng.uniform(0.01, 1, truth.shape), seed % 3 + 1) + 0.01
    for found, expected in zip(match(prediction, truth), plain_match(prediction, truth), strict=True):
        assert ours(prediction, truth, found) == expected


@given(volumes(1))
@settings(max_examples=30, deadline=None)
def test_a_barcode_is_the_plain_algorithms(pair: list[np.ndarray]) -> None:
    own = Plain(pair[0])
    for k, found in enumerate(barcode(pair[0])):
        lengths = [(own.value[x], own.value[y]) for x, y in reduced(own, own, k).items()]
        assert sorted(bars(pair[0], found)) == sorted(bar for bar in lengths if bar[0] < bar[1])


# ---------------------------------------------------------------- Betti numbers at every level


def betti(mask: np.ndarray) -> list[int]:
    """6-connected components; loops by Euler's formula; cavities: parts of the rest that do not reach the outside."""
    rest = np.pad(~mask, 1, constant_values=True)
    components = ndimage.label(mask)[1]
    cavities = ndimage.label(rest, np.ones((3, 3, 3)))[1] - 1
    euler = 0
    for spans in itertools.product((0, 1), repeat=3):
        corners = itertools.product(*((0, 1) if span else (0,) for span in spans))
        size = [length - span for length, span in zip(mask.shape, spans, strict=True)]
        whole = np.ones(size, bool)
        for corner in corners:
            whole &= mask[tuple(slice(at, at + length) for at, length in zip(corner, size, strict=True))]
        euler += (-1) ** sum(spans) * int(whole.sum())
    return [components, components + cavities - euler, cavities]


def alive(volume: np.ndarray, code: tuple[Pairs, Pairs, Pairs], level: float, eldest: int) -> list[int]:
    """Bars at a level, and the component that never dies, born at the voxel `eldest`."""
    counts = [sum(birth <= level < death for birth, death in bars(volume, pairs)) for pairs in code]
    return [counts[0] + int(volume.ravel()[eldest] <= level), *counts[1:]]


@pytest.mark.parametrize("seed", range(3))
def test_bars_alive_at_a_level_are_its_betti_numbers(seed: int) -> None:
    rng = np.random.default_rng(seed)
    volume = ndimage.gaussian_filter(rng.standard_normal((14, 11, 12)), seed / 2).astype(np.float32)
    code = barcode(volume)
    for level in np.quantile(volume, [0.1, 0.25, 0.4, 0.55, 0.7, 0.85, 1]):
        assert alive(volume, code, level, int(volume.argmin())) == betti(volume <= level)


def test_whoever_goes_on_where_two_merge_the_betti_numbers_are_the_same() -> None:
    rng = np.random.default_rng(5)
    volume, other = (ndimage.gaussian_filter(rng.standard_normal((9, 10, 11)), 0.5) for _ in range(2))
    truth = -(other > 0.2).astype(np.float64)
    elders = volume + 100 * truth
    found = match(volume, truth, elders)
    code = tuple(
        Pairs(*(np.concatenate(both) for both in zip(each.first, each.only_first, strict=True))) for each in found
    )
    for level in np.quantile(volume, [0.1, 0.3, 0.5, 0.7, 0.9]):
        assert alive(volume, code, level, int(elders.argmin())) == betti(volume <= level)


SOLIDS = {
    "block": (np.pad(np.ones((3, 3, 3), bool), 1), [1, 0, 0]),
    "two blocks at an edge": (np.kron(np.eye(2), np.ones((2, 2)))[None].astype(bool), [2, 0, 0]),
    "ring": (np.pad(np.ones((1, 3, 3), bool) & ~np.pad([[[True]]], ((0, 0), (1, 1), (1, 1))), 1), [1, 1, 0]),
    "shell": (~np.pad([[[True]]], 1), [1, 0, 1]),
    "shell in a shell": (~np.pad(~np.pad(~np.pad([[[True]]], 1), 1), 1), [2, 0, 2]),
    "shell with a tunnel": (~np.pad(np.ones((1, 1, 3), bool), ((1, 1), (1, 1), (0, 0))), [1, 1, 0]),
}


@pytest.mark.parametrize("name", SOLIDS)
def test_solids_have_the_betti_numbers_that_one_sees(name: str) -> None:
    solid, expected = SOLIDS[name]
    volume = 1 - solid.astype(np.float64)
    assert betti(solid) == expected
    assert alive(volume, barcode(volume), 0, int(volume.argmin())) == expected


# ---------------------------------------------------------------- the authors' library


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_matches_as_the_authors_library_does(case: dict[str, Any]) -> None:
    first, second = (np.array(case[name], np.float64) for name in ("first", "second"))
    for found, expected in zip(match(first, second), case["found"], strict=True):
        assert [[list(bar) for bar in part] for part in ours(first, second, found)] == expected


# ---------------------------------------------------------------- voxels, kinds of arrays, errors


def test_bars_name_the_voxels_that_bear_and_end_them() -> None:
    line = np.array([[[0.1, 0.9, 0.3, 0.5, 0.2, 0.7, 0.4]]])
    components, loops, cavities = barcode(line)
    assert {(int(b), int(d)) for b, d in zip(*components, strict=True)} == {(2, 3), (4, 1), (6, 5)}
    assert len(loops.births) == len(cavities.births) == 0
    shell = np.full((3, 3, 3), 0.2)
    shell[1, 1, 1], shell[0, 1, 2] = 0.9, 0.4
    *_, cavity = barcode(shell)
    assert np.unravel_index(cavity.births, shell.shape) == ([0], [1], [2])
    assert np.unravel_index(cavity.deaths, shell.shape) == ([1], [1], [1])


def test_matched_features_overlap() -> None:
    """Two components each; only one is at the same place."""
    first, second = np.ones((1, 1, 9)), np.ones((1, 1, 9))
    first[0, 0, [0, 4]] = 0, 0.5
    second[0, 0, [0, 8]] = 0, 0.5
    components, _, _ = match(first, second)
    assert [len(part.births) for part in components] == [0, 0, 1, 1]
    second[0, 0, 4] = 0.2
    components, _, _ = match(first, second)
    assert [components.first.births.tolist(), components.second.births.tolist()] == [[4], [4]]
    assert components.only_second.births.tolist() == [8]


def test_any_strides_and_precision_give_the_same_and_nothing_is_changed() -> None:
    rng = np.random.default_rng(0)
    volume = rng.integers(0, 9, (6, 5, 7)).astype(np.float64)
    kept = volume.copy()
    expected = [bars(volume, pairs) for pairs in barcode(volume)]
    for same in (np.asfortranarray(volume), volume.astype(np.float32), np.flip(np.flip(volume).copy())):
        assert [bars(volume, pairs) for pairs in barcode(same)] == expected
    assert (volume == kept).all()


@pytest.mark.parametrize(
    "faulty", [np.zeros((4, 4)), np.zeros((0, 4, 4)), np.full((2, 2, 2), np.nan), np.full((2, 2, 2), np.inf)]
)
def test_what_is_no_volume_is_refused(faulty: np.ndarray) -> None:
    with pytest.raises(ValueError, match="three dimensions and finite values"):
        barcode(faulty)


def test_volumes_of_two_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="differ in shape"):
        match(np.zeros((2, 2, 2)), np.zeros((2, 2, 3)))
