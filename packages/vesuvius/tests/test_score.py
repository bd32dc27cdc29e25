"""The official score: surface Dice, variation of information, and how the parts are put together."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from runner_core import BadInput
from runner_vesuvius.metric import score, topology_score
from runner_vesuvius.metric.betti import betti_counts
from runner_vesuvius.metric.surface import AREAS, surface_dice
from runner_vesuvius.metric.voi import variation_of_information
from scipy import ndimage

pairs = array_shapes(min_dims=3, max_dims=3, max_side=8).flatmap(
    lambda shape: st.tuples(arrays(bool, shape), arrays(bool, shape))
)


@given(pairs)
@settings(deadline=None)
def test_surface_dice_by_definition(masks):
    """Codes by a look at each cell, distances by a full transform."""

    def surface(mask):
        padded = np.pad(mask, 1)
        bits = [128 >> (4 * a + 2 * b + c) for a in (0, 1) for b in (0, 1) for c in (0, 1)]
        corners = [
            padded[a : a + mask.shape[0] + 1, b : b + mask.shape[1] + 1, c : c + mask.shape[2] + 1]
            for a in (0, 1)
            for b in (0, 1)
            for c in (0, 1)
        ]
        codes = sum(bit * corner.astype(int) for bit, corner in zip(bits, corners, strict=True))
        return (codes > 0) & (codes < 255), AREAS[codes]

    (here, area), (there, other_area) = map(surface, masks)
    if not here.any() or not there.any():
        expected = float(not here.any() and not there.any())
    else:
        near = area[here & (ndimage.distance_transform_edt(~there) <= 2)].sum()
        near += other_area[there & (ndimage.distance_transform_edt(~here) <= 2)].sum()
        expected = near / (area.sum() + other_area.sum())
    assert surface_dice(*masks) == pytest.approx(expected, abs=1e-12)


def test_areas_of_known_surfaces():
    """A plane of n × n voxels has two faces of n², a single voxel an octahedron through the middles of its edges."""
    assert AREAS[[15, 51, 85, 170, 204, 240]].tolist() == [1] * 6
    assert AREAS[0] == AREAS[255] == 0
    assert AREAS[1] * 8 == pytest.approx(3**0.5)  # of side √½: 2 √3 / 2
    np.testing.assert_allclose(AREAS, AREAS[::-1])


def test_tolerance_is_inclusive():
    one, other = np.zeros((2, 20, 8, 8), bool)
    one[5] = True
    for shift, near in ((2, True), (3, False)):
        other[:] = False
        other[5 + shift] = True
        assert (surface_dice(one, other) > 0.9) == near


def test_surface_at_the_border_counts():
    mask = np.ones((6, 6, 6), bool)
    other = mask.copy()
    other[4:] = False
    assert surface_dice(mask, mask) == 1
    assert 0.9 < surface_dice(mask, other) <= 1  # two voxels off
    other[2:] = False
    assert surface_dice(mask, other) < 0.9


@given(pairs)
@settings(deadline=None)
def test_variation_of_information_by_definition(masks):
    predicted, truth = masks
    ours = ndimage.label(predicted, np.ones((3, 3, 3)))[0][predicted | truth]
    theirs = ndimage.label(truth, np.ones((3, 3, 3)))[0][predicted | truth]
    split = merge = 0.0
    for a in np.unique(ours):
        for b in np.unique(theirs):
            both = ((ours == a) & (theirs == b)).mean()
            if both:
                split -= both * np.log2(both / (theirs == b).mean())
                merge -= both * np.log2(both / (ours == a).mean())
    found = variation_of_information(predicted, truth)
    assert found == pytest.approx((split, merge), abs=1e-9)


def test_splits_and_merges_are_told_apart():
    whole = np.zeros((4, 9, 9), bool)
    whole[1:3] = True
    halves = whole.copy()
    halves[:, 4] = False
    cut = variation_of_information(halves, whole)
    joined = variation_of_information(whole, halves)
    assert cut.split > 0.9
    assert cut.merge == 0
    assert joined == (cut.merge, cut.split)


def test_topology_score():
    nan = float("nan")
    none = np.zeros((3, 3), np.int64)
    assert topology_score(none) == (1, pytest.approx((nan, nan, nan), nan_ok=True))
    some = np.array([[2, 3, 5], [0, 4, 0], [0, 0, 0]])
    value, f1 = topology_score(some)
    assert f1 == pytest.approx((0.5, 0.5 / 4.5, nan), nan_ok=True)
    assert value == pytest.approx((0.34 * 0.5 + 0.33 * 0.5 / 4.5) / 0.67)


def sheets(shape=(24, 26, 21)):
    volume = np.zeros(shape, np.uint8)
    volume[4:7], volume[12:15] = 1, 1
    volume[:, :, -3:] = 2
    return volume


def test_perfect_and_empty():
    truth, nothing = sheets(), np.zeros((24, 26, 21), np.uint8)
    assert score(truth == 1, truth).score == pytest.approx(1)
    assert score(truth == 1, np.where(truth == 2, 2, 0)).surface_dice == 0
    assert score(nothing, nothing).score == pytest.approx(1)
    assert score(nothing, truth).surface_dice == 0


def test_what_is_not_annotated_does_not_count():
    truth = sheets()
    predicted = (truth == 1).astype(np.uint8)
    found = score(predicted, truth)
    predicted[truth == 2] = np.random.default_rng(0).integers(0, 2, (truth == 2).sum())
    for value, expected in zip(score(predicted, truth), found, strict=True):
        np.testing.assert_array_equal(value, expected)


def test_score_is_put_together_from_its_parts():
    rng = np.random.default_rng(4)
    truth = sheets((25, 26, 21))
    predicted = ((truth == 1) ^ (rng.random(truth.shape) < 0.02)).astype(np.uint8)
    found = score(predicted, truth, threads=2)
    ours, theirs = (predicted != 0) & (truth != 2), truth == 1
    counts = sum(
        betti_counts(ours[z, y, x], theirs[z, y, x])
        for z in (slice(0, 13), slice(13, 25))
        for y in (slice(0, 13), slice(13, 26))
        for x in (slice(0, 11), slice(11, 21))
    )
    np.testing.assert_array_equal(found.counts, counts)
    assert found.topology == topology_score(counts)[0]
    assert found.surface_dice == surface_dice(ours, theirs)
    assert (found.split, found.merge) == variation_of_information(ours, theirs)
    assert found.components == 1 / (1 + 0.3 * (found.split + found.merge))
    assert found.score == pytest.approx(0.3 * found.topology + 0.35 * found.surface_dice + 0.35 * found.components)


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 7, 2), (2, 2, 2)])
def test_tiny_volumes(shape):
    full = np.ones(shape, np.uint8)
    assert score(full, full).score == pytest.approx(1)


def test_what_is_no_mask_is_refused():
    volume = np.zeros((4, 4, 4), np.uint8)
    with pytest.raises(BadInput, match="thresholded first"):
        score(np.zeros((4, 4, 4), np.float32), volume)
    with pytest.raises(BadInput, match="must be the same"):
        score(np.zeros((4, 4, 5), np.uint8), volume)
    with pytest.raises(BadInput, match="depth, height, width"):
        score(volume[0], volume[0])
