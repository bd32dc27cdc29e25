"""Sheets drawn anew around their crests, and bridges between sheets cut."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from runner_vesuvius import postprocess
from runner_vesuvius.components import label26
from runner_vesuvius.config import ScrollPredictConfig
from runner_vesuvius.crests import drawn
from runner_vesuvius.parting import _Edges, _edges, _pieces, parted
from runner_vesuvius.sheets import across

PLAIN = ScrollPredictConfig(min_size=0, fill_holes=0)


def heights(tilt: float, side: int = 32) -> np.ndarray:
    """Height across parallel tilted sheets: sheets are level sets."""
    z, y, _ = np.mgrid[:side, :side, :side]
    return np.asarray((z + tilt * y) / np.hypot(1, tilt))


def hills(height: np.ndarray, *centres: float, width: float = 2.0) -> np.ndarray:
    """Probability (uint8) that is highest at the centres, so that a threshold's sheets are `width`-wide bells."""
    bells = [np.exp(-0.5 * ((height - centre) / width) ** 2) for centre in centres]
    return np.rint(240 * np.minimum(1, np.sum(bells, axis=0))).astype(np.uint8)


def blocks() -> st.SearchStrategy[np.ndarray]:
    return arrays(np.uint8, array_shapes(min_dims=3, max_dims=3, max_side=7))


@pytest.mark.parametrize("tilt", [0.0, 0.4, -0.8])
@pytest.mark.parametrize("thickness", [2.0, 3.4])
def test_drawn_sheets_are_as_thick_as_told(tilt: float, thickness: float) -> None:
    height = heights(tilt)
    volume = hills(height, 13.3)
    found = drawn(volume, across(volume), thickness) >= 128
    inner = (slice(5, -5),) * 3
    off = np.abs(height - 13.3)[inner]
    assert found[inner][off < thickness / 2 - 0.4].all()
    assert not found[inner][off > thickness / 2 + 0.4].any()


@pytest.mark.parametrize("tilt", [0.0, 0.4])
def test_a_sheet_that_is_certain_throughout_is_drawn_around_its_middle(tilt: float) -> None:
    off = np.abs(heights(tilt) - 13.3)
    volume = np.where(off < 4, 255, np.where(off < 5, 120, 10)).astype(np.uint8)
    found = drawn(volume, across(volume), 3.0) >= 128
    inner = (slice(5, -5),) * 3
    assert found[inner][off[inner] < 1].all()
    assert not found[inner][off[inner] > 2.1].any()


def test_drawn_sheets_are_apart_where_a_threshold_joins_them() -> None:
    volume = hills(heights(0.3), 12, 16.5, width=1.6)
    assert label26(postprocess.surface(volume, PLAIN))[1] == 1
    found = postprocess.surface(volume, ScrollPredictConfig(min_size=0, fill_holes=0, thickness=2.5))
    assert label26(found)[1] == 2


@given(blocks(), st.sampled_from([0.5, 3.0]))
@settings(max_examples=10, deadline=None)
def test_crests_are_never_lower_than_the_voxel_nor_higher_than_the_volume(volume: np.ndarray, thickness: float) -> None:
    found = drawn(volume, across(volume), thickness)
    assert found.shape == volume.shape
    assert (found <= volume.max()).all()
    assert (found[found > 0] >= volume[found > 0]).all()


def bridged(strength: int) -> np.ndarray:
    """Two sheets, eight voxels apart, and two bridges between them."""
    volume = hills(heights(0.2), 9, 17, width=1.5)
    for y, x in ((8, 8), (20, 22)):
        low = round(9 * np.hypot(1, 0.2) - 0.2 * y)
        volume[low : low + 9, y : y + 2, x : x + 2] = np.maximum(volume[low : low + 9, y : y + 2, x : x + 2], strength)
    return volume


def test_weak_bridges_are_cut_and_strong_ones_stay() -> None:
    cutting = ScrollPredictConfig(min_size=0, fill_holes=0, part_sheets=0.9)
    for strength, pieces in ((160, 2), (235, 1)):
        volume = bridged(strength)
        before, after = (postprocess.surface(volume, each) for each in (PLAIN, cutting))
        assert label26(before)[1] == 1
        assert label26(after)[1] == pieces
        assert not (after > before).any()
        assert np.count_nonzero(before) - np.count_nonzero(after) < 40  # the bridges, not the sheets


def test_a_sheet_without_a_neighbour_is_not_cut() -> None:
    volume = hills(heights(0.5), 14) // np.uint8(2) + np.random.default_rng(0).integers(0, 60, (32,) * 3, np.uint8)
    mask = volume >= 80
    assert np.array_equal(parted(mask, volume, across(volume), 0.5), mask)
    assert not parted(mask & False, volume, across(volume), 1.0).any()


def reference(count: int, edges: _Edges) -> list[frozenset[int]]:
    """The mutex watershed by its definition, with sets."""
    order = sorted(range(len(edges.one)), key=lambda k: (-int(edges.strength[k]), not edges.repels[k], k))
    pieces = {one: frozenset([one]) for one in range(count)}
    apart: set[frozenset[frozenset[int]]] = set()
    for k in order:
        a, b = pieces[int(edges.one[k])], pieces[int(edges.other[k])]
        if a == b or frozenset((a, b)) in apart:
            continue
        if edges.repels[k]:
            apart.add(frozenset((a, b)))
            continue
        both = a | b
        apart = {frozenset(both if each in (a, b) else each for each in pair) for pair in apart}
        pieces |= dict.fromkeys(both, both)
    return list(pieces.values())


def pieces_of(mask: np.ndarray, volume: np.ndarray, weight: float) -> tuple[np.ndarray, _Edges]:
    """Return the piece of each voxel of the mask, and the edges that they come from."""
    numbers = np.full(mask.shape, -1, np.int32)
    numbers[mask] = np.arange(np.count_nonzero(mask))
    edges = _edges(numbers, volume, across(volume), weight)
    return _pieces(np.count_nonzero(mask), edges), edges


@given(blocks(), st.sampled_from([0.7, 1.0]))
@settings(max_examples=10, deadline=None)
def test_pieces_are_those_of_the_definition(volume: np.ndarray, weight: float) -> None:
    mask = volume >= 100
    found, edges = pieces_of(mask, volume, weight)
    assert [frozenset(np.flatnonzero(found == piece).tolist()) for piece in found] == reference(len(found), edges)
    kept = parted(mask, volume, across(volume), weight)
    assert not (kept & ~mask).any()


@given(blocks())
@settings(max_examples=10, deadline=None)
def test_without_repulsion_pieces_are_the_components(volume: np.ndarray) -> None:
    mask = volume >= 100
    found, _ = pieces_of(mask, volume, 0.0)
    labels, count = label26(mask)
    assert len({*zip(found.tolist(), labels[mask].tolist(), strict=True)}) == len({*found.tolist()}) == count
    assert np.array_equal(parted(mask, volume, across(volume), 0.0), mask)


def test_pieces_do_not_touch() -> None:
    rng = np.random.default_rng(1)
    volume = rng.integers(0, 256, (14, 14, 14)).astype(np.uint8)
    mask = volume >= 100
    piece = np.full(mask.shape, -1)
    piece[mask] = pieces_of(mask, volume, 1.0)[0]
    kept = parted(mask, volume, across(volume), 1.0)
    assert kept.any()
    assert (kept != mask).any()
    labels, count = label26(kept)
    assert all(len(np.unique(piece[labels == n])) == 1 for n in range(1, count + 1))
