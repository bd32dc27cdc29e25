"""The trivial method: the mean dose of the training patients."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from runner_openkbp.baseline import mean_dose, trivial_dose
from runner_openkbp.rois import GRID, POSSIBLE, pack_masks


class Stored:
    def __init__(self, arrays: list[Any]) -> None:
        self.arrays = arrays

    def read(self, record: int) -> Any:
        return self.arrays[record]


def store(size: int, doses: list[Any], steps: list[float]) -> Any:
    units = [
        np.rint(np.broadcast_to(d, (1, size, size, size)) / s).astype(np.uint16)
        for d, s in zip(doses, steps, strict=True)
    ]
    return SimpleNamespace(arrays={"dose": Stored(units), "dose_step": Stored([np.array([[s]]) for s in steps])})


@pytest.mark.parametrize("size", [32, 64, 128])
def test_the_mean_is_of_the_training_records_in_gray(size: int) -> None:
    found = mean_dose(store(size, [10.0, 60.0, 30.0], [1 / 800, 1 / 500, 1 / 800]), [0, 2])
    assert found.shape == (32, 32, 32)
    assert found.dtype == np.float32
    assert np.allclose(found, 20, atol=1e-3)


def test_means_of_blocks_keep_their_places() -> None:
    ramp = np.arange(64.0)[:, None, None] / 2
    found = mean_dose(store(64, [ramp], [1 / 800]), [0])
    assert np.allclose(found[:, 3, 5], np.arange(32) + 0.25, atol=1e-3)


def test_it_is_spread_over_the_grid_inside_the_mask_only() -> None:
    """A ramp comes back as the same ramp (away from its ends), so the grids share their centres."""
    ramp = np.broadcast_to((np.arange(32.0) * 4 + 1.5)[:, None, None], (32, 32, 32))
    inside = np.ones(GRID, bool)
    inside[:, :, 100:] = False
    dose = trivial_dose(ramp, pack_masks({POSSIBLE: inside}))
    assert dose.dtype == np.float32
    assert not dose[:, :, 100:].any()
    assert np.allclose(dose[2:126, 5, 5], np.arange(2, 126), atol=1e-3)
