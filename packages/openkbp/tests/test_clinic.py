"""Clinical goals are judged by their limits, gamma passing rates are those of pymedphys."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from runner_core import BadInput
from runner_openkbp import clinic
from runner_openkbp.gamma import passing_rate
from runner_openkbp.rois import Patient, pack_masks
from scipy import ndimage

VOXEL_MM = np.array([3.9, 3.9, 2.5])
PYMEDPHYS = {
    (0, 3, False): 3319 / 3340, (0, 3, True): 3265 / 3340, (0, 2, False): 3209 / 3340, (0, 2, True): 3096 / 3340,
    (1, 3, False): 3314 / 3334, (1, 3, True): 3280 / 3334, (1, 2, False): 3236 / 3334, (1, 2, True): 3149 / 3334,
    (2, 3, False): 3336 / 3344, (2, 3, True): 3263 / 3344, (2, 2, False): 3222 / 3344, (2, 2, True): 3110 / 3344,
}  # fmt: skip
"""Shares that pass by seed, per cent = mm, and local: of pymedphys 0.41, with interp_fraction=10, max_gamma=1.1 and
lower_percent_dose_cutoff=10."""


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_as_many_voxels_pass_as_with_pymedphys(seed: int) -> None:
    """test_oracles_gamma.py compares the values themselves, where pymedphys is installed."""
    rng = np.random.default_rng(seed)
    reference = ndimage.gaussian_filter(rng.random((14, 15, 16)), 2)
    reference = (reference - reference.min()) / (reference.max() - reference.min()) * 70
    evaluated = reference + ndimage.gaussian_filter(rng.normal(0, 1, reference.shape), 1.5) * 12
    for size in (3, 2):
        for local in (False, True):
            found = passing_rate(reference, evaluated, VOXEL_MM, size, size, local=local)
            assert found == pytest.approx(100 * PYMEDPHYS[seed, size, local], abs=1e-9)


def test_gamma_of_a_ramp_is_the_published_formula() -> None:
    """For a ramp that is d too high, gamma is d / sqrt(ΔD² + (slope · Δr)²): Low et al. 1998."""
    ramp = np.broadcast_to(np.arange(30.0)[:, None, None] * 2 + 30, (30, 7, 7)).copy()  # 1 Gy/mm, up to 88 Gy
    inside = np.zeros(ramp.shape, bool)
    inside[8:22, 2:5, 2:5] = True
    voxel, limit = np.array([2.0, 2.0, 2.0]), np.hypot(0.03 * 88, 3.0)
    for shift, expected in ((0.99 * limit, 100.0), (1.01 * limit, 0.0)):
        assert passing_rate(ramp, ramp + shift, voxel, 3, 3, where=inside) == expected
    assert passing_rate(ramp, ramp, voxel, 2, 2) == 100
    assert np.isnan(passing_rate(ramp * 0, ramp, voxel, 3, 3))


def test_goals_are_judged_by_their_metric(tmp_path: Path) -> None:
    cord, target = np.zeros((10, 10, 10), bool), np.zeros((10, 10, 10), bool)
    cord[:3], target[5:] = True, True
    dose = np.where(target, 69.0, np.where(cord, 45.0, 0.0)).astype(np.float32)
    masks = pack_masks({"SpinalCord": cord, "PTV70": target})
    judged = list(clinic.judge(clinic.DEFAULT, dose, masks, VOXEL_MM))
    assert [(g.roi, round(v, 6), g.met(v)) for g, v in judged] == [("SpinalCord", 45, True), ("PTV70", 69, False)]
    assert clinic.summary(judged).endswith("meets 1 of 2 clinical goals; not PTV70 D_95 >= 70 Gy (69.0)")
    patient = Patient(np.zeros(dose.shape, np.int16), dose + 1, masks, VOXEL_MM)
    clinic.write_goals(tmp_path / "goals.csv", clinic.DEFAULT, patient, dose)
    assert (tmp_path / "goals.csv").read_text().split() == [
        "roi,metric,limit_gy,predicted_gy,predicted_met,planned_gy,planned_met",
        *("SpinalCord,D_0.1_cc,<=", "45,45.000,yes,46.000,no", "PTV70,D_95,>=", "70,69.000,no,70.000,yes"),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("goals: [PTV70 D_98 >= 66]", "PTV70 D_98 is no metric; did you mean 'PTV70 D_99'"),
        ("goals: [cord below 45]", "is no goal"),
        ("limits: []", "holds no list of goals"),
    ],
)
def test_a_wrong_table_of_goals_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "goals.yaml").write_text(text)
    with pytest.raises(BadInput, match=message):
        clinic.read_goals(tmp_path / "goals.yaml")


def test_a_table_of_goals_is_read(tmp_path: Path) -> None:
    (tmp_path / "goals.yaml").write_text("goals: [SpinalCord D_0.1_cc <= 45 Gy, PTV70 D_99>=66.5]")
    found = clinic.read_goals(tmp_path / "goals.yaml")
    assert list(map(str, found)) == ["SpinalCord D_0.1_cc <= 45 Gy", "PTV70 D_99 >= 66.5 Gy"]
