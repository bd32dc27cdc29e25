"""The trivial method to compare with: multinomial logistic regression on each pixel's own spectrum.

SciPy is imported inside the functions: loading it takes two seconds, and everything that loads the project would wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from runner_core import Statistics, Store

from runner_ssmunet.labels import learned

Array = np.ndarray[Any, np.dtype[Any]]

PENALTY = 1e-3
"""Weight of half the squared coefficients, next to the mean cross-entropy."""
ITERATIONS = 500
PIXELS = 20_000
"""Most annotated pixels in the fit; every core contributes an equal share."""


def fit_store(store: Store, training: Sequence[int], found: Statistics, ignore: int | None) -> Array:
    """Fit to annotated tissue pixels of the records `training`, drawn the same way each time.

    `found` holds mean, std and class_weights of these records.
    """
    rng = np.random.default_rng(0)
    share = -(-PIXELS // len(training))
    channels, classes = [], []
    for record in training:
        target = learned(store.arrays["label"].read(record), store.arrays["tissue"].read(record) > 0, ignore)
        places = np.flatnonzero(target >= 0)
        drawn = np.sort(rng.permutation(places)[:share])
        spectra = store.arrays["spectra"].read(record)
        channels.append((spectra.reshape(-1, spectra.shape[-1])[drawn] - found["mean"]) / found["std"])
        classes.append(target.ravel()[drawn])
    return fit(np.concatenate(channels), np.concatenate(classes), found["class_weights"])


def fit(channels: Array, classes: Array, weights: Array) -> Array:
    """Return coefficients (L + 1, K) float32 for z-scored `channels` (pixels, L); the last row holds intercepts.

    `classes` (pixels,) holds 0 to K − 1, and `weights` (K,) the weight of a pixel of each class. L-BFGS starts from
    zero, so that the same pixels give the same coefficients, on any number of cores.
    """
    from scipy import optimize, special
    from threadpoolctl import threadpool_limits

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
    with threadpool_limits(1, "blas"):  # such small products: threads would only wait, and busily
        found = optimize.minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": ITERATIONS})
    return np.asarray(found.x, np.float32).reshape(width + 1, len(weights))


def baseline(channels: Array, coefficients: Array) -> Array:
    """Return probabilities (pixels, K) float32 of z-scored `channels` (pixels, L)."""
    from scipy import special

    logits = channels.astype(np.float32) @ coefficients[:-1] + coefficients[-1]
    return np.asarray(special.softmax(logits, axis=1), np.float32)
