"""From probabilities to surfaces: hysteresis, size of components, cavities."""

from __future__ import annotations

import math

import numpy as np
from runner_core.protocols import Array

from runner_vesuvius.components import fill_cavities, hysteresis, remove_small
from runner_vesuvius.config import PredictConfig


def surface(probability: Array, settings: PredictConfig) -> Array:
    """Probability (D, H, W) uint8, 255 for certain → surface (D, H, W) uint8, 0 or 1."""
    low, high = _steps(settings.threshold), _steps(settings.seed_threshold)
    return tidied(hysteresis(probability, low, high), settings)


def tidied(mask: Array, settings: PredictConfig) -> Array:
    """A mask (D, H, W) bool → uint8, 0 or 1: small components removed, then small cavities filled.

    Takes 6 bytes a voxel, the mask's included, where nobody else holds on to it.
    """
    mask = remove_small(mask, settings.min_size)  # the one before is let go
    return fill_cavities(mask, settings.fill_holes).view(np.uint8)


def _steps(probability: float) -> int:
    """The lowest of 0…255 that stands for at least this probability."""
    return math.ceil(probability * 255 - 1e-6)
