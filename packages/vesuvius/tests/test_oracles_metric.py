"""The metric's parts against those who defined them, where they are installed: topolosses (Betti-Matching-3D),
surface-distance (DeepMind's), scikit-image, connected-components-3d, and MONAI, which always is."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from runner_vesuvius.components import label26
from runner_vesuvius.metric.betti import betti_counts
from runner_vesuvius.metric.surface import AREAS, surface_dice
from runner_vesuvius.metric.voi import variation_of_information
from scipy import ndimage


def noisy(shape, share, seed):
    """Two random masks that have much in common."""
    rng = np.random.default_rng(seed)
    truth = rng.random(shape) < share
    return truth ^ (rng.random(shape) < 0.15), truth


def smooth(shape, share, seed):
    rng = np.random.default_rng(seed)
    one, other = (ndimage.gaussian_filter(rng.random(shape), 0.8) for _ in range(2))
    other = 0.7 * one + 0.3 * other
    return one > np.quantile(one, 1 - share), other > np.quantile(other, 1 - share)


def sheets(side, seed):
    """Wavy sheets 4 voxels thick, and a prediction of them with holes, bridges and specks."""
    rng = np.random.default_rng(seed)
    z, y, _ = np.indices((side,) * 3)
    bend = ndimage.gaussian_filter(rng.standard_normal((side,) * 3), 8)
    away = np.abs((z + 0.2 * y + 5 * bend / bend.std()) % 12 - 6)
    rough = ndimage.gaussian_filter(rng.standard_normal((side,) * 3), 1.2)
    return away + rough / rough.std() < 2, away < 2


CASES = [
    *[(noisy, (n, n + 1, n + 2), share, n) for n in (6, 11, 17) for share in (0.1, 0.3, 0.6, 0.85)],
    *[(smooth, (n, n - 1, n + 3), share, n) for n in (12, 24) for share in (0.2, 0.5, 0.8)],
    *[(noisy, (6, 6, 6), share, seed) for seed in range(10) for share in (0.25, 0.5, 0.75)],
    (noisy, (1, 9, 9), 0.5, 0),
    (noisy, (5, 1, 1), 0.5, 1),
    (sheets, 64, 0),
]


def masks(case):
    make, *arguments = case
    return make(*arguments)


def test_betti_matching_3d(betti_matching_3d):
    for case in CASES:
        predicted, truth = masks(case)
        fields = [np.ascontiguousarray(1 - mask.astype(np.float64)) for mask in (predicted, truth)]
        found = betti_matching_3d.compute_matching(*fields, include_input2_unmatched_pairs=True)
        matched = np.array(found.num_matched)
        ours, theirs = matched + found.num_unmatched_input1, matched + found.num_unmatched_input2
        np.testing.assert_array_equal(betti_counts(predicted, truth).T, [matched, ours, theirs], str(case[1:]))


@pytest.mark.filterwarnings("ignore")
def test_monai():
    torch = pytest.importorskip("torch")
    from monai.metrics import compute_surface_dice
    from monai.metrics.utils import create_table_neighbour_code_to_surface_area

    table = create_table_neighbour_code_to_surface_area((1, 1, 1))[0].numpy()
    np.testing.assert_allclose(AREAS, table, atol=1e-6)
    for case in CASES[::3]:
        predicted, truth = (torch.from_numpy(mask)[None, None].float() for mask in masks(case))
        theirs = compute_surface_dice(predicted, truth, [2.0], include_background=True, use_subvoxels=True).item()
        assert surface_dice(*masks(case)) == pytest.approx(1 if np.isnan(theirs) else theirs, abs=1e-5)


def test_surface_distance():
    library = pytest.importorskip("surface_distance")
    for case in CASES:
        predicted, truth = masks(case)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            distances = library.compute_surface_distances(truth, predicted, (1, 1, 1))
            theirs = library.compute_surface_dice_at_tolerance(distances, 2)
        assert surface_dice(predicted, truth) == pytest.approx(1 if np.isnan(theirs) else theirs, abs=1e-9)


def test_scikit_image():
    library = pytest.importorskip("skimage.metrics")
    for case in CASES:
        predicted, truth = masks(case)
        ours, theirs = label26(predicted)[0], label26(truth)[0]
        either = predicted | truth
        if either.any():
            expected = library.variation_of_information(theirs[either], ours[either])
            assert variation_of_information(predicted, truth) == pytest.approx(tuple(expected), abs=1e-9)


def test_connected_components_3d():
    library = pytest.importorskip("cc3d")
    for case in CASES:
        mask = masks(case)[0]
        labels, count = label26(mask)
        theirs, number = library.connected_components(mask, connectivity=26, return_N=True)
        assert count == number
        assert len(np.unique(np.stack([labels.ravel(), theirs.ravel()]), axis=1).T) == number + (not mask.all())
