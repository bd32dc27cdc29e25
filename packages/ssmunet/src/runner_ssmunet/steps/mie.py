"""Resonant Mie scattering (RMieS): the curves that small spheres of an absorbing material add to a spectrum.

A pixel's apparent absorbance is modelled as h · reference + line + scattering (EMSC: Kohler et al., Applied
Spectroscopy 62, 2008), with the extinction of spheres by van de Hulst's approximation:

    Q(ν) = 2 − 4 sin ρ / ρ + 4 (1 − cos ρ) / ρ²,   ρ(ν) = 4π r ν (n(ν) − 1)

Where the sphere absorbs, its index n varies (Kramers–Kronig); this skews bands, amide I most. Bassan et al., "Resonant
Mie scattering (RMieS) correction of infrared spectra from highly scattering biological samples", Analyst 135, 2010,
take n(ν) = n₀ + b · KK(reference). The curves of many (r, n₀, b) are taken apart into principal components, and the
corrected spectrum is the reference of the next round.

Every pixel has a reference of its own from the second round on, and so hundreds of curves of its own. They are not
computed one by one: at each ν, Q depends on the pixel through one number only, s = KK / max |KK| from −1 to 1. A
Chebyshev series in s, of few components over all (r, n₀, b), is made once for an axis; a pixel's own curves are sums of
it, and their principal components those of a small matrix.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from runner_ssmunet.steps.operations import FAINT

Array = np.ndarray[Any, np.dtype[Any]]

GRID = (8, 8, 5)
"""Number of radii, of mean indices, and of amplitudes of their variation."""
VARIATION = 0.5
"""Largest amplitude of the index's variation, as a share of n₀ − 1."""
_DEGREE = 10
"""Degree of the Chebyshev series."""
_KEPT = 24
"""Components of the series."""
_PIXELS = 256
PROTEIN = (
    (1655, 42, 1.0), (1640, 60, 0.2), (1545, 46, 0.65), (1515, 20, 0.08), (1452, 30, 0.2), (1398, 34, 0.18),
    (1305, 40, 0.12), (1240, 44, 0.2), (1165, 30, 0.07), (1080, 50, 0.15),
)  # fmt: skip
"""Bands of a protein (cm⁻¹): position, full width at half maximum, height. Their sum is the first reference by default;
Bassan et al. take the spectrum of Matrigel, which is mostly protein."""


def protein(wavenumbers: Array) -> Array:
    """Return the absorbance (L,) of `PROTEIN`, each band the mean of a Gaussian and a Lorentzian."""
    far = [2 * (wavenumbers - position) / width for position, width, _ in PROTEIN]
    return np.sum(
        [h * (0.5 * np.exp(-np.log(2) * d**2) + 0.5 / (1 + d**2)) for d, (_, _, h) in zip(far, PROTEIN, strict=True)], 0
    )


def extinction(phase: Array) -> Array:
    """Return van de Hulst's extinction efficiency for phase lags ρ > 0."""
    return np.asarray(2 - 4 * np.sin(phase) / phase + 4 * (1 - np.cos(phase)) / phase**2)


@functools.lru_cache(maxsize=4)
def _kramers_kronig(axis: tuple[float, ...]) -> Array:
    """Return the matrix (L, L) that turns absorbances (P, L) into the variation of the index, up to a factor.

    Maclaurin's formula (Ohta and Ishida, Applied Spectroscopy 42, 1988) on an even axis; absorbances are interpolated
    across gaps, and 0 outside the axis.
    """
    own = np.array(axis)
    spacing = float(np.median(np.diff(own)))
    even = np.linspace(own[0], own[-1], 1 + round((own[-1] - own[0]) / spacing))
    onto = np.stack([np.interp(even, own, row) for row in np.eye(len(own))])
    back = np.stack([np.interp(own, even, row) for row in np.eye(len(even))])
    squares = even[:, None] ** 2 - even[None] ** 2  # row: the absorbance's place, column: the index's
    odd = (np.arange(len(even))[:, None] + np.arange(len(even))[None]) % 2 == 1
    weights = np.where(odd, 4 * (even[1] - even[0]) / np.pi / np.where(odd, squares, 1), 0)
    return np.asarray(onto @ weights @ back)


def index_variation(spectra: Array, wavenumbers: Array) -> Array:
    """Return KK of absorbances (P, L), scaled to −1 … 1."""
    found = spectra @ _kramers_kronig(tuple(wavenumbers.tolist()))
    return np.asarray(found / np.maximum(np.abs(found).max(1, keepdims=True), 1e-12))


def parameters(radius: tuple[float, float], index: tuple[float, float]) -> tuple[Array, Array]:
    """Return 4π r (n₀ − 1) in cm and b / (n₀ − 1), of every curve: (curves,) each. Radii in µm."""
    radii, indices = np.linspace(*radius, GRID[0]) * 1e-4, np.linspace(*index, GRID[1])
    variation = np.linspace(0, VARIATION, GRID[2])
    sizes, shares = np.meshgrid(np.multiply.outer(radii, indices - 1).ravel() * 4 * np.pi, variation, indexing="ij")
    return sizes.ravel(), shares.ravel()


@functools.lru_cache(maxsize=4)
def _series(axis: tuple[float, ...], radius: tuple[float, float], index: tuple[float, float]) -> Array:
    """Return the series (L, degree + 1, components) of all curves, each component with its weight among them."""
    wavenumbers = np.array(axis)
    sizes, shares = parameters(radius, index)
    angles = np.pi * (np.arange(_DEGREE + 1) + 0.5) / (_DEGREE + 1)
    lags = (sizes[:, None] * (1 + np.outer(shares, np.cos(angles))))[..., None] * wavenumbers
    polynomials = np.cos(np.outer(np.arange(_DEGREE + 1), angles)) * 2 / (_DEGREE + 1)
    polynomials[0] /= 2
    table = np.einsum("jk,ckl->cjl", polynomials, extinction(lags))
    _, weights, components = np.linalg.svd(table.reshape(len(sizes), -1), full_matrices=False)
    kept = weights[:_KEPT, None] * components[:_KEPT]
    return np.ascontiguousarray(kept.reshape(len(kept), *table.shape[1:]).transpose(2, 1, 0))


def corrected(
    pixels: Array, wavenumbers: Array, reference: Array, components: int, iterations: int,
    radius: tuple[float, float], index: tuple[float, float],
) -> Array:  # fmt: skip
    """Return spectra (P, L) float32 without scattering, in units of `reference` (L,): (x − line − scattering) / h."""
    axis = tuple(wavenumbers.tolist())
    series = _series(axis, radius, index)
    out = np.empty(pixels.shape, np.float32)
    for first in range(0, len(pixels), _PIXELS):
        part = pixels[first : first + _PIXELS].astype(np.float64)
        own = reference[None]  # one for all pixels in the first round
        for _ in range(iterations):
            own = _round(part, own, index_variation(own, wavenumbers), series, components, wavenumbers)
        out[first : first + _PIXELS] = own
    return out


def scattering(variation: Array, series: Array, components: int) -> Array:
    """Return the principal components (P, L, components) of each pixel's curves; `variation` (P, L) is −1 … 1."""
    polynomials = np.polynomial.chebyshev.chebvander(variation.T, series.shape[1] - 1)  # (L, P, degree + 1)
    curves = (polynomials @ series).transpose(1, 0, 2)  # (P, L, components of the series)
    values, vectors = np.linalg.eigh(curves.transpose(0, 2, 1) @ curves)
    top, sizes = vectors[..., : -components - 1 : -1], values[..., None, : -components - 1 : -1]
    return np.asarray(curves @ (top / np.sqrt(np.maximum(sizes, 1e-12))))


def _round(
    pixels: Array, references: Array, variation: Array, series: Array, components: int, wavenumbers: Array
) -> Array:
    """Fit reference, line and scattering to each pixel, and return what is left over the reference's amount."""
    place = np.interp(wavenumbers, (wavenumbers[0], wavenumbers[-1]), (-1, 1))
    line = np.broadcast_to(np.stack([np.ones_like(place), place], axis=1), (len(references), len(place), 2))
    design = np.concatenate([references[..., None], line, scattering(variation, series, components)], axis=2)
    across = design.transpose(0, 2, 1)
    squares = across @ design
    squares += np.eye(squares.shape[-1]) * 1e-10 * np.trace(squares, axis1=1, axis2=2)[:, None, None]
    if len(references) == 1:
        amounts = (pixels @ design[0]) @ np.linalg.inv(squares[0])
    else:
        amounts = np.linalg.solve(squares, across @ pixels[..., None])[..., 0]
    rest = amounts[:, 1:] @ across[0, 1:] if len(references) == 1 else (design[..., 1:] @ amounts[:, 1:, None])[..., 0]
    return np.asarray((pixels - rest) / np.maximum(amounts[:, :1], FAINT))
