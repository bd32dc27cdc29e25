"""Counts of matching topological features of two binary volumes: components, loops and cavities.

Betti matching (Stucki et al. 2023, "Topologically faithful image segmentation via induced matching of persistence
barcodes") of the sublevel filtration of 1 - mask, in the V-construction: voxels are vertices, so that the foreground is
6-connected and enters first, everything else after it. Bars are the foreground's reduced homology classes. A bar of P
and one of G match if they die, as classes of the union C of both, with the same cell of C. Counts are those of the
library Betti-Matching-3D, whose order of cells decides between cells of one value: (z, y, x) of the first voxel, then
the axis. Dimension 0 is a union-find of voxels by edges in that order; dimension 2 is the same seen from the
background; for dimension 1 see `linking`.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np

from runner_vesuvius._compiled import compiled
from runner_vesuvius.components import label6, label26, root
from runner_vesuvius.metric.linking import deaths
from runner_vesuvius.metric.loops import find_loops

Mask = np.ndarray[Any, np.dtype[np.bool_]]
Array = np.ndarray[Any, Any]


class Cavities(NamedTuple):
    """26-connected parts of the background that do not touch the border.

    The fields are the volume of labels, and each cavity's label, first voxel and last voxel (indices, in the order of
    the cavities' first voxels).
    """

    labels: Array
    numbers: Array
    first: Array
    last: Array


def betti_counts(predicted: Mask, truth: Mask) -> Array:
    """Count components, loops and cavities: (3, 3) int64, matched, in `predicted` and in `truth`.

    The component that never dies is not counted. Both are bool volumes (z, y, x) of one shape.
    """
    predicted, truth = np.ascontiguousarray(predicted, bool), np.ascontiguousarray(truth, bool)
    union = predicted | truth
    volumes = (predicted, truth)
    cavities = [find_cavities(volume) for volume in volumes]
    loops = [find_loops(volume, hollow.first) for volume, hollow in zip(volumes, cavities, strict=True)]
    counts = np.zeros((3, 3), np.int64)
    counts[0, 0] = _joined(predicted.reshape(-1), truth.reshape(-1), *union.shape)
    if loops[0].number and loops[1].number:
        ours, theirs = deaths(union, loops)
        counts[1, 0] = len(np.intersect1d(ours, theirs))
    if len(cavities[0].numbers) and len(cavities[1].numbers):
        within = find_cavities(union)
        ours, theirs = (_last_within(within, hollow) for hollow in cavities)
        counts[2, 0] = len(np.intersect1d(ours, theirs))
    for k in (0, 1):
        counts[0, 1 + k] = max(0, label6(volumes[k])[1] - 1)
        counts[1, 1 + k] = loops[k].number
        counts[2, 1 + k] = len(cavities[k].numbers)
    return counts


def betti_numbers(mask: Array) -> tuple[int, int, int]:
    """Return the numbers of components (all of them), loops and cavities of a volume (z, y, x), not 0 inside.

    Loops follow from the Euler characteristic, so that none has to be found. Takes 10 bytes per voxel.
    """
    mask = np.ascontiguousarray(mask != 0)
    euler = 0
    for axes in itertools.chain.from_iterable(itertools.combinations(range(3), n) for n in range(4)):
        cells = mask
        for axis in axes:
            line = np.moveaxis(cells, axis, 0)
            cells = np.moveaxis(line[:-1] & line[1:], 0, axis)
        euler += (-1) ** len(axes) * int(np.count_nonzero(cells))
    components, cavities = label6(mask)[1], len(find_cavities(mask).numbers)
    return components, components + cavities - euler, cavities


def find_cavities(mask: Mask) -> Cavities:
    labels, count = label26(~mask)
    inner = np.ones(count + 1, bool)
    inner[0] = False
    for axis in range(3):
        for side in (0, -1):
            inner[np.take(labels, side, axis)] = False
    first, last = np.empty(count + 1, np.int64), np.empty(count + 1, np.int64)
    _ends(labels.reshape(-1), first, last)
    numbers = np.flatnonzero(inner)
    return Cavities(labels, numbers, first[numbers], last[numbers])


def _last_within(union: Cavities, part: Cavities) -> Array:
    """Return, for each cavity of the part, the last-filled cavity of the union within it."""
    within = part.labels.reshape(-1)[union.first]
    order = np.argsort(union.last)
    latest = np.full(int(part.labels.max(initial=0)) + 1, -1, np.int64)
    latest[within[order]] = union.last[order]
    chosen = latest[part.numbers]
    return chosen[chosen >= 0]


@compiled
def _ends(labels, first, last):  # type: ignore[no-untyped-def]
    count = 0
    for i in range(labels.size):
        label = labels[i]
        if label > count:
            first[label] = i
            count = label
        last[label] = i


@compiled
def _unite(parents, flags, i, j):  # type: ignore[no-untyped-def]
    """Join two components and return whether both had voxels of both volumes."""
    i, j = root(parents, i), root(parents, j)
    if i == j:
        return False
    both = flags[i] & flags[j] == 3
    if i > j:
        i, j = j, i
    parents[j] = i
    flags[i] |= flags[j]
    return both


@compiled
def _joined(predicted, truth, depth, height, width):  # type: ignore[no-untyped-def]
    """Count the edges that join two components that each have voxels of both volumes.

    The union's own edges come first.
    """
    step = (height * width, width, 1)
    parents = np.arange(predicted.size).astype(np.int32)
    flags = np.empty(predicted.size, np.uint8)
    for i in range(predicted.size):
        flags[i] = predicted[i] | truth[i] << 1
    inside = flags.copy()
    count = 0
    for background in range(2):
        for z in range(depth):
            for y in range(height):
                for x in range(width):
                    i = (z * height + y) * width + x
                    for axis in range(3):
                        if (z + 1 if axis == 0 else y + 1 if axis == 1 else x + 1) == (depth, height, width)[axis]:
                            continue
                        j = i + step[axis]
                        if (inside[i] != 0 and inside[j] != 0) != (background == 1):
                            count += _unite(parents, flags, i, j) and background == 1
    return count
