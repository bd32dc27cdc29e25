"""Whole cores: tiles cover them, blending is an average, features are computed once a pixel."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runner_core import Arrays
from runner_ssmunet import whole


@given(st.integers(1, 400), st.sampled_from([16, 48, 128]), st.floats(0, 0.95))
def test_tiles_cover_an_axis_and_overlap_as_asked(length: int, patch: int, overlap: float) -> None:
    places = whole.starts(length, patch, overlap)
    assert places[0] == 0
    assert places[-1] == max(0, length - patch)
    steps = np.diff(places)
    assert (steps > 0).all()
    assert (steps <= max(1, patch * (1 - overlap)) + 1).all()  # starts are rounded down


def test_a_window_is_symmetric_highest_in_the_middle_and_nowhere_zero() -> None:
    window = whole.window(16)
    assert np.allclose(window, window[::-1])
    assert np.allclose(window, window.T)
    assert window.min() > 0
    assert window.argmax() in {16 * 7 + 7, 16 * 7 + 8, 16 * 8 + 7, 16 * 8 + 8}


@pytest.mark.parametrize("shape", [(10, 12), (16, 16), (40, 23), (70, 50)])
def test_a_network_that_looks_at_pixels_alone_is_blended_to_itself(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    features = rng.random((*shape, 3)).astype(np.float32)
    asked = []

    def classify(tiles: np.ndarray) -> np.ndarray:
        asked.append(tiles.shape)
        return tiles.transpose(0, 3, 1, 2)

    found = whole.blended(features, np.ones(shape, bool), np.zeros(3), 16, 0.5, 4, classify)
    assert np.allclose(found, features.transpose(2, 0, 1), atol=1e-6)
    assert all(one[0] <= 4 and one[1:3] == (16, 16) for one in asked)
    if max(shape) <= 16:
        assert asked == [(1, 16, 16, 3)]


def test_what_lies_beyond_a_small_core_is_filled_with_what_is_no_tissue() -> None:
    seen = []

    def classify(tiles: np.ndarray) -> np.ndarray:
        seen.append(tiles)
        return tiles.transpose(0, 3, 1, 2)

    whole.blended(np.ones((5, 16, 2), np.float32), np.ones((5, 16), bool), np.array([7.0, 8.0]), 16, 0.5, 4, classify)
    assert (seen[0][0, 5:] == [7, 8]).all()
    assert (seen[0][0, :5] == 1).all()


def test_tiles_without_tissue_are_not_asked_about() -> None:
    tissue = np.zeros((64, 64), bool)
    tissue[:10, :10] = True
    asked = []

    def classify(tiles: np.ndarray) -> np.ndarray:
        asked.append(len(tiles))
        return np.ones((len(tiles), 2, 16, 16), np.float32)

    found = whole.blended(np.zeros((64, 64, 1), np.float32), tissue, np.zeros(1), 16, 0.0, 8, classify)
    assert sum(asked) == 1
    assert (found[:, :10, :10] == 1).all()
    assert not found[:, 20:].any()


def test_seams_are_smooth() -> None:
    """A network that says in each tile how far from its left border a pixel is: blended, no step is as large as a
    tile's border would be."""

    def classify(tiles: np.ndarray) -> np.ndarray:
        ramp = np.broadcast_to(np.arange(32) / 32, (len(tiles), 1, 32, 32))
        return ramp.astype(np.float32)

    found = whole.blended(np.zeros((32, 96, 1), np.float32), np.ones((32, 96), bool), np.zeros(1), 32, 0.5, 8, classify)
    assert np.abs(np.diff(found[0], axis=1)).max() < 0.1


def fake(asked: list[int]):
    """A network whose features are the first two channels, and 9 off the tissue."""

    def infer(arrays: Arrays) -> Arrays:
        if "features" in arrays:
            return {"prediction": arrays["features"].transpose(0, 3, 1, 2)}
        inside = arrays["tissue"][..., None] > 0
        asked.append(int(inside.sum()))
        features = np.where(inside, arrays["spectra"][..., :2], 9).astype(np.float32)
        return {"features": features, "attention": np.full((1, arrays["spectra"].shape[-1]), 0.25, np.float32)}

    return infer


@pytest.mark.parametrize("pixels", [7, 100, 16384])
def test_each_tissue_pixel_is_described_once_and_put_back(pixels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole, "PIXELS", pixels)
    rng = np.random.default_rng(0)
    spectra, tissue = rng.random((13, 9, 4)).astype(np.float16), rng.random((13, 9)) < 0.6
    asked: list[int] = []
    features, empty, attention = whole.described(spectra, tissue, fake(asked))
    assert sum(asked) == tissue.sum()
    assert (features[tissue] == spectra[tissue][:, :2]).all()
    assert (features[~tissue] == 9).all()
    assert empty.tolist() == [9, 9]
    assert np.allclose(attention, 0.25)


def test_a_core_without_tissue_is_nothing() -> None:
    found, attention = whole.predict(
        np.zeros((5, 6, 4), np.float16), np.zeros((5, 6), bool), fake([]), 3, 16, 0.5, 4
    )  # fmt: skip
    assert found.shape == (3, 5, 6)
    assert not found.any()
    assert not attention.any()
