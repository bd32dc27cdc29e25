"""Averages along sheets: what they mend, and what they leave as it is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from runner_vesuvius import postprocess
from runner_vesuvius.components import label26
from runner_vesuvius.config import ScrollPredictConfig
from runner_vesuvius.metric.betti import betti_counts
from runner_vesuvius.sheets import _discs, across, along_sheets, grid

UNSURE = ScrollPredictConfig(threshold=0.5, min_size=0, fill_holes=0)
MENDED = ScrollPredictConfig(threshold=0.5, min_size=0, fill_holes=0, along_sheets=3.0)


def two_sheets(tilt: float = 0.3) -> np.ndarray:
    """Probability (40³, uint8) of two tilted sheets, three voxels thick and ten apart, that a network is unsure of."""
    z, y, _ = np.mgrid[:40, :40, :40]
    height = z + tilt * y
    sheet = (np.abs(height - 18) <= 1.5) | (np.abs(height - 28) <= 1.5)
    return np.where(sheet, 200, 40).astype(np.uint8)


def counts(mask: np.ndarray) -> tuple[int, int, int]:
    """Return the Betti numbers of the mask: components, loops and cavities."""
    bare = betti_counts(mask != 0, mask != 0)[:, 1]
    return label26(mask)[1], int(bare[1]), int(bare[2])


@pytest.mark.parametrize("axes", [(0, 1, 2), (1, 2, 0), (2, 0, 1)])
def test_pinholes_are_closed_and_bridges_are_cut(axes: tuple[int, int, int]) -> None:
    volume = two_sheets()
    for y, x in ((8, 8), (8, 20), (20, 8), (26, 28)):
        middle = round(18 - 0.3 * y)
        volume[middle - 3 : middle + 4, y : y + 2, x : x + 2] = 90  # a hole through the sheet
    for y, x in ((14, 14), (30, 20)):
        middle = round(18 - 0.3 * y)
        volume[middle : middle + 10, y : y + 2, x : x + 2] = 180  # from one sheet to the other
    volume[2, 30, 30] = 160  # a speck
    volume = np.ascontiguousarray(volume.transpose(axes))
    assert counts(postprocess.surface(volume, UNSURE)) == (2, 5, 0)  # two bridges close one loop
    assert counts(postprocess.surface(volume, MENDED)) == (2, 0, 0)


def test_sheets_without_faults_stay_what_they_are() -> None:
    volume = two_sheets()
    before, after = (postprocess.surface(volume, each) for each in (UNSURE, MENDED))
    assert counts(before) == counts(after) == (2, 0, 0)
    assert np.count_nonzero(before != after) < 0.1 * np.count_nonzero(before)


@pytest.mark.parametrize(("holes", "mends"), [(2, False), (12, True)])
def test_only_a_volume_with_many_faults_is_mended(holes: int, mends: bool) -> None:
    volume = two_sheets()
    for y, x in [(y, x) for y in (8, 16, 24) for x in (8, 16, 24, 32)][:holes]:
        middle = round(18 - 0.3 * y)
        volume[middle - 3 : middle + 4, y : y + 2, x : x + 2] = 90
    gated = replace(MENDED, mend_faults=0.7)  # 9,000 voxels of surface: 6 faults and more are mended
    assert np.array_equal(postprocess.surface(volume, gated), postprocess.surface(volume, MENDED if mends else UNSURE))
    assert counts(postprocess.surface(volume, UNSURE)) == (2, holes, 0)


@given(arrays(np.bool_, array_shapes(min_dims=3, max_dims=3, max_side=9)), st.sampled_from([0.5, 3.0]))
def test_a_mask_stays_as_it_is(mask: np.ndarray, sigma: float) -> None:
    """So a label keeps its score: it holds no probabilities that could be averaged."""
    settings = ScrollPredictConfig(along_sheets=sigma, thickness=2.0, min_size=0, fill_holes=0)
    assert np.array_equal(postprocess.surface(mask.view(np.uint8) * np.uint8(255), settings), mask)


def test_switched_off_the_threshold_alone_decides() -> None:
    volume = np.random.default_rng(0).integers(0, 256, (20, 21, 22)).astype(np.uint8)
    plain = ScrollPredictConfig(min_size=0, fill_holes=0)
    assert plain.along_sheets == plain.thickness == 0
    assert along_sheets(volume, across(volume), 0.0) is volume
    assert np.array_equal(postprocess.surface(volume, plain), volume >= 128)


@given(st.integers(1, 254), array_shapes(min_dims=3, max_dims=3, max_side=7))
@settings(max_examples=20, deadline=None)
def test_a_constant_answer_stays_constant(value: int, shape: tuple[int, int, int]) -> None:
    volume = np.full(shape, value, np.uint8)
    assert np.array_equal(along_sheets(volume, across(volume), 2.5), volume)


def test_only_directions_that_are_used_have_a_disc() -> None:
    """A used one has the same disc, bit for bit, whether others are used or not."""
    shape, count = (60, 50, 40), len(grid())
    used = np.zeros(count, bool)
    used[[0, 7, 144, 290, 600]] = True
    (starts, offsets, weights), (every, all_offsets, all_weights) = (
        _discs(2.0, shape, flags) for flags in (used, np.ones(count, bool))
    )
    assert np.array_equal(np.diff(starts) > 0, used)
    for k in np.flatnonzero(used):
        own, whole = slice(starts[k], starts[k + 1]), slice(every[k], every[k + 1])
        assert np.array_equal(offsets[own], all_offsets[whole])
        assert weights[own].tobytes() == all_weights[whole].tobytes()


def test_the_average_is_that_over_a_disc_in_the_plane() -> None:
    rng = np.random.default_rng(0)
    volume = np.repeat(np.where(np.arange(30) % 10 < 4, 190, 60), 30 * 30).reshape(30, 30, 30)
    volume = (volume + rng.integers(-9, 10, volume.shape)).astype(np.uint8)
    y, x = np.mgrid[-4:5, -4:5]
    disc = np.exp(-(y * y + x * x) / (2 * 2.0**2)) * (y * y + x * x <= 16)
    found = along_sheets(volume, across(volume), 2.0)
    for at in ((11, 9, 20), (14, 15, 15), (17, 21, 8)):
        plane = volume[at[0], at[1] - 4 : at[1] + 5, at[2] - 4 : at[2] + 5]
        assert abs(int(found[at]) - (plane * disc).sum() / disc.sum()) < 0.51


@pytest.mark.parametrize("normal", [(1, 0, 0), (0, -2, 3), (3, 1, 2), (-1, 2, 2), (1, 1, -1)])
def test_directions_are_those_across_the_sheets(normal: tuple[int, int, int]) -> None:
    unit = np.array(normal) / np.linalg.norm(normal)
    height = np.tensordot(unit, np.mgrid[:48, :48, :48], 1)
    volume = np.where(height % 12 < 4, 220, 30).astype(np.uint8)
    found = grid()[across(volume)[6:-6, 6:-6, 6:-6].reshape(-1)]
    assert np.degrees(np.arccos(np.minimum(np.abs(found @ unit), 1))).max() < 6
