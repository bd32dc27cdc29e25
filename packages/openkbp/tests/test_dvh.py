"""Dose-volume histograms: what they must be at any dose."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from runner_openkbp.dvh import cumulative, curves, write_spread
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


def test_the_spread_of_several_histograms_is_numpys(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    doses = [rng.uniform(0, 70, (4, 4, 4)).astype(np.float32) for _ in range(3)]
    masks = pack_masks({"PTV70": np.arange(64).reshape(4, 4, 4) > 20})
    write_spread(tmp_path / "dvh.csv", doses, masks)
    with (tmp_path / "dvh.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["roi"] for row in rows} == {"PTV70"}
    at = np.array([float(row["dose_gy"]) for row in rows])
    found = np.array([curves(dose, masks, at)["PTV70"] for dose in doses])
    wanted = [found.mean(0), found.std(0, ddof=1), found.min(0), found.max(0)]
    for column, values in zip(["volume_percent", "sd", "lowest", "highest"], wanted, strict=True):
        np.testing.assert_allclose([float(row[column]) for row in rows], values, atol=0.0006)
    assert wanted[0][0] == 100
    assert wanted[3][-1] == 0
