"""The trivial method beside the network: multinomial logistic regression on each pixel's own spectrum.

SciPy is imported where it is used: whatever loads the project would wait two seconds for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from runner_core.project import Statistics
from runner_core.protocols import Store

from runner_ssmunet.labels import targets

Array = np.ndarray[Any, np.dtype[Any]]

PENALTY = 1e-3
"""Weight of half the squared coefficients beside the mean cross-entropy."""
ITERATIONS = 500
PIXELS = 20_000
"""Annotated pixels that it is fitted to at most, as many of each core as fall to its share."""


def fit_store(store: Store, training: Sequence[int], learned: Statistics, ignore: int | None) -> Array:
    """`fit` to annotated tissue pixels of the records `training`, drawn the same way each time. `learned`: mean, std
    and class_weights of these records."""
    rng = np.random.default_rng(0)
    share = -(-PIXELS // len(training))
    channels, classes = [], []
    for record in training:
        target = targets(store.arrays["label"].read(record), ignore)
        places = np.flatnonzero((target >= 0) & (store.arrays["tissue"].read(record) > 0))
        drawn = np.sort(rng.permutation(places)[:share])
        spectra = store.arrays["spectra"].read(record)
        channels.append((spectra.reshape(-1, spectra.shape[-1])[drawn] - learned["mean"]) / learned["std"])
        classes.append(target.ravel()[drawn])
    return fit(np.concatenate(channels), np.concatenate(classes), learned["class_weights"])


def fit(channels: Array, classes: Array, weights: Array) -> Array:
    """Coefficients (L + 1, K) float32 of z-scored `channels` (pixels, L), the last row the intercepts.

    `classes` (pixels,) holds 0 to K − 1; `weights` (K,) is what a pixel of each class weighs. Minimised by L-BFGS from
    zero, so that the same pixels give the same coefficients.
    """
    from scipy import optimize, special

    channels = channels.astype(np.float32)
    count, width = channels.shape
    weight = weights[classes].astype(np.float64)
    weight /= weight.sum()
    truth = np.zeros((count, len(weights)))
    truth[np.arange(count), classes] = 1

    def loss(flat: Array) -> tuple[float, Array]:
        coefficients = flat.reshape(width + 1, len(weights))
        logits = (channels @ coefficients[:-1].astype(np.float32)).astype(np.float64) + coefficients[-1]
        logs = special.log_softmax(logits, axis=1)
        error = weight[:, None] * (np.exp(logs) - truth)
        slope = (channels.T @ error.astype(np.float32)).astype(np.float64) + PENALTY * coefficients[:-1]
        value = -float(weight @ (logs * truth).sum(1)) + PENALTY / 2 * float((coefficients[:-1] ** 2).sum())
        return value, np.concatenate([slope, error.sum(0)[None]]).ravel()

    start = np.zeros((width + 1) * len(weights))
    found = optimize.minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": ITERATIONS})
    return np.asarray(found.x, np.float32).reshape(width + 1, len(weights))


def predict(channels: Array, coefficients: Array) -> Array:
    """Probabilities (pixels, K) float32 of z-scored `channels` (pixels, L)."""
    from scipy import special

    logits = channels.astype(np.float32) @ coefficients[:-1] + coefficients[-1]
    return np.asarray(special.softmax(logits, axis=1), np.float32)
