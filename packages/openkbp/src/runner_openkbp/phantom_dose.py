"""Plausible doses for generated patients: nine coplanar beams around three target levels.

Like the challenge's plans, a dose is a smooth function of targets, organs and body, and a little of it is random, as a
planner's choices are.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from scipy import fft, ndimage

from runner_openkbp.rois import Array

BEAMS = 9
"""Number of beams, at 0°, 40°, …, 320°, all in the plane of the slice."""
SPARED = {"SpinalCord": 0.55, "Brainstem": 0.5, "RightParotid": 0.4, "LeftParotid": 0.4, "Larynx": 0.2}
"""Share of the dose outside the targets that planning takes off an organ, if it is contoured."""
PENUMBRA_MM = 3.6
BATH_GY = 48.0
"""Dose (Gy) at which the beams' dose between the targets saturates."""


def planned_dose(
    targets: Mapping[str, Array],
    organs: Mapping[str, Array],
    depth: Array,
    voxel_mm: Array,
    rng: np.random.Generator,
) -> Array:
    """Return the dose (float32, Gy) in the masks' shape.

    Args:
        targets: bool masks; 70 Gy are prescribed for "PTV70", and so on.
        organs: bool masks of the organs that are contoured.
        depth: below the skin (mm).
        voxel_mm: the size of a voxel.
        rng: random numbers.
    """
    prescribed = np.zeros(depth.shape, np.float32)
    scale = rng.uniform(1.0, 1.03)
    for name, mask in targets.items():
        prescribed[mask] = float(name.removeprefix("PTV")) * scale
    covered = ndimage.maximum_filter(prescribed, (3, 3, 5))  # a margin, so that the target's rim is covered
    near = _blurred(covered, PENUMBRA_MM, voxel_mm)
    bath = _bath(covered, voxel_mm) * np.float32(rng.uniform(0.95, 1.05))
    bath = BATH_GY * (1 - np.exp(-bath / BATH_GY))
    spared = np.zeros(depth.shape, np.float32)
    for name, share in SPARED.items():
        if name in organs:
            spared[organs[name]] = share * rng.uniform(0.85, 1.1)
    spared = np.minimum(1.5 * _blurred(spared, 7, voxel_mm), 0.7) * np.clip(1.3 - near / 50, 0, 1)
    dose = (near**5 + (bath * (1 - spared)) ** 5) ** 0.2 * (1 - 0.4 * spared)
    dose *= 0.88 + 0.12 * np.clip(depth / 10, 0, 1)  # the dose builds up below the skin
    dose *= 1 + _wobble(dose.shape, rng)
    return np.where((depth > 0) & (dose > 0.05), dose, 0).astype(np.float32)


def _blurred(volume: Array, sigma_mm: float, voxel_mm: Array) -> Array:
    return ndimage.gaussian_filter(volume, sigma_mm / voxel_mm, truncate=2.5)


def _bath(fluence: Array, voxel_mm: Array) -> Array:
    """Return the dose that beams leave in a slice on their way to the targets and behind them.

    Back-projecting a slice's projections from all sides is a convolution with 1/r; attenuation shortens it, and single
    beams show as rays.
    """
    rows, columns = fluence.shape[:2]
    shape = [fft.next_fast_len(2 * n, real=True) for n in (rows, columns)]
    y, x = (np.fft.fftfreq(n, 1 / n) * mm for n, mm in zip(shape, voxel_mm[:2], strict=True))
    r = np.hypot(y[:, None], x[None, :])
    angle = np.arctan2(x[None, :], -y[:, None])
    rays = 1 + 0.35 * np.cos(BEAMS * angle) * np.clip(r / 60, 0, 1)
    kernel = rays * np.exp(-r / 75) / (r + 6) * np.prod(voxel_mm[:2])
    kernel *= 1 / 105  # so that the middle of a wide target gets about its own dose
    treated = np.flatnonzero(fluence.any(axis=(0, 1)))
    first, last = treated[0], treated[-1] + 1
    part = fluence[..., first:last]
    transfer = fft.rfft2(kernel.astype(np.float32))[..., None]
    spread = fft.irfft2(fft.rfft2(part, shape, axes=(0, 1)) * transfer, shape, axes=(0, 1))
    bath = np.zeros_like(fluence)
    bath[..., first:last] = spread[:rows, :columns]
    edge = ndimage.gaussian_filter1d(bath, 5 / voxel_mm[2], axis=2)
    scatter = ndimage.gaussian_filter1d(bath, 32 / voxel_mm[2], axis=2)
    return np.maximum(0.87 * edge + 0.13 * scatter, 0)


def _wobble(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Return smooth noise of 1.2 % that no network can predict, interpolated linearly from 8³ random numbers."""
    field = rng.normal(0, 0.02, (8, 8, 8)).astype(np.float32)
    for side in shape:  # each turn interpolates the first axis and puts it last
        weights = np.maximum(0, 1 - np.abs(np.linspace(0, 7, side)[None] - np.arange(8)[:, None]))
        field = np.tensordot(field, weights.astype(np.float32), axes=(0, 0))
    return field
