"""The mean dose of the training patients."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from runner_openkbp.statistics import mean_dose


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
