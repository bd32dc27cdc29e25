"""Noise reduction by components that are fitted to the training records: PCA, and minimum noise fraction."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from runner_core import BadInput, counted

from runner_ssmunet.steps.operations import Operation

Array = np.ndarray[Any, np.dtype[Any]]
Cores = Callable[[], Iterable[tuple[Array, Array]]]
"""Gives each training core anew: spectra (H, W, L) and tissue (H, W) bool."""

_ROWS = 4096


class Covariance:
    """Mean and covariance of spectra, added in parts in float64: memory for L² numbers, whatever the number of pixels.

    Parts are joined by the formula of Chan, Golub and LeVeque (1983).
    """

    def __init__(self, channels: int) -> None:
        self.count, self.mean, self._products = 0, np.zeros(channels), np.zeros((channels, channels))

    def add(self, pixels: Array) -> None:
        """Add `pixels` (P, L) of any float type."""
        for first in range(0, len(pixels), _ROWS):
            part = pixels[first : first + _ROWS].astype(np.float64)
            mean, total = part.mean(0), self.count + len(part)
            part -= mean
            shift = mean - self.mean
            self._products += part.T @ part + np.outer(shift, shift) * (self.count * len(part) / total)
            self.mean += shift * (len(part) / total)
            self.count = total

    def matrix(self) -> Array:
        """Return the covariance (L, L)."""
        return self._products / max(self.count, 1)


def pca(cores: Cores, channels: int, components: int) -> Operation:
    """Return the operation that keeps the principal components of the training cores' tissue with most variance."""
    found = _spread(cores, channels, "pca", components)
    vectors = np.linalg.eigh(found.matrix())[1][:, ::-1][:, :components]
    return "projected", {"mean": found.mean, "down": vectors, "up": vectors.T}


def mnf(cores: Cores, channels: int, components: int) -> Operation:
    """Return the operation that keeps the components of the highest signal-to-noise ratio.

    Minimum noise fraction (Green, Berman, Switzer and Craig, IEEE Transactions on Geoscience and Remote Sensing 26,
    1988): the noise is estimated from the differences between neighbouring tissue pixels, and the components solve
    Σ v = λ Σ_noise v.
    """
    from scipy import linalg

    found, noise = _spread(cores, channels, "mnf", components), Covariance(channels)
    for spectra, tissue in cores():
        for one, other in (
            ((slice(1, None),), (slice(-1),)),
            ((slice(None), slice(1, None)), (slice(None), slice(-1))),
        ):
            both = tissue[one] & tissue[other]
            noise.add(spectra[one][both].astype(np.float32) - spectra[other][both].astype(np.float32))
    if noise.count <= channels:
        raise BadInput(
            f"preprocess.steps: mnf estimates the noise of {channels} channels from pairs of neighbouring tissue "
            f"pixels; the training records have {counted(noise.count, 'pair')}. Take pca instead, or more cores"
        )
    floor = np.eye(channels) * 1e-6 * np.trace(noise.matrix()) / channels
    random = noise.matrix() / 2 + floor
    vectors = linalg.eigh(found.matrix(), random)[1][:, ::-1][:, :components]
    return "projected", {"mean": found.mean, "down": vectors, "up": vectors.T @ random}


def _spread(cores: Cores, channels: int, step: str, components: int) -> Covariance:
    """Return mean and covariance of the tissue; refuse more components than the spectra have."""
    found = Covariance(channels)
    for spectra, tissue in cores():
        found.add(spectra[tissue])
    if components >= min(channels, found.count):
        raise BadInput(
            f"preprocess.{step}_components is {components}; {counted(found.count, 'training pixel')} of "
            f"{counted(channels, 'wavenumber')} have no more: nothing would be left out. Lower it"
        )
    return found
