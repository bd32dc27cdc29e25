"""The volume of a predicted brain with its uncertainty, and masks with a margin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from runner_core import Array, BadInput
from scipy import ndimage

from runner_brainunet.whole import one_brain

_DOUBTFUL = 0.05
"""Least probability of a voxel that may belong to the brain."""
_LEVELS = 256
_ROUNDING = 1e-6
"""Share by which a distance may be off: three voxels of 0.7 mm are 2.1 mm."""


@dataclass(frozen=True)
class Volume:
    """The volume of a brain, without a margin (ml)."""

    ml: float
    sd_ml: float
    """Its standard deviation, see `spread_ml`."""
    other_ml: float
    """Volume that was above the threshold too, but apart from the brain: it was left out."""


class Brain(np.ndarray[Any, np.dtype[np.bool_]]):
    """A brain mask (x, y, z) bool on the scan's own grid, with the volume. What is computed from it has none."""

    volume: Volume | None = None

    @classmethod
    def of(cls, mask: Array, volume: Volume) -> Brain:
        """Return the mask with its volume."""
        brain = mask.astype(bool).view(cls)
        brain.volume = volume
        return brain


def volume_of(above: Array, brain: Array, voxel_ml: float, sd_ml: float) -> Volume:
    """Return the volume of a brain; `above` (bool) holds all voxels above the threshold, `brain` the chosen ones."""
    other = np.count_nonzero(above & ~brain)
    return Volume(float(np.count_nonzero(brain)) * voxel_ml, sd_ml, float(other) * voxel_ml)


def spread_ml(probability: Array, voxel_ml: float) -> float:
    """Return the standard deviation of the brain's volume (ml), from the probabilities (x, y, z) of its voxels.

    It is that of the volume of {probability > u}, u uniform in 0 to 1: all doubtful voxels are brain together, or none
    is. If the probabilities are right, no other way to depend on each other gives a larger one. Only the largest piece
    of voxels counts that may be brain at all.
    """
    possible = one_brain(probability > _DOUBTFUL, fill_holes=False)
    counts = np.bincount((probability[possible] * (_LEVELS - 1)).astype(int), minlength=_LEVELS)
    above = counts[::-1].cumsum()[::-1] * voxel_ml
    return float(above.std())


def with_margin(mask: Array, margin: float, spacing: Sequence[float]) -> Array:
    """Return a mask that is grown by `margin` mm, or shrunk if it is negative; voxels measure `spacing` mm.

    Distances are Euclidean, between centres of voxels. Growing adds each voxel within `margin` of a voxel of the mask,
    shrinking removes each within `margin` of a voxel outside it. Beyond the field of view there is no voxel: a brain
    that is cut there does not shrink from that side. Raises BadInput if nothing is left.
    """
    if not margin or not mask.any():
        return mask
    reach = [int(max(margin, 0) // size) + 1 for size in spacing]
    places = ndimage.find_objects(mask.astype(np.uint8))[0]
    near = tuple(slice(max(0, p.start - n), p.stop + n) for p, n in zip(places, reach, strict=True))
    inside, reached = mask[near], abs(margin) * (1 + _ROUNDING)
    if inside.all():
        return mask
    grown = mask.copy()
    if margin > 0:
        grown[near] = ndimage.distance_transform_edt(~inside, sampling=spacing) <= reached
    else:
        grown[near] = ndimage.distance_transform_edt(inside, sampling=spacing) > reached
        if not grown.any():
            raise BadInput(f"predict.margin {margin:g} mm leaves nothing of the brain: use a smaller one")
    return grown
