"""Block masks: exact counts, rectangles, a function of the words alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runner_dinocell import masks
from scipy import ndimage


def words(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**64, (count, masks.WORDS), dtype=np.uint64)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32), st.integers(2, 28), st.floats(0, 1), st.floats(0, 1))
def test_as_many_are_masked_as_was_drawn(seed: int, side: int, one: float, other: float) -> None:
    """The share is uniform between the two, rounded to whole patches."""
    low, high = sorted((one, other))
    drawn = words(7, seed)
    found = masks.block_masks(drawn, side, (low, high))
    share = low + (high - low) * (drawn[:, 0] >> np.uint64(11)).astype(float) / 2**53
    assert found.shape == (7, side * side)
    assert found.dtype == bool
    assert found.sum(1).tolist() == np.rint(share * side * side).astype(int).tolist()


def test_none_and_all() -> None:
    assert not masks.block_masks(words(5), 6, (0, 0)).any()
    assert masks.block_masks(words(5), 6, (1, 1)).all()
    assert masks.block_masks(words(0), 6, (0.1, 0.5)).shape == (0, 36)


def test_each_mask_is_a_function_of_its_own_words() -> None:
    drawn = words(40)
    together = masks.block_masks(drawn, 14, (0.1, 0.5))
    assert np.array_equal(together[[31, 4]], masks.block_masks(drawn[[31, 4]], 14, (0.1, 0.5)))
    assert len({mask.tobytes() for mask in together}) == 40


@pytest.mark.parametrize("side", [14, 28])
def test_masks_are_blocks(side: int) -> None:
    """Few pieces, where single patches would make many: those of as many single ones, side by side."""
    found = masks.block_masks(words(200), side, (0.3, 0.3)).reshape(-1, side, side)
    rng = np.random.default_rng(1)
    single = rng.permuted(found.reshape(200, -1), axis=1).reshape(found.shape)
    pieces = [np.mean([ndimage.label(mask)[1] for mask in some]) for some in (found, single)]
    assert pieces[0] < 0.25 * pieces[1]
    inner = [np.mean([ndimage.binary_erosion(mask).sum() for mask in some]) for some in (found, single)]
    assert inner[0] > 10 * inner[1]


def test_every_place_is_masked_as_often_as_its_mirror_images() -> None:
    """Nothing of the grid is preferred but its middle, which more rectangles hold."""
    often = masks.block_masks(words(40_000), 6, (0.1, 0.5)).mean(0).reshape(6, 6)
    assert abs(often.mean() - 0.3) < 0.01
    for mirrored in (often[::-1], often[:, ::-1], often.T):
        assert np.abs(often - mirrored).max() < 0.02
    assert often[2:4, 2:4].min() > often[0, 0]


def test_rectangles_are_neither_too_long_nor_too_wide() -> None:
    """The aspect ratio of a first rectangle alone lies between 0.3 and 1 / 0.3, up to rounding."""
    drawn = words(500)
    drawn[:, 2] |= np.uint64(0xFFFFFFFF)  # the largest area that is allowed, on whichever machine
    if np.little_endian:
        found = masks.block_masks(drawn, 20, (0.25, 0.25)).reshape(-1, 20, 20)
        sizes = []
        for mask in found:
            labelled, count = ndimage.label(mask)
            largest = max(ndimage.find_objects(labelled), key=lambda box: mask[box].sum())
            if count < 12 and mask[largest].all():
                sizes.append([s.stop - s.start for s in largest])
        ratios = np.array([height / width for height, width in sizes])
        assert len(ratios) > 50
        assert 0.22 < ratios.min() < 0.5
        assert 2 < ratios.max() < 4.5
