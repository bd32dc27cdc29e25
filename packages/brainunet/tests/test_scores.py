"""Scores against hand-made cases and brute force."""

from __future__ import annotations

import numpy as np
import pytest
from runner_brainunet.scores import volume_scores
from scipy import ndimage


def box(shape, start, stop) -> np.ndarray:
    mask = np.zeros(shape, bool)
    mask[tuple(slice(a, b) for a, b in zip(start, stop, strict=True))] = True
    return mask


def test_equal_masks() -> None:
    mask = box((20, 20, 20), (5, 5, 5), (12, 13, 14))
    assert volume_scores(mask, mask, (1, 2, 3)) == pytest.approx(
        {"dice": 1, "iou": 1, "hd95_mm": 0, "surface_dice_1mm": 1}
    )


def test_a_slab_thicker_by_one_slice() -> None:
    """10 against 11 slices of 190 × 190 mm, 3 mm apart: both far faces (36100 mm² each) and 2 mm of the rim lie
    more than 1 mm from the other surface."""
    truth, more = (box((40, 40, 30), (1, 1, 10), (39, 39, stop)) for stop in (20, 21))
    scores = volume_scores(more, truth, (5.0, 5.0, 3.0))
    assert scores["dice"] == pytest.approx(20 / 21)
    assert scores["iou"] == pytest.approx(10 / 11)
    assert scores["hd95_mm"] == pytest.approx(3.0)
    outside, whole = 2 * 36100 + 760 * 2, 4 * 36100 + 760 * (30 + 33)
    assert scores["surface_dice_1mm"] == pytest.approx(1 - outside / whole, abs=0.02)


def test_spacing_decides_what_a_millimetre_is() -> None:
    truth, moved = box((20, 20, 20), (5, 5, 5), (12, 12, 12)), box((20, 20, 20), (6, 5, 5), (13, 12, 12))
    near, far = (volume_scores(moved, truth, (s, s, s)) for s in (0.9, 1.2))
    assert near["surface_dice_1mm"] == pytest.approx(1)
    assert far["surface_dice_1mm"] < 0.9
    assert near["hd95_mm"] == pytest.approx(0.9)
    assert far["hd95_mm"] == pytest.approx(1.2)


def test_hd95_is_the_larger_95th_percentile_of_surface_distances() -> None:
    rng = np.random.default_rng(0)
    spacing = (1.0, 1.5, 2.0)
    a, b = (ndimage.gaussian_filter(rng.random((24, 24, 24)), 3) > 0.5 for _ in range(2))
    edge = [m & ~ndimage.binary_erosion(np.pad(m, 1))[1:-1, 1:-1, 1:-1] for m in (a, b)]
    distance = [ndimage.distance_transform_edt(~e, sampling=spacing) for e in edge]
    expected = max(np.percentile(distance[1][edge[0]], 95), np.percentile(distance[0][edge[1]], 95))
    assert volume_scores(a, b, spacing)["hd95_mm"] == pytest.approx(expected, rel=1e-4)


def test_masks_at_the_border_of_the_volume() -> None:
    whole, less = box((10, 10, 10), (0, 0, 0), (10, 10, 10)), box((10, 10, 10), (0, 0, 0), (10, 10, 8))
    assert volume_scores(less, whole, (1, 1, 1))["hd95_mm"] == pytest.approx(2)


def test_nothing_against_something() -> None:
    mask, nothing = box((8, 8, 8), (2, 2, 2), (5, 5, 5)), np.zeros((8, 8, 8), bool)
    assert volume_scores(nothing, mask, (1, 1, 1)) == {"dice": 0, "iou": 0, "hd95_mm": np.inf, "surface_dice_1mm": 0}
    assert volume_scores(nothing, nothing, (1, 1, 1))["dice"] == 1
