"""Connected regions of voxels at which a label looks wrong."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from runner_core.contract import Array

RIM = 0.1
"""Weight of a voxel that is not inside its region: borders between classes are one or two voxels uncertain."""


@dataclass(frozen=True)
class Region:
    """Voxels that touch through faces, all with the same label and the same answer of the networks.

    `start` and `stop` are its box. `score` is the sum of the margins, in which a voxel at the region's surface counts
    `RIM`. `labelled` and `said` are what the label says and what the networks say.
    """

    start: tuple[int, ...]
    stop: tuple[int, ...]
    size: int
    score: float
    labelled: str
    said: str


def weighted(margins: Array) -> Array:
    """Return the margins, times `RIM` for each voxel that has a neighbour without a margin."""
    inside = margins > 0
    core = inside.copy()
    for axis in range(inside.ndim):
        here, there = np.moveaxis(core, axis, 0), np.moveaxis(inside, axis, 0)
        here[1:] &= there[:-1]
        here[:-1] &= there[1:]
    return np.where(core, margins, np.float32(RIM) * margins)


def components(inside: Array, kind: Array) -> tuple[Array, Array]:
    """Return the flat places of the True voxels of `inside`, and the number of the component of each (0, 1, …).

    Neighbours through a face belong together if they have the same `kind`. Every voxel points to one of a lower number
    in its component; roots are joined, and paths shortened, until nothing changes.
    """
    places = np.flatnonzero(inside)
    number = np.zeros(inside.shape, np.int64)
    number.ravel()[places] = np.arange(len(places))
    pairs = []
    for axis in range(inside.ndim):
        voxels, kinds, numbers = (np.moveaxis(array, axis, 0) for array in (inside, kind, number))
        touching = voxels[1:] & voxels[:-1] & (kinds[1:] == kinds[:-1])
        pairs.append((numbers[1:][touching], numbers[:-1][touching]))
    one, other = (np.concatenate(side) for side in zip(*pairs, strict=True))
    parent = np.arange(len(places))
    while True:
        roots, others = parent[one], parent[other]
        if np.array_equal(roots, others):
            return places, np.unique(parent, return_inverse=True)[1]
        np.minimum.at(parent, np.maximum(roots, others), np.minimum(roots, others))
        while not np.array_equal(parent, shorter := parent[parent]):
            parent = shorter


def regions(margins: Array, kind: Array, names: dict[int, tuple[str, str]], most: int = 5) -> list[Region]:
    """Return the `most` regions of the highest score, the highest first.

    Args:
        margins: How sure the networks are that the label is wrong, 0 where they are not (float32, the grid).
        kind: A number for each voxel: what the label and the networks say.
        names: kind → the names of both.
        most: Number of regions.
    """
    places, numbers = components(margins > 0, kind)
    if not len(places):
        return []
    scores = np.bincount(numbers, weighted(margins).ravel()[places])
    found = []
    for best in np.argsort(-scores, kind="stable")[:most]:
        own = places[numbers == best]
        voxels = np.stack(np.unravel_index(own, margins.shape))
        start, stop = tuple(voxels.min(1).tolist()), tuple((voxels.max(1) + 1).tolist())
        found.append(Region(start, stop, len(own), float(scores[best]), *names[int(kind.ravel()[own[0]])]))
    return found
