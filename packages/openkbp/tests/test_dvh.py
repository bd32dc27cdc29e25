"""Dose-volume histograms: what they must be at any dose."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from runner_openkbp.dvh import cumulative, curves
from runner_openkbp.rois import pack_masks

DOSES = np.arange(0, 90, 0.5)
VALUES = arrays(np.float32, st.integers(1, 60), elements=st.floats(0, 85, width=32))


@given(VALUES)
def test_a_histogram_counts_what_receives_at_least_so_much(values: np.ndarray) -> None:
    curve = cumulative(values, DOSES)
    assert np.allclose(curve, [100 * np.mean(values >= dose) for dose in DOSES])
    assert curve[0] == 100
    assert curve[-1] == 0
    assert (np.diff(curve) <= 0).all()


@given(VALUES)
def test_the_area_below_it_is_the_mean_dose(values: np.ndarray) -> None:
    fine = np.arange(0, 90, 0.01)
    assert abs(cumulative(values, fine).sum() * 0.01 / 100 - values.mean()) < 0.011


def test_there_is_a_curve_for_each_roi_that_has_voxels() -> None:
    dose = np.arange(8, dtype=np.float32).reshape(2, 2, 2)
    masks = pack_masks({"PTV70": dose > 3, "Larynx": dose < 1, "Mandible": dose > 99})
    found = curves(dose, masks, np.array([0.0, 5.0]))
    assert list(found) == ["Larynx", "PTV70"]
    assert found["PTV70"].tolist() == [100, 75]
