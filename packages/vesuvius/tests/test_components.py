"""Connected components, against scipy's and on hand-made volumes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from runner_core import BadInput
from runner_vesuvius.components import fill_cavities, hysteresis, label6, label26, remove_small, sizes
from scipy import ndimage

masks = arrays(bool, array_shapes(min_dims=3, max_dims=3, max_side=7))
FULL = np.ones((3, 3, 3))


@settings(deadline=None)  # the first call compiles
@given(masks)
def test_labels_are_scipys(mask):
    for ours, structure in ((label26, FULL), (label6, None)):
        labels, count = ours(mask)
        expected, number = ndimage.label(mask, structure)
        assert labels.dtype == np.int32
        assert count == number
        np.testing.assert_array_equal(labels, expected)  # also in their order: that of the first voxels
        np.testing.assert_array_equal(sizes(labels, count), np.bincount(expected.ravel(), minlength=number + 1))


@pytest.mark.parametrize("share", [0.02, 0.1, 0.3, 0.6])
def test_labels_of_a_larger_volume(share):
    mask = np.random.default_rng(1).random((40, 51, 33)) < share
    for ours, structure in ((label26, FULL), (label6, None)):
        labels, count = ours(mask)
        expected, number = ndimage.label(mask, structure)
        assert count == number
        np.testing.assert_array_equal(labels, expected)


def test_any_dtype_and_order_of_memory():
    mask = np.random.default_rng(2).integers(0, 3, (5, 6, 7)).astype(np.uint8)
    expected = ndimage.label(mask != 0, FULL)[0]
    np.testing.assert_array_equal(label26(mask)[0], expected)
    np.testing.assert_array_equal(label26(np.asfortranarray(mask))[0], expected)
    np.testing.assert_array_equal(label26(np.pad(mask, 1)[1:-1, 1:-1, 1:-1])[0], expected)


def test_a_component_that_winds():
    """A spiral, all of whose arms are joined only at the end of the scan."""
    mask = np.zeros((9, 9, 9), bool)
    mask[::2] = True
    mask[1::4, 8, 8] = True
    mask[3::4, 0, 0] = True
    assert label6(mask)[1] == 1


@settings(deadline=None)  # the first call compiles
@given(masks, st.integers(0, 12))
def test_small_components_go(mask, smallest):
    expected, number = ndimage.label(mask, FULL)
    kept = [k for k in range(1, number + 1) if (expected == k).sum() >= smallest]
    np.testing.assert_array_equal(remove_small(mask, smallest), np.isin(expected, kept) & mask)


@settings(deadline=None)  # the first call compiles
@given(masks, st.integers(0, 12))
def test_cavities_are_filled(mask, largest):
    labels, number = ndimage.label(~mask)
    inner = np.zeros(mask.shape, bool)
    inner[1:-1, 1:-1, 1:-1] = True
    filled = mask.copy()
    for k in range(1, number + 1):
        hole = labels == k
        if not (hole & ~inner).any() and hole.sum() <= largest:
            filled |= hole
    np.testing.assert_array_equal(fill_cavities(mask, largest), filled)


def test_a_shell_is_filled_but_a_dent_is_not():
    shell = np.zeros((9, 9, 9), bool)
    shell[1:8, 1:8, 1:8] = True
    shell[3:6, 3:6, 3:6] = False
    assert fill_cavities(shell, 27).sum() == 7**3
    assert fill_cavities(shell, 26).sum() == 7**3 - 27
    shell[0:4, 4, 4] = False  # a channel to the outside
    np.testing.assert_array_equal(fill_cavities(shell, 1000), shell)


@settings(deadline=None)  # the first call compiles
@given(arrays(np.uint8, array_shapes(min_dims=3, max_dims=3, max_side=6)), st.integers(0, 255), st.integers(0, 255))
def test_hysteresis(probability, low, high):
    mask = probability >= low
    labels, _ = ndimage.label(mask, FULL)
    expected = np.isin(labels, labels[mask & (probability >= high)]) & mask
    np.testing.assert_array_equal(hysteresis(probability, low, high), expected if high > low else mask)


def test_what_is_no_volume_is_refused():
    with pytest.raises(BadInput, match=r"\(z, y, x\)"):
        label26(np.zeros((4, 4), bool))
    with pytest.raises(BadInput, match="cut it"):
        label26(np.broadcast_to(np.zeros(1, bool), (1300, 1300, 1300)))
