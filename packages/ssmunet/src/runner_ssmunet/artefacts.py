"""Artefacts of instruments and annotators in the phantom's cores: scattering, edges, water vapour, labels over borders.

All of it is drawn from a generator of its own, so that a core without artefacts has the same chemistry.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import ndimage

from runner_ssmunet.steps.mie import extinction, index_variation

Array = np.ndarray[Any, np.dtype[Any]]

RADIUS = (2.0, 7.0)
"""Radius (µm) of the spheres that scatter in a pixel."""
INDEX = (0.15, 0.45)
"""Their mean refractive index, less 1."""
VARIATION = 0.4
"""Largest variation of the index, where the pixel absorbs, as a share of `INDEX`."""
SCATTERED = 0.02
"""Mean amount of extinction (absorbance per unit of efficiency) inside of the tissue."""
AT_EDGE = 2.0
"""How many times as much the edge of the tissue scatters."""
EDGE = 1.5
"""Distance from the edge (pixels) over which its effects fall to 1/e."""
THINNER = 0.5
"""Share of its thickness that the tissue loses at its edge, where a pixel sees glass too."""
VAPOUR = 0.006
"""Standard deviation between rows of pixels, which are measured one after the other, of the vapour's highest line."""
SPILLED = 0.1
"""Share of annotated discs that reach over the border to the next tissue."""

WATER_LINES = (
    (1456.9, 0.7), (1472.1, 0.6), (1489.8, 0.6), (1496.2, 0.6), (1506.9, 1.0), (1521.3, 0.8), (1533.2, 0.6),
    (1540.0, 1.0), (1558.5, 1.0), (1569.8, 0.6), (1576.2, 0.7), (1616.7, 0.8), (1635.6, 0.7), (1646.9, 0.7),
    (1652.9, 0.9), (1662.8, 0.5), (1669.4, 0.6), (1675.5, 0.6), (1684.8, 0.9), (1695.9, 0.7), (1699.9, 0.6),
    (1717.4, 0.7), (1733.9, 0.7), (1739.8, 0.5), (1749.5, 0.5), (1772.7, 0.5), (1792.7, 0.4),
)  # fmt: skip
"""Strong lines of the bending vibration of water vapour (cm⁻¹), to about 1 cm⁻¹, and rough heights."""
LINE_WIDTH = 5.0
"""Full width at half maximum of a line at the phantom's resolution (cm⁻¹)."""


def vapour(wavenumbers: Array) -> Array:
    """Return the spectrum (L,) of water vapour, its highest line about 1."""
    return np.sum([h / (1 + (2 * (wavenumbers - at) / LINE_WIDTH) ** 2) for at, h in WATER_LINES], axis=0)


def at_edge(mask: Array) -> Array:
    """Return 1 at the edge of the tissue (H, W), less inside, 0 off the tissue."""
    inside = ndimage.distance_transform_edt(np.pad(mask, 1))[1:-1, 1:-1]
    return np.where(mask, np.exp(-(inside - 1) / EDGE), 0)


def scattered(absorbance: Array, wavenumbers: Array, mask: Array, fields: Array) -> Array:
    """Return what resonant Mie scattering adds to tissue of this `absorbance` (H, W, L).

    It has van de Hulst's equations and an index that follows each pixel's own absorbance (`steps.mie`). Radius, index,
    variation and amount are smooth over the core: `fields` (4, H, W) are normal random fields of them.
    """
    out = np.zeros_like(absorbance)
    own = (np.tanh(fields[:, mask]) + 1)[..., None] / 2  # 0 to 1, half of it on average
    radius, index = (low + share * (high - low) for share, (low, high) in zip(own, (RADIUS, INDEX), strict=False))
    lags = 4e-4 * np.pi * radius * index * (1 + own[2] * VARIATION * index_variation(absorbance[mask], wavenumbers))
    amount = 2 * own[3] * SCATTERED * (1 + (AT_EDGE - 1) * at_edge(mask)[mask])[:, None]
    out[mask] = amount * extinction(lags * wavenumbers)
    return out


def beside(own: Array, disc: Array) -> Array:
    """Return the pixels (H, W) of a disc next to its `own` tissue, which a hand that draws over the border labels."""
    return disc & ndimage.binary_dilation(own) & ~own
