"""Gamma against pymedphys itself: every voxel's value, on random doses. `bash .ci/run oracles` runs these tests."""

from __future__ import annotations

import numpy as np
import pytest
from runner_openkbp.gamma import gamma, passing_rate
from scipy import ndimage

pymedphys = pytest.importorskip("pymedphys", reason="only in the group oracles")

CASES = [
    # voxels (mm), per cent, distance (mm), local, lowest share that is judged (%), largest gamma
    ((3.9, 3.9, 2.5), 3, 3, False, 10, 1.1),
    ((3.9, 3.9, 2.5), 2, 2, True, 20, 1.1),
    ((1.1, 2.0, 1.5), 3, 3, True, 10, 1.1),
    ((2.5, 2.5, 2.5), 2, 2, False, 20, 2.0),
    ((3.0, 1.0, 5.0), 1, 3, False, 10, 1.5),
]


@pytest.mark.parametrize(("voxel", "percent", "distance", "local", "cutoff", "most"), CASES)
def test_gamma_is_pymedphys_s(
    voxel: tuple[float, ...], percent: float, distance: float, local: bool, cutoff: float, most: float
) -> None:
    """Axes lie far from 0: near it, pymedphys takes points that lie 1e-16 mm beyond the last voxel as outside."""
    rng = np.random.default_rng(int(percent * 10 + distance + cutoff))
    reference = ndimage.gaussian_filter(rng.random((13, 12, 14)), 2)
    reference = (reference - reference.min()) / (reference.max() - reference.min()) * 70
    evaluated = reference + ndimage.gaussian_filter(rng.normal(0, 1, reference.shape), 1.5) * 12
    axes = tuple(np.arange(n) * mm + 1000 for n, mm in zip(reference.shape, voxel, strict=True))
    expected = pymedphys.gamma(
        *(axes, reference, axes, evaluated, percent, distance),
        lower_percent_dose_cutoff=cutoff,
        interp_fraction=10,
        max_gamma=most,
        local_gamma=local,
    )
    where = reference >= cutoff / 100 * reference.max()
    found = gamma(reference, evaluated, np.array(voxel), percent, distance, local=local, where=where, most=most)
    assert np.array_equal(np.isnan(found), np.isnan(expected))
    assert np.nanmax(np.abs(found - expected)) < 1e-6
    judged = expected[np.isfinite(expected)]
    rate = passing_rate(reference, evaluated, np.array(voxel), percent, distance, local=local, where=where)
    assert rate == pytest.approx(100 * np.mean(judged <= 1), abs=1e-9)
