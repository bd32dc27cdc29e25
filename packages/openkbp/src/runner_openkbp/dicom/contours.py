"""Contours of an RT Structure Set to masks, and masks to contours.

A voxel is inside if its centre is inside an odd number of the rings of its plane. So rings within rings are holes, and
a hole joined to its outline by a keyhole (a bridge of no width) stays one. Contours follow the edges of voxels when a
mask is written, so that the same mask is read again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from runner_core import BadInput

from runner_openkbp.geometry import Geometry
from runner_openkbp.rois import Array

FLAT_MM = 0.05
"""A contour's points may leave their plane by this much."""
BRIDGED = 3.5
"""Gaps of at most this many slices between two contoured planes are filled by interpolation; others stay empty."""
_KINDS = ("CLOSED_PLANAR", "CLOSED_PLANAR_XOR", "CLOSEDPLANAR_XOR")
_DATA = 0x30060050
"""The tag of ContourData."""
Ring = Array
"""Points (n, 2) in voxels along the rows' and the columns' axis of a grid."""


@dataclass(frozen=True)
class Contours:
    """Rings of one structure by the height of their plane: voxels along the third axis, not always whole numbers."""

    planes: Mapping[float, Sequence[Ring]]
    ignored: int = 0
    """Number of contours that enclose nothing (points, open lines)."""


def read_contours(item: Any, grid: Geometry, name: str) -> Contours:
    """Return the rings of an item of ROIContourSequence on a grid. Raises BadInput for contours in other planes."""
    planes: dict[float, list[Ring]] = {}
    ignored = 0
    inverse, thickness = np.linalg.inv(grid.axes), float(grid.voxel_mm[2])
    for contour in item.get("ContourSequence") or ():
        points = _numbers(contour, name)
        if points.size % 3 or not np.isfinite(points).all():
            raise BadInput(f"structure {name!r}: a contour has {points.size} numbers, no whole points; export it again")
        if str(contour.get("ContourGeometricType", "")) not in _KINDS or points.size < 9:
            ignored += 1
            continue
        voxels = (points.reshape(-1, 3) - grid.origin) @ inverse.T
        if np.ptp(voxels[:, 2]) * thickness > FLAT_MM:
            raise BadInput(
                f"structure {name!r}: a contour is not parallel to the CT's slices; draw it on axial slices, or "
                "resample it in the planning system"
            )
        height = round(float(voxels[:, 2].mean()), 2)
        planes.setdefault(height, []).append(voxels[:, :2])
    return Contours(planes, ignored)


def _numbers(contour: Any, name: str) -> Array:
    """Return ContourData (float64). Numbers are read from the text at once: pydicom makes an object of each."""
    element = contour.get_item(_DATA)
    value = () if element is None else element.value
    try:
        if isinstance(value, bytes):
            return np.array(value.strip(b" \0").split(b"\\") if value.strip(b" \0") else (), float)
        return np.array(value or (), float)
    except ValueError as error:
        raise BadInput(f"structure {name!r}: a contour holds what is no number ({error}); export it again") from error


def fill(rings: Sequence[Ring], shape: tuple[int, int]) -> Array:
    """Return the voxels (bool, `shape`) whose centres lie inside an odd number of rings.

    A centre on an edge belongs to the side of the larger index, so that rings which share an edge share no voxel.

    >>> fill([np.array([[0.5, 0.5], [0.5, 2.5], [2.5, 2.5], [2.5, 0.5]])], (4, 4)).astype(int).tolist()
    [[0, 0, 0, 0], [0, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 0]]
    """
    rows, columns = shape
    crossings = np.zeros((rows, columns + 1), np.int32)
    for ring in rings:
        start, end = ring, np.roll(ring, -1, axis=0)
        up = start[:, 0] > end[:, 0]
        low, high = np.where(up[:, None], end, start), np.where(up[:, None], start, end)
        first = np.clip(np.ceil(low[:, 0]), 0, rows).astype(int)  # rows r with low ≤ r < high
        count = np.clip(np.ceil(high[:, 0]), 0, rows).astype(int) - first
        edge = np.repeat(np.arange(len(ring)), count)
        if not edge.size:
            continue
        row = np.arange(edge.size) - np.repeat(np.cumsum(count) - count, count) + first[edge]
        along = (row - low[edge, 0]) / (high[edge, 0] - low[edge, 0])
        column = low[edge, 1] + along * (high[edge, 1] - low[edge, 1])
        np.add.at(crossings, (row, np.clip(np.ceil(column), 0, columns).astype(int)), 1)
    return np.asarray(np.cumsum(crossings[:, :columns], axis=1) % 2 == 1)


def mask(contours: Contours, shape: tuple[int, int, int]) -> Array:
    """Return the voxels (bool) of a structure.

    A slice with contours has them. A slice between two contoured planes at most `BRIDGED` slices apart has the shape
    midway (signed distances, interpolated linearly). Beyond the last plane, contours reach half their spacing.
    """
    found = np.zeros(shape, bool)
    heights = sorted(contours.planes)
    filled = {height: fill(contours.planes[height], shape[:2]) for height in heights}
    own = min((b - a for a, b in pairwise(heights)), default=1.0)
    for place in range(shape[2]):
        below = max((h for h in heights if h <= place + 1e-6), default=None)
        above = min((h for h in heights if h >= place - 1e-6), default=None)
        if below is not None and above is not None and (below == above or above - below <= max(BRIDGED, own + 0.01)):
            found[:, :, place] = _between(filled, below, above, place)
            continue
        near = min((h for h in (below, above) if h is not None), key=lambda h: abs(h - place), default=None)
        if near is not None and abs(near - place) < own / 2:
            found[:, :, place] = filled[near]
    return found


def _between(filled: Mapping[float, Array], below: float, above: float, place: int) -> Array:
    for height in (below, above):
        if abs(height - place) < 1e-3:
            return filled[height]
    share = (place - below) / (above - below)
    one, other = filled[below], filled[above]
    return np.asarray((1 - share) * _depth(one) + share * _depth(other) > 0)


def _depth(plane: Array) -> Array:
    """Return distances (voxels) to the outline, positive inside; far outside if the plane is empty."""
    from scipy import ndimage

    inside, outside = ndimage.distance_transform_edt(plane), ndimage.distance_transform_edt(~plane)
    return np.asarray(inside - outside if plane.any() else -np.full(plane.shape, float(sum(plane.shape))))


# ---------------------------------------------------------------- masks to contours


def trace(plane: Array) -> list[Ring]:
    """Return rings along the edges of the voxels of a mask (bool, 2-D), from which `fill` gives the same mask.

    >>> trace(np.array([[False, True]]))[0].tolist()
    [[-0.5, 0.5], [-0.5, 1.5], [0.5, 1.5], [0.5, 0.5]]
    """
    padded = np.pad(plane, 1)
    following: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for row, column in np.argwhere(padded[:-1, 1:-1] != padded[1:, 1:-1]).tolist():  # edges along a row
        ends = (row, column), (row, column + 1)
        start, end = ends if padded[row + 1, column + 1] else ends[::-1]
        following.setdefault(start, []).append(end)
    for row, column in np.argwhere(padded[1:-1, :-1] != padded[1:-1, 1:]).tolist():  # edges along a column
        ends = (row + 1, column), (row, column)
        start, end = ends if padded[row + 1, column + 1] else ends[::-1]
        following.setdefault(start, []).append(end)
    rings = []
    while following:
        begin = next(iter(following))
        ring, at = [begin], _take(following, begin)
        while at != begin:
            ring.append(at)
            at = _take(following, at)
        points = np.array(ring)
        turns = np.any((points - np.roll(points, 1, 0)) != (np.roll(points, -1, 0) - points), axis=1)
        rings.append(points[turns] - 0.5)
    return rings


def _take(following: dict[tuple[int, int], list[tuple[int, int]]], at: tuple[int, int]) -> tuple[int, int]:
    ends = following[at]
    end = ends.pop()
    if not ends:
        del following[at]
    return end
