"""Regions, and the pixels that they cover."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from runner_core import BadInput, counted, first_few

from runner_ssmunet.drawings.colours import Colour
from runner_ssmunet.drawings.landmarks import Placement, Remark

Array = np.ndarray[Any, np.dtype[Any]]

FAR = 1e7
"""Coordinates beyond it are no pixels of any image."""


@dataclass(frozen=True)
class Shape:
    """A region of one class: polygons, each a list of rings (N, 2) of x and y: its border, then its holes."""

    name: str
    polygons: Sequence[Sequence[Array]]
    colour: Colour | None = None


@dataclass(frozen=True)
class Drawn:
    """The regions of a file, in its order, and what was left out of it."""

    shapes: Sequence[Shape]
    remarks: tuple[Remark, ...] = ()


def left_out(found: dict[str, int], path: Path) -> tuple[Remark, ...]:
    """Return the remark on objects that are no annotation, by reason."""
    reasons = first_few([f"{count} {reason}" for reason, count in found.items()])
    return (("note", f"{path.name}: objects left out: {reasons}"),) if found else ()


def ring(points: Any) -> Array | None:
    """Return a ring (N, 2) of numbers; None if `points` are none."""
    try:
        found = np.array([[float(x), float(y)] for x, y, *_ in points])
    except (TypeError, ValueError, OverflowError):
        return None
    return found if found.size and (np.abs(found) < FAR).all() else None


def painted(
    shapes: Sequence[Shape], names: Sequence[str], grid: tuple[int, int], placement: Placement | None, path: Path
) -> tuple[Array, tuple[Remark, ...]]:
    """Return labels (H, W), 1 + the place of the class in `names`, and what must be said of them.

    Where regions overlap, the one of fewer pixels counts, and of two of equal size the later one in the file. Raises
    BadInput if every region lies beside the grid.
    """
    placed = [Shape(s.name, s.polygons if placement is None else placement.moved(s.polygons)) for s in shapes]
    labels, contested = np.zeros(grid, np.int64), np.zeros(grid, bool)
    beside = small = 0
    for shape in sorted(placed, key=lambda shape: -np.count_nonzero(covered(shape, grid)[2])):
        rows, columns, mask = covered(shape, grid)
        if not mask.any():
            outside = _is_outside(shape, grid)
            beside, small = beside + outside, small + (not outside)
            continue
        label, there = 1 + names.index(shape.name), labels[rows, columns]
        contested[rows, columns] |= mask & (there > 0) & (there != label)
        there[mask] = label
    if shapes and beside == len(shapes):
        raise BadInput(_all_beside(path, placed, grid))
    return labels, tuple(_said(path, labels, contested, beside, small))


def covered(shape: Shape, grid: tuple[int, int]) -> tuple[slice, slice, Array]:
    """Return the pixels (rows, columns, bool) whose centres lie inside, in a box around the shape.

    Each ring's edges flip all pixels to their right in the rows whose centres they cross, so that a pixel is inside
    after an odd number of flips: holes and crossing outlines need no rule of their own.
    """
    points = np.concatenate([ring for polygon in shape.polygons for ring in polygon])
    low = np.clip(np.floor(points.min(0)), 0, (grid[1], grid[0])).astype(int)
    high = np.clip(np.ceil(points.max(0)), 0, (grid[1], grid[0])).astype(int)
    width, height = (high - low).tolist()
    mask = np.zeros((height, width), bool)
    for polygon in shape.polygons if width and height else ():
        flips = np.zeros((height, width + 1), np.int64)
        for edge in polygon:
            _flip(edge - low, flips)
        mask |= flips.cumsum(1)[:, :-1] % 2 == 1
    return slice(low[1], low[1] + height), slice(low[0], low[0] + width), mask


def _flip(ring: Array, flips: Array) -> None:
    """Count for each row the edges of a ring that pass left of each column's centre and no earlier one's."""
    height, width = flips.shape[0], flips.shape[1] - 1
    (xa, ya), (xb, yb) = ring.T, np.roll(ring, -1, axis=0).T
    first = np.clip(np.ceil(np.minimum(ya, yb) - 0.5), 0, height).astype(int)
    last = np.clip(np.ceil(np.maximum(ya, yb) - 0.5), 0, height).astype(int)
    count = last - first
    edge = np.repeat(np.arange(len(ring)), count)
    rows = np.arange(len(edge)) - np.repeat(np.cumsum(count) - count, count) + first[edge]
    x = xa[edge] + (rows + 0.5 - ya[edge]) * (xb - xa)[edge] / (yb - ya)[edge]
    np.add.at(flips, (rows, np.clip(np.ceil(x - 0.5), 0, width).astype(int)), 1)


def _box(shapes: Sequence[Shape]) -> tuple[Array, Array]:
    points = np.concatenate([ring for shape in shapes for polygon in shape.polygons for ring in polygon])
    return points.min(0), points.max(0)


def _is_outside(shape: Shape, grid: tuple[int, int]) -> bool:
    low, high = _box([shape])
    return bool((high <= 0).any() or (low >= (grid[1], grid[0])).any())


def _all_beside(path: Path, shapes: Sequence[Shape], grid: tuple[int, int]) -> str:
    (left, top), (right, bottom) = _box(shapes)
    return (
        f"{path}: not one of its regions lies on the core: they reach from x {left:.0f} to {right:.0f} and y {top:.0f} "
        f"to {bottom:.0f} in the core's pixels, and the core has {grid[1]} × {grid[0]} (width × height). If they were "
        f"drawn on another image, write the landmarks of both into STEM.landmarks.csv beside the core, or correct it."
    )


def _said(path: Path, labels: Array, contested: Array, beside: int, small: int) -> list[Remark]:
    remarks: list[Remark] = []
    if both := int(contested.sum()):
        share = both / int((labels > 0).sum())
        text = f"regions of several classes overlap in {counted(both, 'pixel')} ({share:.1%} of the annotated): the "
        remarks.append(("warning" if share > 0.05 else "note", f"{path.name}: {text}smaller region counts there"))
    if beside:
        remarks.append(("note", f"{path.name}: {counted(beside, 'region')} beside the core"))
    if small:
        remarks.append(("note", f"{path.name}: {counted(small, 'region')} without any pixel's centre"))
    return remarks
