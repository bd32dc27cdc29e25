"""Turn a head into stacks of square slices, which the cache stores and the network reads, and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

AXIS = {"axial": 2, "coronal": 1, "sagittal": 0}
"""The axis (of x, y, z in RAS) along which a view's slices are stacked.

A slice's own axes are the other two, the lower one last: axial (y, x), coronal (z, x), sagittal (z, y). So left–right
is the last axis of axial and coronal slices."""
SAGITTAL = 2
"""Number of the sagittal view in `Layout.view_of_row`."""
_NUMBER = {"axial": 0, "coronal": 1, "sagittal": SAGITTAL}


@dataclass(frozen=True)
class Layout:
    """The places of a head's slices on squares of `size`, for each of `views`; `shape` (x, y, z) is the head's.

    A head larger than the square is cut: evenly at the sides, from below in height (shoulders go, the top stays).
    Between the views, and at both ends, `gap` empty rows replace the neighbours that a border slice lacks.
    """

    shape: tuple[int, ...]
    size: int
    views: tuple[str, ...]
    gap: int

    def _spans(self) -> list[tuple[slice, slice]]:
        """Return per axis the part of the volume that is kept, and its place on the square."""
        spans = []
        for axis, n in enumerate(self.shape):
            kept = min(n, self.size)
            first = (n - kept) if axis == 2 else (n - kept) // 2
            place = (self.size - kept) // 2
            spans.append((slice(first, first + kept), slice(place, place + kept)))
        return spans

    def _blocks(self) -> list[tuple[str, slice]]:
        """Return the rows of each view's slices."""
        blocks, row = [], self.gap
        for view in self.views:
            count = min(self.shape[AXIS[view]], self.size)
            blocks.append((view, slice(row, row + count)))
            row += count + self.gap
        return blocks

    def parts(self, multiple: int) -> Iterator[tuple[slice, slice, slice]]:
        """Yield each view's rows, and the heights and widths of their squares that hold the head.

        At least `multiple` empty voxels are kept around the head, where the square has them. Corners and sides are
        multiples of `multiple` too: a network that pools by it then pools the same voxels together as on squares.
        """
        spans = []
        for _, place in self._spans():
            first, last = max(0, place.start - multiple), min(self.size, place.stop + multiple)
            spans.append(slice(first // multiple * multiple, padded(last, multiple)))
        for view, block in self._blocks():
            row, column = sorted({0, 1, 2} - {AXIS[view]}, reverse=True)
            yield block, spans[row], spans[column]

    @property
    def rows(self) -> int:
        return self._blocks()[-1][1].stop + self.gap

    def view_of_row(self) -> Array:
        """Return (rows, 1) uint8: 0 axial, 1 coronal, 2 sagittal. Empty rows belong to the view before them."""
        numbers = np.full((self.rows, 1), _NUMBER[self.views[0]], np.uint8)
        for view, block in self._blocks():
            numbers[block.start :] = _NUMBER[view]
        return numbers

    def slices(self, volume: Array) -> Array:
        """Turn (x, y, z) into (rows, size, size), contiguous, with 0 outside the head."""
        out = np.zeros((self.rows, self.size, self.size), volume.dtype)
        spans = self._spans()
        kept = volume[tuple(source for source, _ in spans)]
        for view, block in self._blocks():
            axis = AXIS[view]
            row, column = sorted({0, 1, 2} - {axis}, reverse=True)
            out[block, spans[row][1], spans[column][1]] = kept.transpose(axis, row, column)
        return out

    def fuse(self, rows: Array) -> Array:
        """Turn (rows, size, size) into (x, y, z) float32: the mean over the views, 0 beyond the squares."""
        spans = self._spans()
        out = np.zeros(self.shape, np.float32)
        kept = out[tuple(source for source, _ in spans)]
        for view, block in self._blocks():
            axis = AXIS[view]
            row, column = sorted({0, 1, 2} - {axis}, reverse=True)
            part = rows[block, spans[row][1], spans[column][1]]
            kept += part.transpose(np.argsort((axis, row, column))) / len(self.views)
        return out

    def mirrored_slices(self, rows: Array) -> Array:
        """Return the slices (rows, size, size) of the same head, mirrored left to right."""
        out = rows.copy()
        (_, columns), *_ = self._spans()
        for view, block in self._blocks():
            if view == "sagittal":
                out[block] = rows[block][::-1]
            else:
                out[block, :, columns] = rows[block, :, columns][..., ::-1]
        return out

    def mirrored(self, volume: Array) -> Array:
        """Mirror what the squares hold of the last three axes (x, y, z) left to right."""
        out = volume.copy()
        (kept, _), *_ = self._spans()
        out[..., kept, :, :] = volume[..., kept, :, :][..., ::-1, :, :]
        return out


def windows(rows: Array, neighbours: int) -> Array:
    """Turn (rows, h, w) into (rows, neighbours, h, w): each slice with its neighbours, clamped at the ends."""
    half = neighbours // 2
    index = np.arange(len(rows))[:, None] + np.arange(-half, half + 1)
    return rows[np.clip(index, 0, len(rows) - 1)]


def to_uint8(volume: Array, foreground: Array | None = None) -> Array:
    """Scale from the 0.5th percentile of the volume to the 99.5th of the head into 0 to 255.

    `foreground` is the head (bool). By default it is the voxels above half of Otsu's threshold, which include the dark
    parts of the head, but not air and its noise.
    """
    if foreground is None:
        foreground = volume > air_threshold(volume)
    values = volume[foreground]
    if values.size < 8:
        values = volume.ravel()
    low = np.percentile(_thin(volume.ravel()), 0.5)  # the level of air, whatever the scanner's offset
    high = np.percentile(_thin(values), 99.5)
    scaled = (volume - np.float32(low)) * np.float32(255.0 / max(float(high - low), 1e-12))
    return np.clip(np.rint(scaled), 0, 255).astype(np.uint8)


def _thin(values: Array, most: int = 1_000_000) -> Array:
    """Return every n-th value, about `most` of them: enough for a percentile."""
    return values[:: max(1, values.size // most)]


def air_threshold(volume: Array) -> float:
    """Return the threshold between air and head: half of Otsu's."""
    low = float(volume.min())
    return low + (otsu(volume) - low) / 2


def otsu(volume: Array, bins: int = 256) -> float:
    """Return Otsu's threshold (1979), which maximises the variance between the two classes.

    The histogram ends at the 99.9th percentile, so that a few bright vessels do not decide.
    """
    values = _thin(volume.ravel())
    low, high = float(values.min()), float(np.percentile(values, 99.9))
    if high <= low:
        return low
    counts, edges = np.histogram(values, bins=bins, range=(low, high))
    centres = (edges[1:] + edges[:-1]) / 2
    weight = np.cumsum(counts)[:-1].astype(float)
    other = values.size - weight
    total = np.cumsum(counts * centres)
    with np.errstate(invalid="ignore", divide="ignore"):
        between = weight * other * (total[:-1] / weight - (total[-1] - total[:-1]) / other) ** 2
    return float(centres[int(np.nanargmax(between))])


def padded_size(size: int, levels: int) -> int:
    """Return the smallest multiple of 2^(levels-1) that is at least `size`."""
    return padded(size, 2 ** (levels - 1))


def padded(size: int, multiple: int) -> int:
    """Return the smallest multiple of `multiple` that is at least `size`."""
    return -(-size // multiple) * multiple


def check_size(size: int, views: Sequence[str], levels: int) -> str | None:
    """Return the fault in the settings, or None."""
    if padded_size(size, levels) != size:
        return f"data.size {size} is not a multiple of {2 ** (levels - 1)}; use {padded_size(size, levels)}"
    if not views:
        return "data.views is empty; name at least one of axial, coronal, sagittal"
    if len(set(views)) != len(views):
        return f"data.views names a view twice: {' '.join(views)}"
    return None
