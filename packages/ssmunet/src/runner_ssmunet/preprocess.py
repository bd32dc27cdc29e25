"""Turn a core's spectra into cached ones: tissue mask, baseline, derivative, normalisation. Axis: axis.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from runner_core import BadInput, otsu_threshold

from runner_ssmunet.axis import plan
from runner_ssmunet.bands import CONTRAST, FAINT, Axis, amide1_weights, heights, normalised, on_axis
from runner_ssmunet.config import SpectraConfig
from runner_ssmunet.readers import Core
from runner_ssmunet.readers.blocks import by_rows, release, space

Array = np.ndarray[Any, np.dtype[Any]]
Steps = Callable[[Array, Axis], Array]
"""Spectra (P, L) float32 on an axis to spectra (P, L)."""

SETTINGS = ("low", "high", "gap", "bin", "step", "baseline", "derivative", "window", "normalise", "tissue")
"""The settings of `data` that decide the cached spectra."""
OPTIONAL = ("wavenumbers", "band_width")
"""Further ones, named only where they are set: caches and exports made before they existed stay valid."""
_WINDOW = 48
_PIXELS = 16384
"""Pixels that are processed at once, which bounds the memory."""


def settings_of(data: SpectraConfig) -> dict[str, Any]:
    """Return the values of the settings that decide the cached spectra."""
    names = (*SETTINGS, *OPTIONAL) if data.wavenumbers else SETTINGS
    return {name: getattr(data, name) for name in names}


def tissue_mask(core: Core, mode: str, name: str) -> Array:
    """Return the core's tissue pixels (H, W) bool, by `data.tissue`; unmeasured pixels are no tissue.

    Without a mask, tissue is every pixel whose amide-I area has a logarithm above Otsu's threshold (IEEE Transactions
    on Systems, Man and Cybernetics 9, 1979).

    Raises BadInput naming the file if there is no mask, no amide-I band, or no tissue.
    """
    if mode == "file" and core.tissue is None:
        raise BadInput(f"{name}: no tissue mask in it, and none beside it. Add one, or set data.tissue to auto.")
    if mode != "amide1" and core.tissue is not None:
        return core.tissue & core.measured
    weights = amide1_weights(core.wavenumbers)
    remedy = "Add a tissue mask" + (" and set data.tissue to file." if mode == "amide1" else ".")
    if weights is None:
        raise BadInput(
            f"{name}: its axis, {core.wavenumbers[0]:g} to {core.wavenumbers[-1]:g} cm⁻¹, has no amide-I band (1600 to "
            f"1700) to find the tissue by. {remedy}"
        )
    area = by_rows(core.spectra, lambda rows: np.asarray(rows @ weights.astype(np.float32)))
    low, high = np.percentile(area[core.measured], (1, 99))
    if high - low < CONTRAST or high <= 0:
        raise BadInput(f"{name}: no amide-I area stands out from the rest: no tissue is found. {remedy}")
    # Otsu's classes are about equally wide on a logarithmic scale only: tissue varies by factors, glass by its noise,
    # which reaches as far up as it reaches below 0
    noise = max(-low, FAINT * high)
    grown = np.log(area.clip(noise))
    return np.asarray(core.measured & (grown > otsu_threshold(grown[core.measured])))


def usable_axis(wavenumbers: Array, data: SpectraConfig, name: str) -> Axis:
    """Return the axis that is kept of a core.

    Raises BadInput if no axis can be made, whatever the tissue mask is.
    """
    axis = plan(wavenumbers, data, name)
    if data.normalise == "amide1" and amide1_weights(axis.wavenumbers) is None:
        raise no_amide1(name, "data.normalise amide1", "set data.normalise to vector")
    return axis


def no_amide1(name: str, setting: str, remedy: str) -> BadInput:
    """Return the refusal of an axis without amide I."""
    return BadInput(
        f"{name}: {setting} needs three points or more from 1600 to 1700 cm⁻¹. Lower data.bin or data.step, or "
        f"{remedy}."
    )


def prepare(
    spectra: Array, wavenumbers: Array, tissue: Array, data: SpectraConfig, name: str, steps: Steps | None = None
) -> tuple[Array, Array]:
    """Return the cached spectra (H, W, L) float16 and their axis (L,) float64, from `spectra` (H, W, C).

    `wavenumbers` (C,) ascend. Pixels outside `tissue` (H, W) bool are 0. `name` is the core, for messages. `steps`
    take the place of baseline, derivative and normalisation. Raises BadInput as `axis.plan` does, and if
    `data.normalise amide1` finds no such band.
    """
    axis = plan(wavenumbers, data, name)
    out = space((*tissue.shape, len(axis.wavenumbers)), np.float16)
    rows, columns = np.nonzero(tissue)
    for first in range(0, len(rows), _PIXELS):
        part = rows[first : first + _PIXELS], columns[first : first + _PIXELS]
        if steps is None:
            own = processed(spectra[part], axis, data, name)
        else:
            own = steps(on_axis(spectra[part], axis), axis)
        out[part] = own.clip(-6e4, 6e4)
        release(spectra)
        release(out)
    return out, axis.wavenumbers


def processed(pixels: Array, axis: Axis, data: SpectraConfig, name: str) -> Array:
    """Turn spectra (P, C) into (P, L) float32: bins or resampling, baseline, derivative, normalisation, in order.

    All steps work within each segment of `axis`, except the normalisation, which divides a spectrum by one number.
    """
    out = on_axis(pixels, axis)
    if data.baseline == "rubberband":
        for segment in axis.segments:
            out[:, segment.points] -= rubberband(out[:, segment.points], axis.wavenumbers[segment.points])
    amide1 = _heights(out, axis, name) if data.normalise == "amide1" else None
    for segment in axis.segments:
        if segment.derive is not None:
            out[:, segment.points] = out[:, segment.points] @ segment.derive.astype(np.float32)
    return normalised(out, amide1, data.normalise)


def window(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return the square of a core around the middle of its tissue, of at most 48² pixels: enough for a picture."""
    rows, columns = np.nonzero(arrays["tissue"])
    first = [max(0, int(np.median(at)) - _WINDOW // 2) if at.size else 0 for at in (rows, columns)]
    part = tuple(slice(start, start + _WINDOW) for start in first)
    return {name: array[part] for name, array in arrays.items()}


def rubberband(pixels: Array, wavenumbers: Array) -> Array:
    """Return the baselines (P, L) float32 of spectra (P, L): the lower convex hull of each, by pybaselines."""
    from pybaselines import Baseline
    from scipy.spatial import QhullError

    out = np.empty(pixels.shape, np.float32)
    if len(wavenumbers) < 3:
        out[...] = pixels  # one point or two are their own hull
        return out
    fitter = Baseline(wavenumbers)
    for i, spectrum in enumerate(pixels.astype(np.float64)):
        try:
            out[i] = fitter.rubberband(spectrum)[0]
        except QhullError:  # a straight line encloses nothing: it is its own hull
            out[i] = spectrum
    return out


def _heights(pixels: Array, axis: Axis, name: str) -> Array:
    found = heights(pixels, axis)
    if found is None:
        raise no_amide1(name, "data.normalise amide1", "set data.normalise to vector")
    return found
