"""Prediction of a whole patient: mask bits, the network's grid, and back to the patient's.

NumPy alone: exports carry this file along.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Infer = Callable[[dict[str, Array]], dict[str, Array]]

SIDE = 128
GRID = (SIDE, SIDE, SIDE)
"""Shape of every patient's grid, flat in C order. Measured on the patients: the first index grows from front (mandible)
to back (spinal cord), the second from the patient's right to the left, the third from head to feet."""

OARS = ("Brainstem", "SpinalCord", "RightParotid", "LeftParotid", "Esophagus", "Larynx", "Mandible")
"""Organs at risk."""
TARGETS = ("PTV56", "PTV63", "PTV70")
"""Planning target volumes; the number is the prescribed dose in Gy. They do not overlap."""
ROIS = (*OARS, *TARGETS)
POSSIBLE = "possible_dose_mask"
"""Mask of the voxels that can receive dose: in the body, near the beams."""
MASKS = (*ROIS, POSSIBLE)
"""All masks; the position of a mask is its bit."""


def unpack(bits: Array, name: str) -> Array:
    """Return the mask `name` (bool) from packed bits (uint16, any shape)."""
    return (bits & np.uint16(1 << bit(name))) != 0


def bit(name: str) -> int:
    """Return the bit of a mask.

    >>> bit("Brainstem"), bit("possible_dose_mask")
    (0, 10)
    """
    if name not in MASKS:
        raise KeyError(f"no ROI is called {name!r}; there are {', '.join(MASKS)}")
    return MASKS.index(name)


# ---------------------------------------------------------------- the network's grid


def rows(ct: Array, masks: Array, size: int) -> dict[str, Array]:
    """Return ct and masks (1, size, size, size) of a patient's, by the rules of `packing.prepare`."""
    factor = ct.shape[0] // size
    if factor > 1:
        ct, masks = block_means(ct, factor), pool_masks(masks, factor)
    return {"ct": ct[None], "masks": masks[None]}


def block_means(array: Array, factor: int, where: Array | None = None) -> Array:
    """Return rounded means over blocks of factor³ voxels.

    With `where`, a mean is over the block's voxels in it, and 0 if there are none.
    """
    if where is None:
        return np.rint(block_sums(array.astype(np.int32), factor) / factor**3).astype(array.dtype)
    counts = block_sums(where.astype(np.int32), factor)
    sums = block_sums(array.astype(np.int32) * where, factor)
    return np.rint(sums / np.maximum(counts, 1)).astype(array.dtype)


def pool_masks(masks: Array, factor: int) -> Array:
    """Pool mask bits (S, S, S) to (S/factor, …).

    A bit is set if half or more of the voxels have it; the bit of the possible-dose mask is set if any voxel has it.
    """
    smaller = np.zeros([side // factor for side in masks.shape], np.uint16)
    counter = np.min_scalar_type(factor**3)
    for place in range(len(MASKS)):
        inside = (masks >> place & 1).astype(counter)
        if inside.any():
            least = 1 if MASKS[place] == POSSIBLE else factor**3 // 2
            smaller |= (block_sums(inside, factor) >= least).astype(np.uint16) << place
    return smaller


def block_sums(array: Array, factor: int) -> Array:
    """Sum over blocks of factor³, one axis at a time (far faster than one reduction over three axes)."""
    for axis in range(array.ndim):
        ahead = (slice(None),) * axis
        array = reduce(np.add, (array[(*ahead, slice(i, None, factor))] for i in range(factor)))
    return array


def mirrored(batch: Mapping[str, Array]) -> dict[str, Array]:
    """Mirror the stored arrays (B, 1, S, S, S) of patients; the fourth axis runs from right to left."""
    turned = {name: batch[name][:, :, :, ::-1] for name in batch}
    turned["masks"] = swap_sides(turned["masks"])
    return turned


def swap_sides(masks: Any) -> Any:
    """Exchange the bits of the right and the left parotid in masks of any shape and integer type."""
    right, left = masks & (1 << bit("RightParotid")), masks & (1 << bit("LeftParotid"))
    apart = 1 << (bit("LeftParotid") - bit("RightParotid"))
    return masks - right - left + right * apart + left // apart


# ---------------------------------------------------------------- prediction


def predict(prepared: dict[str, Array], infer: Infer, unit: int | None = None) -> Array:
    """Return the dose (128, 128, 128) float32 in Gy, also where no dose is possible.

    `prepared` holds the patient's ct and masks on the network's grid, one row each. A network that takes any multiple
    of `unit` voxels sees the box around the possible-dose mask alone (see `box`); the dose is 0 outside.
    """
    rows = {name: prepared[name] for name in ("ct", "masks")}
    if unit is None:
        dose = infer({name: row[None] for name, row in rows.items()})["prediction"][0, ..., 0]
        return upsample(dose, SIDE)
    inner = box(unpack(rows["masks"][0], POSSIBLE), unit)
    part = infer({name: np.ascontiguousarray(row[None, :, *inner]) for name, row in rows.items()})["prediction"]
    dose = np.zeros(rows["masks"].shape[1:], np.float32)
    dose[inner] = part[0, ..., 0]
    return upsample(dose, SIDE)


def box(mask: Array, unit: int) -> tuple[slice, ...]:
    """Return the smallest box around a mask whose sides are multiples of `unit`; all if the mask is empty.

    The sides of `mask` are multiples of `unit`. What the box has more than the mask lies evenly at both ends, as far as
    the grid allows.

    >>> box(np.arange(16) == 14, 8)
    (slice(8, 16, None),)
    """
    if not mask.any():
        return tuple(slice(0, size) for size in mask.shape)
    slices = []
    for places, size in zip(np.nonzero(mask), mask.shape, strict=True):
        first, after = int(places.min()), int(places.max()) + 1
        side = -(-(after - first) // unit) * unit
        start = min(max(0, first - (side - (after - first)) // 2), size - side)
        slices.append(slice(start, start + side))
    return tuple(slices)


def inside(masks: Array, dose: Array) -> Array:
    """Return the dose (Gy), 0 outside the possible-dose mask of the patient's mask bits."""
    return np.where(unpack(masks, POSSIBLE), dose, np.float32(0))


def upsample(volume: Array, size: int) -> Array:
    """Interpolate (s, s, s) linearly to (size, size, size), float32.

    Voxels are boxes that share their outer faces, so a coarse voxel's centre lies in the middle of the fine voxels it
    was averaged from. Beyond the outermost centres the nearest value holds.

    >>> upsample(np.broadcast_to(np.array([0.0, 4.0]), (2, 2, 2)), 4)[0, 0].tolist()
    [0.0, 1.0, 3.0, 4.0]
    """
    out = np.asarray(volume, np.float32)
    if out.shape[0] == size:
        return out
    weights = _weights(out.shape[0], size)
    for axis in range(3):
        out = np.moveaxis(np.tensordot(weights, out, (1, axis)), 0, axis)
    return np.ascontiguousarray(out)


def _weights(coarse: int, fine: int) -> Array:
    """Return the weights (fine, coarse) of each coarse value in each fine one."""
    at = np.clip((np.arange(fine) + 0.5) * coarse / fine - 0.5, 0, coarse - 1)
    return np.maximum(0, 1 - np.abs(at[:, None] - np.arange(coarse))).astype(np.float32)
