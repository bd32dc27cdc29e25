"""From probabilities to one brain; and the trivial baseline."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import ndimage

from runner_brainunet.slices import otsu

Array = np.ndarray[Any, np.dtype[Any]]


def largest_component(mask: Array) -> Array:
    """The largest object whose voxels touch through faces; an empty mask stays empty."""
    labels, count = ndimage.label(mask)
    if count < 2:
        return mask.astype(bool)
    sizes = np.bincount(labels.ravel())
    sizes[0] = 0
    return labels == int(sizes.argmax())


def one_brain(mask: Array, fill_holes: bool = True) -> Array:
    """Largest component of `mask` (3-D bool), its holes filled."""
    brain = largest_component(mask)
    return np.asarray(ndimage.binary_fill_holes(brain)) if fill_holes else brain


def otsu_brain(scan: Array) -> Array:
    """What a threshold can do: the largest object above Otsu's threshold, holes filled."""
    return one_brain(scan > otsu(scan))
