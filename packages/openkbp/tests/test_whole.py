"""From the network's grid to the patient's."""

from __future__ import annotations

import numpy as np
import pytest
from runner_openkbp.whole import block_sums, upsample
from scipy import ndimage


@pytest.mark.parametrize("factor", [2, 4])
def test_as_scipy_interpolates_boxes(factor: int) -> None:
    volume = np.random.default_rng(0).uniform(0, 70, (8, 8, 8)).astype(np.float32)
    expected = ndimage.zoom(volume, factor, order=1, mode="nearest", grid_mode=True)
    np.testing.assert_allclose(upsample(volume, 8 * factor), expected, rtol=1e-5)


def test_a_ramp_stays_a_ramp() -> None:
    """Pooled and brought back, away from the borders; so no half-voxel shift has crept in."""
    ramp = np.add.outer(np.add.outer(np.arange(16.0), 2 * np.arange(16.0)), 3 * np.arange(16.0)).astype(np.float32)
    inside = (slice(1, -1),) * 3
    np.testing.assert_allclose(upsample(block_sums(ramp, 2) / 8, 16)[inside], ramp[inside], rtol=1e-6)


def test_its_own_size_is_left_alone() -> None:
    volume = np.random.default_rng(0).uniform(0, 70, (4, 4, 4)).astype(np.float32)
    np.testing.assert_array_equal(upsample(volume, 4), volume)
