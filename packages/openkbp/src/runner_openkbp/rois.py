"""The challenge's regions of interest (ROI), and how eleven masks share one uint16."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from runner_core import Annotation, BadInput, Finding

from runner_openkbp.whole import GRID, MASKS, OARS, POSSIBLE, ROIS, SIDE, TARGETS, bit, unpack

__all__ = [
    "GRID",
    "MASKS",
    "MOST_GY",
    "OARS",
    "POSSIBLE",
    "ROIS",
    "SIDE",
    "TARGETS",
    "Array",
    "Patient",
    "annotation",
    "bit",
    "pack_masks",
    "refuse_other_unit",
    "unpack",
]

Array = np.ndarray[Any, np.dtype[Any]]

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
    """A patient on the challenge's grid (see `GRID` for its axes)."""

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
