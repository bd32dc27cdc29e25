"""Targets prepared from a label, once per volume: all that the losses and the sampling read. Imports no Numba."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner_vesuvius.labels import IGNORE, SURFACE

LABEL, TUBE, MEDIAL = 3, 4, 8
"""Bits of a target: the label, whether the voxel is in the tube, whether it is on the medial surface."""
CAP = 255
"""Squared distance (voxels²) from which on distances are equal."""
COORDINATES = 16384
"""Most coordinates of one kind that a volume keeps."""
_KEY = 0x7E5_0A5
"""Key of the generator that draws coordinates: the same for every volume."""


def prepare(label: NDArray[np.uint8], tube: int) -> dict[str, NDArray[Any]]:
    """Return the cache's arrays of a label (depth, height, width): 0 background, 1 surface, 2 ignore.

    - target, uint8 of the same shape: the label, and the bits TUBE and MEDIAL;
    - distance, uint8 of the same shape: squared distance (voxels², at most CAP) from a surface voxel to the nearest
      other voxel, from any other voxel to the nearest surface voxel;
    - surface, valid, int32 (n, 3): coordinates (z, y, x) of at most COORDINATES surface voxels, and of as many that are
      not ignored: a random subset, the same at every call, in the order of memory.

    The tube is the medial surface widened by `tube` voxels (26 neighbours a step) and cut by the label. It is the
    target of skeleton recall (Kirchhoff et al., "Skeleton Recall Loss", ECCV 2024); the medial surface is the skeleton
    of a sheet. A tube of 1 is nearly all of a sheet of 2 to 3 voxels; 0 is the medial surface alone. Ignored voxels are
    treated as the volume's outside: the annotation ends there, not the sheet, so it is not thinned from that side.

    A turned or mirrored label has the turned or mirrored distances exactly. If sheets are an even number of voxels
    thick, its medial surface, and so its tube, may lie one voxel further to a side (see `medial_surface`).

    320³ voxels with 4 % (13 %) surface take 1 s (2 s) of one core, and at most 15 bytes per voxel, including the label
    and the result.
    """
    places = {"surface": coordinates(label == SURFACE), "valid": coordinates(label != IGNORE)}
    return volumes_of(label, tube) | places


def volumes_of(
    label: NDArray[np.uint8], tube: int, *, medial: bool = True, distance: bool = True
) -> dict[str, NDArray[Any]]:
    """Return target and distance as `prepare` does.

    Without `medial` the target has no bits TUBE and MEDIAL, and without `distance` there is none: both take time.
    """
    from runner_vesuvius.edt import distance_to_other
    from runner_vesuvius.medial import medial_surface

    surface, target = label == SURFACE, label
    if medial:
        middle = medial_surface(surface, label == IGNORE)
        target = label | np.where(middle, np.uint8(MEDIAL), np.uint8(0))
        target |= np.where(widened(middle, tube) & surface, np.uint8(TUBE), np.uint8(0))
    return {"target": target} | ({"distance": distance_to_other(surface, CAP)} if distance else {})


def widened(mask: NDArray[np.bool_], steps: int) -> NDArray[np.bool_]:
    """Return every voxel within `steps` steps, each to one of 26 neighbours, of a true one."""
    wide = mask
    for axis in range(mask.ndim):
        for _ in range(steps):
            along = np.moveaxis(wide, axis, 0)
            wide = wide.copy()
            grown = np.moveaxis(wide, axis, 0)
            grown[1:] |= along[:-1]
            grown[:-1] |= along[1:]
    return wide


def coordinates(mask: NDArray[np.bool_], most: int = COORDINATES) -> NDArray[np.int32]:
    """Return true places of `mask` (depth, height, width) as int32 (n, 3).

    If there are more than `most`, a random subset is returned, each place equally likely.
    """
    counts = np.count_nonzero(mask, axis=(1, 2))
    ends = np.cumsum(counts)
    count = int(counts.sum())
    if count > most:
        random = np.random.Generator(np.random.Philox(key=_KEY))
        ranks = np.sort(random.choice(count, most, replace=False, shuffle=False))
    else:
        ranks = np.arange(count)
    found = np.empty((len(ranks), 3), np.int32)
    begin = 0
    for z, end in enumerate(np.searchsorted(ranks, ends)):
        within = np.flatnonzero(mask[z])[ranks[begin:end] - (ends[z] - counts[z])]
        found[begin:end] = np.stack([np.full_like(within, z), *np.divmod(within, mask.shape[2])], axis=1)
        begin = end
    return found
