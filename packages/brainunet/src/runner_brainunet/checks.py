"""Checks of `runner brainunet check` for a record that can be read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from runner_core import Finding
from scipy import ndimage

from runner_brainunet import nifti

Array = np.ndarray[Any, np.dtype[Any]]

LITRES = (0.7, 2.2)
"""Volumes (litres) of human brains, children's included."""
SHOWN = 10
"""Most values of a mask that a message lists."""
THICK = 5.0
"""Spacing (mm) beyond which a slice hides too much."""


def findings(image_path: Path, mask_path: Path | None) -> Iterator[Finding]:
    """Yield warnings about one scan and its mask. Raises BadInput if reading does."""
    image, scan = nifti.read_scan(image_path)
    name = image_path.name
    spacing = np.asarray(nifti.spacing(image))
    yield from _geometry(name, image, spacing)
    if nifti.is_analyze(image_path):
        yield _warning(
            "orientation",
            f"{name}: an Analyze file, which does not say where left is: the first voxel of a row is taken for the "
            "person's right. If that is wrong, convert the file to NIfTI.",
        )
    yield from _intensity(name, scan)
    if mask_path is not None:
        values = nifti.read_mask_values(mask_path, image, image_path)
        mask = nifti.brain_of(values, mask_path)
        stripped = np.array_equal(values[mask], scan[mask]) and scan[~mask].any()
        if not stripped:  # OASIS's masks are the scans without the skull
            yield from _values(mask_path.name, values, mask)
        yield from _mask(mask_path.name, mask, spacing)


def _geometry(name: str, image: Any, spacing: Array) -> Iterator[Finding]:
    shown = " × ".join(f"{s:.2f}" for s in spacing)
    if spacing.max() > THICK or spacing.min() < 0.2:
        yield _warning("spacing", f"{name}: voxels of {shown} mm; is the header right?")
    extent = spacing * np.asarray(image.shape[:3])
    if extent.min() < 90 or extent.max() > 600:
        shown = " × ".join(f"{e:.0f}" for e in extent)
        yield _warning("extent", f"{name}: a field of view of {shown} mm; a head takes about 150 × 200 × 200.")
    header = image.header
    q, s = header.get_qform(coded=True)[0], header.get_sform(coded=True)[0]
    if q is None and s is None:
        yield _warning("orientation", f"{name}: neither sform nor qform is set; left and right are a guess.")
    elif q is not None and s is not None:
        distance = nifti.grid_distance(q, s, image.shape[:3]) * nifti.millimetres(image)
        if distance > 1:
            yield _warning(
                "orientation", f"{name}: sform and qform disagree by up to {distance:.1f} mm; sform is used."
            )


def _intensity(name: str, scan: Array) -> Iterator[Finding]:
    values = np.unique(scan.ravel()[:: max(1, scan.size // 200_000)])
    if values.size < 16:
        yield _warning("intensity", f"{name}: only {values.size} grey values; is this a mask or a label map?")
    outside = float(np.count_nonzero(scan == scan.min())) / scan.size
    if outside > 0.85:
        yield _warning("intensity", f"{name}: {outside:.0%} of the voxels are empty; is the skull already stripped?")


def _values(name: str, values: Array, mask: Array) -> Iterator[Finding]:
    """Warn if the brain, or the rest, has more than one value: labels, or shares of voxels."""
    if all(float(part.min()) == float(part.max()) for part in (values[mask], values[~mask])):
        return
    found = np.unique(values)
    shown = ", ".join(f"{value:g}" for value in found[:SHOWN]) + (", …" if found.size > SHOWN else "")
    taken = f"all above {nifti.threshold(values):g} is taken as brain"
    whole = bool(np.all(found == np.round(found)))
    asked = "Is it an atlas, or a parcellation?" if whole else "Was it resampled, or does it hold probabilities?"
    text = f"{name}: {found.size:,} values ({shown}) where a brain mask has two, 0 and another: {taken}. {asked}"
    yield _warning("mask", text)


def _mask(name: str, mask: Array, spacing: Array) -> Iterator[Finding]:
    litres = float(np.count_nonzero(mask)) * float(np.prod(spacing)) / 1e6
    if not LITRES[0] <= litres <= LITRES[1]:
        yield _warning("volume", f"{name}: a brain of {litres:.2f} litres; expected {LITRES[0]} to {LITRES[1]}.")
    for side in borders(mask):
        yield Finding("border", "note", f"{name}: the mask reaches the {side}; is it cut?")
    labels, count = ndimage.label(mask)
    if count > 1:
        sizes = np.sort(np.bincount(labels.ravel())[1:])[::-1]
        if sizes[1] > 0.01 * sizes[0]:
            yield _warning("pieces", f"{name}: {count} separate pieces; the second has {int(sizes[1])} voxels.")


def borders(mask: Array) -> list[str]:
    """Return the outermost slices that a mask (x, y, z) reaches, in words."""
    ends = [(axis, side, index) for axis in range(3) for side, index in (("first", 0), ("last", -1))]
    return [f"{side} slice of axis {axis}" for axis, side, index in ends if np.take(mask, index, axis).any()]


def _warning(rule: str, message: str) -> Finding:
    return Finding(rule, "warning", message)
