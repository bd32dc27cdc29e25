"""Baselines of many spectra at once: asymmetric least squares, and polynomials below the bands."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

ROUNDS = 50
"""Most rounds of reweighting; most spectra need 5 to 15."""
_PIXELS = 1024
"""Spectra at once, so that the bands of their equations stay in the processor's cache."""
SETTLED = 1e-3
"""A polynomial baseline is found once a round changes it by less than this share."""


def asls(pixels: Array, smoothness: float, asymmetry: float) -> Array:
    """Return baselines (P, L) float32 by asymmetric least squares (Eilers and Boelens, 2005).

    z minimises Σ w (y − z)² + λ Σ (second differences of z)², with w = p above the baseline and 1 − p below it. The
    weights are found in rounds, until none changes.
    """
    out = np.empty(pixels.shape, np.float32)
    if pixels.shape[1] < 3:
        out[...] = pixels
        return out
    for first in range(0, len(pixels), _PIXELS):
        part = pixels[first : first + _PIXELS].T.astype(np.float64)
        out[first : first + _PIXELS] = _asls(part, smoothness, asymmetry).T
    return out


def _asls(spectra: Array, smoothness: float, asymmetry: float) -> Array:
    """Return baselines of spectra (L, P); spectra whose weights stay are left out of later rounds."""
    out = np.empty_like(spectra)
    open_, weights = np.arange(spectra.shape[1]), np.ones(spectra.shape)
    for _ in range(ROUNDS):
        own = spectra[:, open_]
        found = _smooth(own, weights, smoothness)
        out[:, open_] = found
        now = np.where(own > found, asymmetry, 1 - asymmetry)
        moved = (now != weights).any(0)
        open_, weights = open_[moved], now[:, moved]
        if not open_.size:
            break
    return out


def _smooth(spectra: Array, weights: Array, smoothness: float) -> Array:
    """Solve (W + λ DᵀD) z = W y for every column; D takes second differences.

    The matrix is symmetric with five diagonals: L D Lᵀ, then substitution down and up.
    """
    length = len(spectra)
    differences = np.diff(np.eye(length), 2, axis=0)
    penalty = smoothness * differences.T @ differences
    first, second = np.diagonal(penalty, 1), np.diagonal(penalty, 2)
    pivot, one, two = (np.empty_like(spectra) for _ in range(3))  # of row i: D, and L one and two places below
    z = weights * spectra
    for i in range(length):
        pivot[i] = weights[i] + penalty[i, i]
        if i > 1:
            pivot[i] -= two[i - 2] ** 2 * pivot[i - 2]
            z[i] -= two[i - 2] * z[i - 2]
        if i > 0:
            pivot[i] -= one[i - 1] ** 2 * pivot[i - 1]
            z[i] -= one[i - 1] * z[i - 1]
        if i < length - 1:
            one[i] = first[i] - (one[i - 1] * two[i - 1] * pivot[i - 1] if i > 0 else 0)
            one[i] /= pivot[i]
        if i < length - 2:
            two[i] = second[i] / pivot[i]
    z /= pivot
    for i in range(length - 2, -1, -1):
        z[i] -= one[i] * z[i + 1]
        if i < length - 2:
            z[i] -= two[i] * z[i + 2]
    return z


def polynomial(pixels: Array, wavenumbers: Array, degree: int) -> Array:
    """Return baselines (P, L) float32: polynomials below the bands (Lieber and Mahadevan-Jansen, 2003).

    A polynomial is fitted, what lies above it is cut off to it, and so on until it stays.
    """
    left = pixels.astype(np.float64)
    place = np.interp(wavenumbers, (wavenumbers[0], wavenumbers[-1]), (-1, 1))
    basis = np.linalg.qr(np.polynomial.chebyshev.chebvander(place, min(degree, len(place) - 1)))[0]
    found = (left @ basis) @ basis.T
    open_ = np.arange(len(pixels))
    for _ in range(5 * ROUNDS):
        left[open_] = np.minimum(left[open_], found[open_])
        now = (left[open_] @ basis) @ basis.T
        size = np.linalg.norm(found[open_], axis=1)
        moved = np.linalg.norm(now - found[open_], axis=1) >= SETTLED * np.maximum(size, 1e-12)
        found[open_] = now
        open_ = open_[moved]
        if not open_.size:
            break
    return found.astype(np.float32)
