"""Distances against SciPy's transform."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runner_vesuvius.edt import distance_to_other, squared_distance
from scipy.ndimage import distance_transform_edt


def by_scipy(mask: np.ndarray, cap: int) -> np.ndarray:
    if not mask.any():
        return np.full(mask.shape, cap)
    return np.minimum(np.rint(distance_transform_edt(~mask) ** 2), cap)


shapes = st.tuples(*[st.integers(1, 24)] * 3)


@settings(max_examples=150, deadline=None)
@given(shapes, st.sampled_from([0.0, 0.0005, 0.01, 0.3, 0.95, 1.0]), st.integers(1, 255), st.integers(0, 2**32 - 1))
def test_distances_are_scipy_s(shape: tuple[int, int, int], share: float, cap: int, seed: int) -> None:
    mask = np.random.default_rng(seed).random(shape) < share
    found = squared_distance(mask, cap)
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, by_scipy(mask, cap))
    both = distance_to_other(mask, cap)
    np.testing.assert_array_equal(both, np.where(mask, by_scipy(~mask, cap), by_scipy(mask, cap)))


def test_volumes_wider_than_the_cap_reaches() -> None:
    rng = np.random.default_rng(3)
    for shape in ((70, 40, 90), (1, 1, 200), (200, 1, 1), (1, 200, 1)):
        mask = rng.random(shape) < 20 / np.prod(shape)
        np.testing.assert_array_equal(squared_distance(mask), by_scipy(mask, 255))


def test_what_is_true_can_be_a_view_a_number_and_read_only() -> None:
    mask = np.random.default_rng(0).random((9, 12, 11)) < 0.05
    wanted = squared_distance(mask)
    numbers = mask * np.float32(0.5)
    numbers.flags.writeable = False
    np.testing.assert_array_equal(squared_distance(numbers), wanted)
    np.testing.assert_array_equal(squared_distance(mask[::-1, :, ::2]), squared_distance(mask[::-1, :, ::2].copy()))
    np.testing.assert_array_equal(squared_distance(mask.transpose(2, 0, 1)), wanted.transpose(2, 0, 1))
    assert squared_distance(np.zeros((0, 3, 4), bool)).shape == (0, 3, 4)


@pytest.mark.parametrize("cap", [0, 256])
def test_a_cap_that_a_byte_cannot_hold(cap: int) -> None:
    with pytest.raises(ValueError, match="between 1 and 255"):
        squared_distance(np.ones((2, 2, 2), bool), cap)
