"""Connected components of volumes (z, y, x): labels, sizes, and operations by size.

Foreground is 26-connected (voxels touch at a face, an edge or a corner), background 6-connected, as digital topology
requires. The labels are their own union-find forest: a voxel holds the index of an earlier one of its component, and a
last scan turns indices into numbers (Rosenfeld & Pfaltz 1966). So only the labels are kept.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from runner_core import BadInput

from runner_vesuvius._compiled import compiled

Mask = np.ndarray[Any, np.dtype[np.bool_]]
Labels = np.ndarray[Any, np.dtype[np.int32]]


def label26(mask: np.ndarray[Any, Any]) -> tuple[Labels, int]:
    """Label the 26-connected components of non-zero voxels and return the labels and their number.

    Labels are int32: 0 outside, then 1, 2, … in the order of their first voxels. Takes 5 bytes per voxel, including the
    mask's.
    """
    labels = _forest(_boolean(mask), True)
    return labels, int(_number(labels.reshape(-1)))


def label6(mask: np.ndarray[Any, Any]) -> tuple[Labels, int]:
    """Label components as `label26` does, but only voxels that share a face are connected."""
    labels = _forest(_boolean(mask), False)
    return labels, int(_number(labels.reshape(-1)))


def sizes(labels: Labels, count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the voxels of each label, (count + 1,) int64; the first entry counts voxels without a label."""
    found = np.zeros(count + 1, np.int64)
    _count(np.ascontiguousarray(labels, np.int32).reshape(-1), found)
    return found


def remove_small(mask: np.ndarray[Any, Any], min_size: int) -> Mask:
    """Return the mask (bool) without its 26-connected components of fewer than `min_size` voxels."""
    if min_size <= 1:
        return _boolean(mask).copy()
    labels, count = label26(mask)
    return _chosen(labels, sizes(labels, count) >= min_size)


def fill_cavities(mask: np.ndarray[Any, Any], max_size: int) -> Mask:
    """Return the mask (bool) with its cavities of at most `max_size` voxels filled.

    A cavity is a 6-connected component of the background that does not touch the border of the volume. Takes 5 bytes
    per voxel beyond the mask.
    """
    mask = _boolean(mask)
    if max_size <= 0 or min(mask.shape) < 3:
        return mask.copy()
    labels, count = label6(~mask)
    small = sizes(labels, count) <= max_size
    for axis in range(3):
        for side in (0, -1):
            small[np.take(labels, side, axis)] = False
    filled = _chosen(labels, small)
    filled |= mask
    return filled


def hysteresis(probability: np.ndarray[Any, Any], low: int, high: int) -> Mask:
    """Return voxels of at least `low` in 26-connected components that have a voxel of at least `high`.

    `probability` and both thresholds are in the same units (uint8: 255 = certain). If `high` ≤ `low`, all voxels of at
    least `low` are returned.
    """
    mask = probability >= low
    if high <= low:
        return mask
    labels, count = label26(mask)
    seeded = np.zeros(count + 1, bool)
    for plane, values in zip(labels, probability, strict=True):  # plane by plane, to avoid a copy of the volume
        seeded[plane[values >= high]] = True
    return _chosen(labels, seeded)


def _boolean(mask: np.ndarray[Any, Any]) -> Mask:
    if mask.ndim != 3:
        raise BadInput(f"components are those of a volume (z, y, x), not of an array of shape {mask.shape}")
    if mask.size >= 2**31:
        raise BadInput(f"a volume of {mask.shape} has too many voxels for components: at most 2³¹ (1290³), cut it")
    return np.ascontiguousarray(mask if mask.dtype == bool else mask != 0)


def _forest(mask: Mask, full: bool) -> Labels:
    labels = np.empty(mask.shape, np.int32)
    _join(mask.reshape(-1), labels.reshape(-1), *mask.shape, full)
    return labels


def _chosen(labels: Labels, keep: Mask) -> Mask:
    """Return the voxels of the labels to keep; unlabelled voxels are not kept, whatever `keep` has for 0."""
    keep[0] = False
    chosen = np.empty(labels.shape, bool)
    _choose(labels.reshape(-1), keep, chosen.reshape(-1))
    return chosen


@compiled
def root(forest, i):  # type: ignore[no-untyped-def]
    """Return the root of voxel i; `forest` (int32) holds each voxel's parent and is shortened on the way."""
    while forest[i] != i:
        forest[i] = forest[forest[i]]
        i = forest[i]
    return np.int64(i)


@compiled
def _unite(forest, i, j):  # type: ignore[no-untyped-def]
    """Make the earlier root the root of both, so that each component's root is its first voxel."""
    a, b = root(forest, i), root(forest, j)
    if a < b:
        forest[b] = a
    elif b < a:
        forest[a] = b


@compiled
def _join(mask, forest, depth, height, width, full):  # type: ignore[no-untyped-def]
    """Return the forest: -1 in the background, else the index of a voxel of the same component.

    The first voxel of a component has its own index. A voxel joins its left neighbour and the rows before its own: two
    with 6-connectivity, four with 26 (`full`). Only the end of each row that newly comes into reach is looked at; the
    left neighbour has seen the rest.
    """
    for z in range(depth):
        for y in range(height):
            here = (z * height + y) * width
            for x in range(width):
                i = here + x
                if not mask[i]:
                    forest[i] = -1
                    continue
                left = x > 0 and mask[i - 1]
                forest[i] = forest[i - 1] if left else i
                for row in range(4 if full else 2):  # (z, y-1), (z-1, y), (z-1, y-1), (z-1, y+1)
                    dz = -1 if row else 0
                    dy = row // 3 if row % 2 else -1
                    if z + dz < 0 or y + dy < 0 or y + dy >= height:
                        continue
                    j = i + (dz * height + dy) * width
                    if mask[j]:
                        if not left or (not full and not mask[j - 1]):
                            _unite(forest, i, j)
                    elif full:
                        if not left and x > 0 and mask[j - 1]:
                            _unite(forest, i, j - 1)
                        if x + 1 < width and mask[j + 1]:
                            _unite(forest, i, j + 1)


@compiled
def _number(forest):  # type: ignore[no-untyped-def]
    """Turn the forest into labels, in place; a voxel's ancestor comes before it and has its label already."""
    count = 0
    for i in range(forest.size):
        parent = forest[i]
        if parent == i:
            count += 1
            forest[i] = count
        elif parent < 0:
            forest[i] = 0
        else:
            forest[i] = forest[parent]
    return count


@compiled
def _count(labels, found):  # type: ignore[no-untyped-def]
    for i in range(labels.size):
        found[labels[i]] += 1


@compiled
def _choose(labels, keep, chosen):  # type: ignore[no-untyped-def]
    for i in range(labels.size):
        chosen[i] = keep[labels[i]]
