"""The logistic regression: its optimum, its probabilities, its repeatability."""

from __future__ import annotations

import numpy as np
import torch
from runner_ssmunet import baseline


def _clouds(rng: np.random.Generator, apart: float = 1.5) -> tuple[np.ndarray, np.ndarray]:
    classes = rng.integers(0, 3, 300)
    return rng.normal(size=(300, 4)) + apart * np.eye(4)[classes], classes


def test_it_finds_the_minimum_of_its_loss() -> None:
    """The gradient of the penalised cross-entropy, by autograd in float64, vanishes there."""
    channels, classes = _clouds(np.random.default_rng(0))
    weights = np.array([1.0, 2.0, 0.5])
    found = torch.tensor(baseline.fit(channels, classes, weights), dtype=torch.float64, requires_grad=True)
    logits = torch.from_numpy(channels) @ found[:-1] + found[-1]
    loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(classes), torch.from_numpy(weights))
    (loss + baseline.PENALTY / 2 * found[:-1].square().sum()).backward()
    assert found.grad is not None
    assert found.grad.abs().max() < 1e-3
    nothing = torch.nn.functional.cross_entropy(logits * 0, torch.from_numpy(classes), torch.from_numpy(weights))
    assert loss < 0.5 * nothing


def test_it_separates_what_can_be_separated() -> None:
    channels, classes = _clouds(np.random.default_rng(1), apart=6)
    probabilities = baseline.baseline(channels, baseline.fit(channels, classes, np.ones(3)))
    assert np.allclose(probabilities.sum(1), 1, atol=1e-5)
    assert (probabilities.argmax(1) == classes).mean() > 0.99


def test_weights_make_rare_classes_count() -> None:
    """Two overlapping classes, 20 to 1: unweighted the rare one is hardly ever found, balanced it is."""
    rng = np.random.default_rng(2)
    classes = (rng.random(2000) < 0.05).astype(int)
    channels = rng.normal(size=(2000, 1)) + classes[:, None]
    counts = np.bincount(classes)
    found = [
        baseline.baseline(channels, baseline.fit(channels, classes, weights)).argmax(1)[classes == 1].mean()
        for weights in (np.ones(2), 1 / counts)
    ]
    assert found[0] < 0.1
    assert found[1] > 0.5


def test_the_same_pixels_give_the_same_coefficients() -> None:
    channels, classes = _clouds(np.random.default_rng(3))
    one, other = (baseline.fit(channels, classes, np.ones(3)) for _ in range(2))
    assert one.tobytes() == other.tobytes()
    assert one.dtype == np.float32
