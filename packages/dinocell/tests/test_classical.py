"""Classical features: those of scikit-image for objects that are known, and beside the network in the judgement."""

from __future__ import annotations

import numpy as np
import pytest
from runner_dinocell import baseline, classical
from runner_dinocell.nuclei import find_nuclei, outlined

pytest.importorskip("skimage")


def field(seed: int = 0, radius: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """Return two channels of discs, and their levels."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:200, :200]
    discs = sum((np.hypot(y - a, x - b) < radius).astype(float) for a in (30, 100, 170) for b in (40, 150))
    image = 300 + np.stack([2000 * discs, 900 * np.sin(x / 9) ** 2 * np.ones_like(discs)])
    image = (image + 15 * rng.standard_normal(image.shape)).clip(0).astype(np.uint16)
    return image, np.percentile(image, (0.1, 99.9), axis=(1, 2)).T.astype(np.float32)


def test_shapes_of_known_discs() -> None:
    image, levels = field()
    found = classical.classical(image, levels, 0)
    assert found.shape == (classical.count(2),)
    assert found[0] == 6
    shape = dict(zip(classical.SHAPE, found[1 : 1 + 2 * len(classical.SHAPE) : 2], strict=True))
    assert shape["area"] == pytest.approx(np.pi * 12**2, rel=0.15)
    assert shape["eccentricity"] < 0.3
    assert shape["axis_major_length"] == pytest.approx(24, rel=0.1)
    assert shape["solidity"] > 0.95


def test_outlines_are_of_the_centres_that_are_found() -> None:
    image, _ = field()
    labels, centres = outlined(image[0]), find_nuclei(image[0])
    assert sorted(np.unique(labels)) == list(range(len(centres) + 1))
    assert len({int(labels[y, x]) for y, x in centres.round().astype(int)} - {0}) == len(centres)


def test_larger_discs_and_other_texture_are_seen() -> None:
    small, large = (classical.classical(*field(radius=radius), 0) for radius in (9, 15))
    assert large[1] > 2 * small[1]
    image, levels = field()
    flat = image.copy()
    flat[1] = 500
    assert not np.allclose(classical.classical(image, levels, 0), classical.classical(flat, levels, 0))


@pytest.mark.parametrize("channels", [1, 3])
def test_an_empty_field_has_features_too(channels: int) -> None:
    image = np.random.default_rng(0).normal(500, 20, (channels, 64, 64)).astype(np.uint16)
    levels = np.tile(np.array([400, 600], np.float32), (channels, 1))
    found = classical.classical(image, levels, 0)
    assert found.shape == (classical.count(channels),)
    assert np.isfinite(found).all()
    assert found[0] == 0
    assert len(baseline.baseline(image, levels)) == baseline.count(channels)
