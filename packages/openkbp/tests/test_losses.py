"""Losses and the validation metric against float64 NumPy, finite differences and what must hold."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from keras import ops
from runner_openkbp.config import LossConfig
from runner_openkbp.losses import DOSES, SOFTNESS, STEP, dvh_distance, mae, regions_mae
from runner_openkbp.metrics import dose_error
from runner_openkbp.objective import objective

SHAPE = (2, 6, 6, 6, 1)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(5)


@pytest.fixture
def doses(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    reference = rng.uniform(0, 70, SHAPE).astype(np.float32)
    return reference, np.maximum(0, reference + rng.normal(0, 5, SHAPE)).astype(np.float32)


@pytest.fixture
def rois(rng: np.random.Generator) -> np.ndarray:
    masks = (rng.random((*SHAPE[:4], 10)) < 0.3).astype(np.float32)
    masks[0, ..., 4] = masks[1, ..., 5] = masks[..., 9] = 0  # absent in one patient, absent in both
    return masks


def area(dose: np.ndarray, reference: np.ndarray, rois: np.ndarray) -> float:
    """The DVH loss, written out in float64."""
    areas = []
    for patient in range(len(dose)):
        for roi in range(rois.shape[-1]):
            inside = rois[patient, ..., roi] > 0
            if inside.any():
                curves = [
                    (1 / (1 + np.exp(-(d[patient, ..., 0][inside].astype(float)[:, None] - DOSES) / SOFTNESS))).mean(0)
                    for d in (dose, reference)
                ]
                areas.append(np.abs(curves[0] - curves[1]).sum() * STEP)
    return float(np.mean(areas))


def test_mean_absolute_error(doses: tuple[np.ndarray, np.ndarray], rng: np.random.Generator) -> None:
    reference, dose = doses
    assert float(mae(dose, reference)) == pytest.approx(np.abs(dose - reference).mean(dtype=float), rel=1e-6)
    mask = (rng.random(SHAPE) < [[[[[0.9]]]], [[[[0.1]]]]]).astype(np.float32)
    by_patient = [np.abs(dose - reference)[p][mask[p] > 0].mean(dtype=float) for p in range(2)]
    assert float(mae(dose, reference, mask)) == pytest.approx(np.mean(by_patient), rel=1e-5)


def test_every_region_counts_alike(
    doses: tuple[np.ndarray, np.ndarray], rois: np.ndarray, gradient: Callable[..., np.ndarray]
) -> None:
    """The mean of the regions' own mean errors; each voxel's gradient is its sign over its regions' sizes."""
    reference, dose = doses
    error, there = np.abs(dose - reference)[..., 0].astype(float), rois.sum((1, 2, 3)) > 0
    means = [error[p][rois[p, ..., r] > 0].mean() for p, r in np.argwhere(there)]
    assert float(regions_mae(dose, reference, rois)) == pytest.approx(np.mean(means), rel=1e-5)
    share = (rois / np.maximum(rois.sum((1, 2, 3), keepdims=True), 1)).sum(-1, keepdims=True) / there.sum()
    found = gradient(lambda d: regions_mae(d, reference, rois), dose)
    np.testing.assert_allclose(found, np.sign(dose - reference) * share, rtol=1e-4, atol=1e-9)
    assert float(regions_mae(dose, reference, 0 * rois)) == 0


def test_dvh_loss_is_the_area_between_the_curves(doses: tuple[np.ndarray, np.ndarray], rois: np.ndarray) -> None:
    reference, dose = doses
    assert float(dvh_distance(dose, reference, rois)) == pytest.approx(area(dose, reference, rois), rel=1e-4)


def test_dvh_loss_gradient(
    doses: tuple[np.ndarray, np.ndarray], rois: np.ndarray, gradient: Callable[..., np.ndarray]
) -> None:
    reference, dose = doses
    found = gradient(lambda d: dvh_distance(d, reference, rois), dose)
    rng = np.random.default_rng(0)
    for _ in range(5):
        direction, h = rng.normal(size=SHAPE), 1e-4
        expected = (area(dose + h * direction, reference, rois) - area(dose - h * direction, reference, rois)) / (2 * h)
        assert np.sum(found * direction) == pytest.approx(expected, rel=2e-3, abs=1e-6)


def test_dvh_loss_measures_gray() -> None:
    """A prediction 3 Gy too hot everywhere is 3 Gy away, in the middle of the range."""
    reference = np.linspace(30, 50, 216, dtype=np.float32).reshape(1, 6, 6, 6, 1)
    everywhere = np.ones((1, 6, 6, 6, 1), np.float32)
    assert float(dvh_distance(reference + 3, reference, everywhere)) == pytest.approx(3, abs=0.01)


def test_dvh_loss_of_the_reference_is_zero(doses: tuple[np.ndarray, np.ndarray], rois: np.ndarray) -> None:
    reference, _ = doses
    assert float(dvh_distance(reference, reference, rois)) == 0


def test_voxels_count_only_in_their_rois(doses: tuple[np.ndarray, np.ndarray], rois: np.ndarray) -> None:
    reference, _ = doses
    changed = np.where(rois.any(-1, keepdims=True), reference, 70).astype(np.float32)
    assert float(dvh_distance(changed, reference, rois)) == 0
    assert float(dvh_distance(changed, reference, np.zeros_like(rois))) == 0


def test_terms_and_weights(doses: tuple[np.ndarray, np.ndarray], rois: np.ndarray) -> None:
    reference, dose = doses
    coarse = np.zeros_like(dose)
    batch = {
        "dose": reference,
        "mask": rois[..., :1],
        "image": np.concatenate([np.zeros_like(dose), rois], -1),
    }
    step = objective([dose], batch, LossConfig())
    loss, terms = step.loss, step.terms
    assert list(terms) == ["mae"]
    assert float(loss) == float(terms["mae"])
    step = objective([coarse, dose], batch, LossConfig(mae=2.0, masked=True, dvh=0.25))
    loss, terms = step.loss, step.terms
    expected = {
        "mae": mae(dose, reference, batch["mask"]),
        "mae_coarse": mae(coarse, reference, batch["mask"]),
        "dvh": dvh_distance(dose, reference, rois),
    }
    assert {name: float(value) for name, value in terms.items()} == pytest.approx(
        {name: float(value) for name, value in expected.items()}
    )
    total = 2 * float(expected["mae"]) + 2 * 0.5 * float(expected["mae_coarse"]) + 0.25 * float(expected["dvh"])
    assert float(loss) == pytest.approx(total, rel=1e-5)


def test_dose_error_is_the_challenges_score(doses: tuple[np.ndarray, np.ndarray], rng: np.random.Generator) -> None:
    """Over all voxels of the reference, the prediction masked, by the voxels of the mask; mean over patients."""
    reference, dose = doses
    mask = (rng.random(SHAPE) < 0.4).astype(np.float32)
    expected = np.mean([np.abs(reference[p] - dose[p] * mask[p]).sum(dtype=float) / mask[p].sum() for p in range(2)])
    found = dose_error(ops.convert_to_tensor(dose), {"dose": reference, "mask": mask})
    assert float(found) == pytest.approx(expected, rel=1e-5)
