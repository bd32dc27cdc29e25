"""Post-processing of probabilities: sheets mended and drawn anew; hysteresis; size of components; cavities."""

from __future__ import annotations

import math

import numpy as np
from runner_core import Array

from runner_vesuvius.components import fill_cavities, hysteresis, remove_small
from runner_vesuvius.config import ScrollPredictConfig
from runner_vesuvius.crests import drawn
from runner_vesuvius.metric.betti import betti_numbers
from runner_vesuvius.sheets import across, along_sheets


def surface(probability: Array, settings: ScrollPredictConfig) -> Array:
    """Return the surface (D, H, W) uint8, 0 or 1, of a probability (D, H, W) uint8, 255 for certain.

    A volume of 0 and 255 alone is a mask, without probabilities by which sheets could be mended: they stay as they are.
    """
    if not (settings.along_sheets or settings.thickness) or _is_mask(probability):
        return _plain(probability, settings)
    mended = _mended(probability, settings)
    if settings.mend_faults:
        plain = _plain(probability, settings)
        removed = sum(betti_numbers(plain)) - sum(betti_numbers(mended))
        if removed * 1000 < settings.mend_faults * np.count_nonzero(mended):
            return plain
    return mended


def _plain(probability: Array, settings: ScrollPredictConfig) -> Array:
    return tidied(hysteresis(probability, lowest(settings.threshold), lowest(settings.seed_threshold)), settings)


def _mended(probability: Array, settings: ScrollPredictConfig) -> Array:
    low, high = lowest(settings.threshold), lowest(settings.seed_threshold)
    directions = across(probability)
    averaged = along_sheets(probability, directions, settings.along_sheets)
    return tidied(hysteresis(drawn(averaged, directions, settings.thickness), low, high), settings)


def _is_mask(probability: Array) -> bool:
    return all(((plane == 0) | (plane == 255)).all() for plane in probability)


def tidied(mask: Array, settings: ScrollPredictConfig) -> Array:
    """Remove small components of a mask (D, H, W) bool, then fill small cavities: uint8, 0 or 1.

    Takes 6 bytes per voxel, including the mask's, unless the caller keeps the mask.
    """
    mask = remove_small(mask, settings.min_size)  # frees the previous mask
    return fill_cavities(mask, settings.fill_holes).view(np.uint8)


def lowest(probability: float) -> int:
    """Return the lowest of 0…255 that stands for at least this probability."""
    return math.ceil(probability * 255 - 1e-6)
