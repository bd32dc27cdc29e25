"""Checks that a CT shows all that was drawn on it: a series that lost its first or last slices looks whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from runner_core import BadInput, Finding

from runner_openkbp.dicom.contours import Contours, Ring
from runner_openkbp.geometry import Geometry
from runner_openkbp.rois import TARGETS, Array

RULE = "DICOM"
"""The rule of findings about how files became a patient."""
ENDS_MM = 20.0
"""A CT that ends inside the body nearer to the targets than this may have lost slices."""


def refuse_beyond(path: Path, name: str, roi: str, contours: Contours, shape: Sequence[int]) -> Iterator[Finding]:
    """Yield a warning for an organ that the CT (of `shape`) does not wholly show.

    Raises BadInput for a target of which any contour lies beyond the CT, and for other structures of which most do.
    """
    count = len(contours.planes)
    beyond = sum(not _shown(height, rings, shape) for height, rings in contours.planes.items())
    if 2 * beyond > count:
        raise BadInput(
            f"{path}: structure {name!r} lies outside the CT; is it this CT's, and are all its slices there?"
        )
    if beyond and roi in TARGETS:
        raise BadInput(
            f"{path}: {beyond} of the {count} contoured planes of target {name!r} lie beyond the CT's slices: the "
            "series is not whole; export all its slices"
        )
    if beyond:
        text = f"{beyond} of the {count} contoured planes of {name} lie beyond the CT's slices and are left out"
        yield Finding(RULE, "warning", text)


def _shown(height: float, rings: Sequence[Ring], shape: Sequence[int]) -> bool:
    """Return whether a plane lies on a slice, within half a voxel, and the middle of each of its rings in the image."""
    middles = np.array([ring.mean(axis=0) for ring in rings])
    inside = bool(((middles > -0.5) & (middles < np.array(shape[:2]) - 0.5)).all())
    return inside and -0.51 <= height <= shape[2] - 0.49


def ends_near(masks: Mapping[str, Array], grid: Geometry) -> Iterator[Finding]:
    """Yield a warning for each end of the CT that lies inside the body and near the targets."""
    targets = np.logical_or.reduce([masks[roi] for roi in TARGETS if roi in masks])
    slices = np.flatnonzero(targets.any(axis=(0, 1)))
    last, step = targets.shape[2] - 1, float(grid.voxel_mm[2])
    for end, side, distance in ((0, "above", slices[0] * step), (last, "below", (last - slices[-1]) * step)):
        if distance < ENDS_MM and masks["body"][:, :, end].any():
            text = (
                f"the CT ends {distance:g} mm {side} the targets, inside the body, and no dose is predicted beyond it; "
                "are all slices there?"
            )
            yield Finding(RULE, "warning", text)
