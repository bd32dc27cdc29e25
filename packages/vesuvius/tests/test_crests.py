"""Sheets drawn anew around their crests."""

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
