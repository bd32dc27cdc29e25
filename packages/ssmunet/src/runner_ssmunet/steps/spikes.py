"""Cosmic spikes and glitches: one to three points far off their neighbours."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

_WIDE = 3
"""Most points of a spike."""
_FLOOR = 1e-4
"""Least scale of the noise, as a share of a spectrum's range: spectra without noise have no spikes."""
_NORMAL = 1.4826
"""Standard deviation of normal noise over its median absolute value."""


def without_spikes(pixels: Array, threshold: float) -> Array:
    """Return spectra (P, L) float32 with a straight line in place of every spike.

    A point is part of a spike if its modified z-score (Whitaker and Hayes, Chemometrics and Intelligent Laboratory
    Systems 179, 2018) is above `threshold`, both that of its distance from the cubic through its four neighbours and
    that of its distance from the running median. Whitaker and Hayes take first differences, in which the flanks of
    amide I stand out too. A cubic follows flanks and peaks, and the median does not follow a spike.
    """
    out = pixels.astype(np.float32)
    if out.shape[1] < 2 * _WIDE + 1:
        return out
    wide = np.pad(out, ((0, 0), (2, 2)), mode="reflect", reflect_type="odd")
    far = np.abs(out - (4 * (wide[:, 1:-3] + wide[:, 3:-1]) - wide[:, :-4] - wide[:, 4:]) / 6)
    noise = _NORMAL * np.median(far, axis=1, keepdims=True)
    least = threshold * np.maximum(noise, _FLOOR * np.ptp(out, axis=1, keepdims=True))
    rows = np.flatnonzero((far > least).any(1))
    score = np.minimum(far[rows], np.abs(out[rows] - _running_median(out[rows])))
    off = (score > least[rows]) & (score > _highest(score) / 2)  # a spike lifts its neighbours' scores a little
    places = np.arange(out.shape[1])
    for row, spikes in zip(rows[off.any(1)], off[off.any(1)], strict=True):
        out[row, spikes] = np.interp(places[spikes], places[~spikes], out[row, ~spikes])
    return out


def _running_median(pixels: Array) -> Array:
    return np.asarray(np.partition(_around(pixels), _WIDE, axis=0)[_WIDE])


def _highest(scores: Array) -> Array:
    return np.asarray(_around(scores).max(0))


def _around(pixels: Array) -> Array:
    """Return each point with the three on either side: (7, P, L)."""
    wide = np.pad(pixels, ((0, 0), (_WIDE, _WIDE)), mode="reflect", reflect_type="odd")
    return np.stack([wide[:, k : k + pixels.shape[1]] for k in range(2 * _WIDE + 1)])
