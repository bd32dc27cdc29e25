"""The challenge's regions of interest (ROI) and how eleven masks share one uint16."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from runner_core.project import Annotation

Array = np.ndarray[Any, np.dtype[Any]]

SIDE = 128
GRID = (SIDE, SIDE, SIDE)
"""Every patient's grid, flat in C order. Measured on the patients: the first index grows from front (mandible) to back
(spinal cord), the second from the patient's right to the left, the third from head to feet."""

OARS = ("Brainstem", "SpinalCord", "RightParotid", "LeftParotid", "Esophagus", "Larynx", "Mandible")
"""Organs at risk."""
TARGETS = ("PTV56", "PTV63", "PTV70")
"""Planning target volumes; the number is the prescribed dose in Gy. They do not overlap: a voxel belongs to one."""
ROIS = (*OARS, *TARGETS)
POSSIBLE = "possible_dose_mask"
"""Where dose can be: in the body, near the beams."""
MASKS = (*ROIS, POSSIBLE)
"""Every mask; its place here is its bit."""


def pack_masks(masks: Mapping[str, Array]) -> Array:
    """Bool arrays of one shape, by name → uint16 of that shape, bit i for the mask `MASKS[i]`; absent ones are empty.

    Raises KeyError for a name that is no ROI, ValueError when `masks` is empty.
    """
    if not masks:
        raise ValueError("no mask to pack")
    bits = np.zeros(next(iter(masks.values())).shape, np.uint16)
    for name, mask in masks.items():
        bits |= mask.astype(np.uint16) << bit(name)
    return bits


def unpack(bits: Array, name: str) -> Array:
    """The mask `name` (bool) out of packed bits (uint16, any shape)."""
    return (bits & np.uint16(1 << bit(name))) != 0


def bit(name: str) -> int:
    """
    >>> bit("Brainstem"), bit("possible_dose_mask")
    (0, 10)
    """
    if name not in MASKS:
        raise KeyError(f"no ROI is called {name!r}; there are {', '.join(MASKS)}")
    return MASKS.index(name)


def annotation(bits: Array, seen: Array | None) -> Annotation:
    """Voxels of each ROI among those `seen` by the loss (bool, None: all), of packed bits (uint16, the same shape).

    >>> brainstem, possible = 1 << bit("Brainstem"), 1 << bit(POSSIBLE)
    >>> bits = np.array([0, possible, possible | brainstem], np.uint16)
    >>> found = annotation(bits, unpack(bits, POSSIBLE))
    >>> found.counts["Brainstem"], found.counts["PTV70"], found.annotated, found.ignored
    (1, 0, 2, 1)
    """
    inside = bits if seen is None else bits[seen]
    counts = {roi: int(np.count_nonzero(unpack(inside, roi))) for roi in ROIS}
    return Annotation(counts, None if seen is None else bits.size - inside.size, inside.size)
