"""Persistence and Betti matching against others' libraries, where they are installed (.ci/run: in an environment).

topolosses: the authors' Betti-Matching-3D. gudhi: cubical complexes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from runner_vesuvius.persistence import barcode, match
from scipy import ndimage


def case(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Two volumes of any shape: all values different; of few levels; binary; a truth and a prediction of it."""
    rng = np.random.default_rng(number)
    shape = rng.integers(1, 12, 3)
    if number % 5 == 0:
        shape = np.array((20, 18, 16))
    first, second = rng.random(shape), rng.random(shape)
    match number % 4:
        case 1:
            return np.round(first * 5), np.round(second * 3)
        case 2:
            return (first > 0.5).astype(float), (second > 0.4).astype(float)
        case 3:
            truth = (ndimage.gaussian_filter(second, 1) > 0.5).astype(float)
            return np.clip(0.7 * truth + 0.3 * first + 0.2 * rng.standard_normal(shape), 0, 1), truth
    return first, second


def values(volume: np.ndarray, births: np.ndarray, deaths: np.ndarray) -> list[tuple[float, float]]:
    """Return the values of voxels that are given by number, or by coordinates (n, 3)."""
    if births.ndim == 2:
        births, deaths = (np.ravel_multi_index(tuple(voxels.T), volume.shape) for voxels in (births, deaths))
    return list(zip(volume.ravel()[births].tolist(), volume.ravel()[deaths].tolist(), strict=True))


@pytest.mark.parametrize("number", range(60))
def test_matching_equals_that_of_the_authors(number: int, betti_matching_3d: Any) -> None:
    first, second = case(number)
    theirs = betti_matching_3d.compute_matching(first, second, include_input2_unmatched_pairs=True)
    for k, ours in enumerate(match(first, second)):
        same = [
            values(first, theirs.input1_matched_birth_coordinates[k], theirs.input1_matched_death_coordinates[k]),
            values(second, theirs.input2_matched_birth_coordinates[k], theirs.input2_matched_death_coordinates[k]),
        ]
        assert sorted(zip(values(first, *ours.first), values(second, *ours.second), strict=True)) == sorted(
            zip(*same, strict=True)
        )
        assert sorted(values(first, *ours.only_first)) == sorted(
            values(first, theirs.input1_unmatched_birth_coordinates[k], theirs.input1_unmatched_death_coordinates[k])
        )
        assert sorted(values(second, *ours.only_second)) == sorted(
            values(second, theirs.input2_unmatched_birth_coordinates[k], theirs.input2_unmatched_death_coordinates[k])
        )


@pytest.mark.parametrize("number", range(24))
def test_barcodes_equal_those_of_gudhi(number: int) -> None:
    gudhi: Any = pytest.importorskip("gudhi", reason="gudhi is not installed")
    volume, _ = case(number)
    complex_ = gudhi.CubicalComplex(vertices=volume)
    complex_.compute_persistence(homology_coeff_field=2)
    for k, ours in enumerate(barcode(volume)):
        intervals = complex_.persistence_intervals_in_dimension(k)
        theirs = sorted((float(birth), float(death)) for birth, death in intervals if np.isfinite(death))
        assert sorted(values(volume, *ours)) == theirs
