"""Statistics of pixels by their definition."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from runner_core.testing import cropped
from runner_dinocell.baseline import PERCENTILES, baseline
from runner_dinocell.config import CellConfig
from runner_dinocell.project import DinoCell


def field(seed: int = 0) -> np.ndarray:
    made = np.random.default_rng(seed)
    shared = made.gamma(2, 300, (1, 40, 50))
    return (100 + shared + made.gamma(2, [[[100]], [[200]], [[900]]], (3, 40, 50))).astype(np.uint16)


def test_they_are_numpys() -> None:
    image, levels = field(), np.array([[100, 1100], [120, 2120], [90, 3090]], np.float32)
    found = baseline(image, levels)
    pixels = [(image[c].astype(float).ravel() - levels[c, 0]) / (levels[c, 1] - levels[c, 0]) for c in range(3)]
    wanted = [*(p.mean() for p in pixels), *(p.std() for p in pixels)]
    wanted += [np.percentile(p, mark) for mark in PERCENTILES for p in pixels]
    wanted += [np.corrcoef(pixels)[i, j] for i, j in ((0, 1), (0, 2), (1, 2))]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_gain_and_offset_that_the_levels_share_change_nothing() -> None:
    image = field().astype(np.float64)
    levels = np.stack([np.full(3, 100.0), np.full(3, 2000.0)], 1)
    np.testing.assert_allclose(baseline(image * 3 + 50, levels * 3 + 50), baseline(image, levels), rtol=1e-4)


def test_pixels_in_another_order_say_the_same() -> None:
    image, levels = field(), np.array([[100.0, 2000.0]] * 3)
    shuffled = image.reshape(3, -1)[:, np.random.default_rng(0).permutation(2000)].reshape(image.shape)
    np.testing.assert_allclose(baseline(shuffled, levels), baseline(image, levels), rtol=1e-5)


def test_constant_channels_are_finite() -> None:
    image = field()
    image[1] = 500
    found = baseline(image, np.array([[100, 2000], [500, 500], [100, 2000]], np.float32))
    assert np.isfinite(found).all()
    assert (found[-3], found[-1]) == (0, 0)
    assert len(baseline(image[:1], np.array([[100.0, 2000.0]]))) == 9


def test_the_baseline_is_the_same_whatever_data_scale_is(config: CellConfig, write_plates: Callable[..., Path]) -> None:
    project = DinoCell(config)
    (record,) = project.records(write_plates({"P": 1}))
    prepared = project.prepare(project.decode(record))
    levels = np.array([[100, 900], [50, 5000]], np.float32)
    project.statistics = {"channels": ["1", "2"]}
    own = project.baseline(cropped(project, record))
    project.statistics = {"channels": ["1", "2"], "levels": levels}
    together = project.baseline(cropped(project, record))
    expected = baseline(prepared["image"], prepared["levels"])
    np.testing.assert_array_equal(
        own[: len(expected)], expected
    )  # classical features follow where scikit-image is there
    np.testing.assert_array_equal(own, together)
