"""The challenge's regions of interest (ROI), and how eleven masks share one uint16."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from runner_core import Annotation, BadInput, Finding

Array = np.ndarray[Any, np.dtype[Any]]

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
MOST_GY = 120.0
"""Highest dose (Gy) that is accepted; no plan's is higher (the challenge's reach 78 Gy)."""


def refuse_other_unit(path: Path, highest: float) -> None:
    """Raise BadInput for a file whose `highest` dose (Gy) no plan reaches."""
    if highest > MOST_GY:
        raise BadInput(
            f"{path}: the dose reaches {highest:g} Gy, and no plan's is above {MOST_GY:g}; is it in cGy? Export "
            "it in Gy"
        )


@dataclass
class Patient:
    """One patient on the challenge's grid (see `GRID` for its axes)."""

    ct: Array
    """(128, 128, 128) int16, as the file has it (HU + 1024 in the challenge); 0 for voxels that the file lacks."""
    dose: Array | None
    """(128, 128, 128) float32, Gy; 0 for voxels that the file lacks. None if the patient has no dose (prediction)."""
    masks: Array
    """(128, 128, 128) uint16: bit i is the mask `MASKS[i]`; a missing region's bit is 0 everywhere."""
    voxel_mm: Array
    """(3,) float64: size of a voxel along the axes."""
    notes: tuple[Finding, ...] = ()
    """What a reader of DICOM files has to say about them."""


def pack_masks(masks: Mapping[str, Array]) -> Array:
    """Pack bool arrays of one shape into uint16, bit i for the mask `MASKS[i]`; absent masks are empty.

    Raises KeyError for a name that is no ROI, ValueError if `masks` is empty.
    """
    if not masks:
        raise ValueError("no mask to pack")
    bits = np.zeros(next(iter(masks.values())).shape, np.uint16)
    for name, mask in masks.items():
        bits |= mask.astype(np.uint16) << bit(name)
    return bits


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


def annotation(bits: Array, seen: Array | None) -> Annotation:
    """Count the voxels of each ROI in packed bits (uint16) that the loss looks at (`seen`, bool; None: all).

    >>> brainstem, possible = 1 << bit("Brainstem"), 1 << bit(POSSIBLE)
    >>> bits = np.array([0, possible, possible | brainstem], np.uint16)
    >>> found = annotation(bits, unpack(bits, POSSIBLE))
    >>> found.counts["Brainstem"], found.counts["PTV70"], found.annotated, found.ignored
    (1, 0, 2, 1)
    """
    inside = bits if seen is None else bits[seen]
    counts = {roi: int(np.count_nonzero(unpack(inside, roi))) for roi in ROIS}
    return Annotation(counts, None if seen is None else bits.size - inside.size, inside.size)
