"""The map of embeddings."""

from __future__ import annotations

import numpy as np
import pytest
from runner_dinocell.figures import _DISTINCT, PALE, embedding_map, principal
from sklearn.decomposition import PCA


def features(count: int = 60, width: int = 7) -> np.ndarray:
    made = np.random.default_rng(0)
    return (made.normal(size=(count, width)) * np.arange(1, width + 1) + 5).astype(np.float32)


def test_axes_are_scikit_learns_up_to_their_signs() -> None:
    peer = PCA(2).fit(features().astype(np.float64))
    points, shares = principal(features())
    np.testing.assert_allclose(np.abs(points), np.abs(peer.transform(features().astype(np.float64))), atol=1e-6)
    np.testing.assert_allclose(shares, peer.explained_variance_ratio_, rtol=1e-6)


def test_the_map_does_not_depend_on_the_signs_of_features() -> None:
    points, _ = principal(features())
    turned, _ = principal(-features())
    assert (np.abs(points).argmax(0) == np.abs(turned).argmax(0)).all()
    assert (np.take_along_axis(points, np.abs(points).argmax(0)[None], 0) > 0).all()


@pytest.mark.parametrize("shape", [(1, 4), (2, 4), (5, 1), (5, 4)])
def test_few_fields_and_few_numbers_have_a_map_too(shape: tuple[int, int]) -> None:
    flat = np.ones(shape, np.float32)
    for some in (flat, features(*shape)):
        points, _ = principal(some)
        assert points.shape == (shape[0], 2)
        assert np.isfinite(points).all()
        picture = embedding_map(some, {"plate": ["P1"] * shape[0]})
        assert picture.dtype == np.uint8


def test_every_kind_has_its_colour_and_the_unknown_is_pale() -> None:
    names = [("", "DMSO", "taxol")[n % 3] for n in range(60)]
    picture = embedding_map(features(), {"label": names})
    seen = {tuple(colour) for colour in picture.reshape(-1, 3).tolist()}
    assert {*_DISTINCT[:2], PALE} <= seen
    assert _DISTINCT[2] not in seen


def test_two_maps_lie_side_by_side_and_many_names_are_only_counted() -> None:
    one = embedding_map(features(), {"plate": ["P1", "P2"] * 30})
    two = embedding_map(features(), {"label": [str(n) for n in range(60)], "plate": ["P1", "P2"] * 30})
    assert two.shape[1] == 2 * one.shape[1]
    assert two.shape[0] == one.shape[0]
    assert embedding_map(features(), {"label": [str(n % 20) for n in range(60)]}).shape[0] > one.shape[0]
