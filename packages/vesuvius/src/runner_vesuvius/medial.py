"""Medial surfaces of thin sheets: homotopic thinning in the order of distance."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner_vesuvius._compiled import compiled
from runner_vesuvius.edt import squared_distance

# State of a voxel while it is thinned
OBJECT, UNKNOWN, KEPT, QUEUED = 1, 2, 4, 8
NEITHER, SIMPLE, ISTHMUS = 0, 1, 2
"""Effect of removing a voxel on the topology: SIMPLE none; ISTHMUS separates the background, or the object."""
ROOTS = np.sqrt(np.arange(256, dtype=np.float32))
SLOPE = np.float32(0.6)
"""If the distance from the background rises this steeply (voxels per voxel), the middle of the sheet is further in. In
a flat sheet it rises by 0.88 or more towards some neighbour, along the middle by the tangent of half the angle between
the sheet's sides. Less than 0.5 shortens sheets at their rims; more than 0.75 leaves spurs in sheets of five voxels."""

# The 3 × 3 × 3 neighbourhood as 27 bits, bit 9 (dz + 1) + 3 (dy + 1) + (dx + 1)
CENTRE = 1 << 13

_MOST = 2**31
"""Most voxels of a volume: including the rim around it, positions stay below 2³²."""


def _bits(wanted: Any) -> int:
    places = [(z, y, x) for z in (-1, 0, 1) for y in (-1, 0, 1) for x in (-1, 0, 1)]
    return sum(1 << bit for bit, place in enumerate(places) if wanted(*place))


FACES = _bits(lambda z, y, x: abs(z) + abs(y) + abs(x) == 1)
EIGHTEEN = _bits(lambda z, y, x: 1 <= abs(z) + abs(y) + abs(x) <= 2)
NOT_LEFT, NOT_RIGHT = _bits(lambda z, y, x: x > -1), _bits(lambda z, y, x: x < 1)
NOT_ABOVE, NOT_BELOW = _bits(lambda z, y, x: y > -1), _bits(lambda z, y, x: y < 1)


def medial_surface(surface: NDArray[Any], unknown: NDArray[Any] | None = None) -> NDArray[np.bool_]:
    """Return the medial surface, one voxel thick, of the sheets in `surface` (depth, height, width), as bool.

    Voxels are removed in the order of their distance from the background (Pudney, "Distance-ordered homotopic
    thinning", CVIU 72, 1998), so that the remaining ones are in the middle. Only simple points are removed (26
    neighbours for the object, 6 for the background; Bertrand & Malandain, "A new characterization of three-dimensional
    simple points", Pattern Recognition Letters 15, 1994): components, tunnels and cavities stay as they are. Once a
    point is all that lies between two parts of the background (2D isthmus) or of the object (1D isthmus), it is kept
    (Bertrand & Couprie, "Powerful parallel and symmetric 3D thinning schemes based on critical kernels", JMIV 48,
    2014): sheets end as surfaces, threads as curves, and neither shrinks from its rim by more than half its thickness
    and a voxel. Pudney keeps centres of maximal balls, which are many if a label's sides are rough; here an isthmus
    must only lie on a ridge of the distance (SLOPE). Within one distance the six directions take turns (Palágyi & Kuba,
    "A 3D 6-subiteration thinning algorithm", Pattern Recognition Letters 19, 1998); otherwise a sheet of two voxels
    would be removed from its rim.

    Voxels outside the volume, or true in `unknown` (not annotated), may belong to the sheet: nothing is removed from
    that side, and a sheet that continues there ends at the border. A rim is where background is seen.

    The result is deterministic. If a sheet is an even number of voxels thick, the direction of the earlier turn loses
    its layer: a turned or mirrored volume has the medial surface on the other of the two.
    """
    if surface.size > _MOST:
        raise ValueError(f"a volume of {surface.size:,} voxels; at most {_MOST:,} can be thinned at once: cut it")
    state = np.full([n + 2 for n in surface.shape], UNKNOWN, np.uint8)
    inner = state[1:-1, 1:-1, 1:-1]
    inner[:] = np.asarray(surface, bool)
    known = inner == 0
    if unknown is not None:
        known &= ~np.asarray(unknown, bool)
        inner[(inner == 0) & ~known] = UNKNOWN
    distance = np.zeros_like(state)
    np.multiply(squared_distance(known), inner & OBJECT, out=distance[1:-1, 1:-1, 1:-1])
    flat, distances = state.reshape(-1), distance.reshape(-1)
    _thin(flat, distances, _by_distance(flat, distances), state.shape[1] * state.shape[2], state.shape[2])
    return (inner & OBJECT).astype(bool)


@compiled
def _by_distance(state, distance):  # type: ignore[no-untyped-def]
    """Return the object's voxels, nearest to the background first, in the order of memory if equally near."""
    counts = np.zeros(257, np.int64)
    for at in range(state.size):
        if state[at] & OBJECT:
            counts[np.int64(distance[at]) + 1] += 1
    begins = np.cumsum(counts)
    order = np.empty(begins[256], np.uint32)
    for at in range(state.size):
        if state[at] & OBJECT:
            order[begins[distance[at]]] = at
            begins[distance[at]] += 1
    return order


@compiled
def _thin(state, distance, order, plane, row):  # type: ignore[no-untyped-def]
    """Thin `state` in place; `plane` and `row` are the steps in memory along depth and height."""
    faces = np.array([-plane, plane, -row, row, -1, 1])
    now, later, candidates = np.empty_like(order), np.empty_like(order), np.empty_like(order)
    begin = 0
    while begin < order.size:
        level, count = distance[order[begin]], 0
        while begin < order.size and distance[order[begin]] == level:
            at = np.int64(order[begin])
            _keep_isthmus(state, distance, at, plane, row)
            now[count] = at
            count += 1
            begin += 1
        while count:
            queued = np.int64(0)  # a plain 0 would give `_remove` a second signature
            for face in faces:
                found = 0
                for at in now[:count]:
                    if state[at] & (OBJECT | KEPT) == OBJECT and state[at + face] & (OBJECT | UNKNOWN) == 0:
                        candidates[found] = at
                        found += 1
                for i in range(found):
                    at = np.int64(candidates[i])
                    if _keep_isthmus(state, distance, at, plane, row) == SIMPLE:
                        queued = _remove(state, distance, at, level, plane, row, later, queued)
            now, later, count = later, now, int(queued)
            for at in now[:count]:
                state[at] &= ~QUEUED


@compiled
def _remove(state, distance, at, level, plane, row, later, queued):  # type: ignore[no-untyped-def]
    """Remove a voxel and return how many voxels wait to be looked at again.

    These are its neighbours that are no further in than `level`; they follow the `queued` ones in `later`.
    """
    state[at] = 0
    for z in (-plane, 0, plane):
        for y in (-row, 0, row):
            for x in (-1, 0, 1):
                near = at + z + y + x
                if state[near] & (OBJECT | KEPT) != OBJECT:
                    continue
                if (z != 0) + (y != 0) + (x != 0) == 1:
                    _keep_isthmus(state, distance, near, plane, row)
                if state[near] & (KEPT | QUEUED) == 0 and distance[near] <= level:
                    state[near] |= QUEUED
                    later[queued] = near
                    queued += 1
    return queued


@compiled
def _keep_isthmus(state, distance, at, plane, row):  # type: ignore[no-untyped-def]
    """Mark the voxel if it is an isthmus on a ridge, and return its kind."""
    if state[at] & KEPT:
        return ISTHMUS
    kind = _kind(state, at, plane, row)
    if kind == ISTHMUS and _on_ridge(distance, at, plane, row):
        state[at] |= KEPT
    return kind


@compiled
def _on_ridge(distance, at, plane, row):  # type: ignore[no-untyped-def]
    """Return whether no neighbour is further in by more than along the middle of a sheet."""
    own = ROOTS[distance[at]]
    for z in (-plane, 0, plane):
        for y in (-row, 0, row):
            for x in (-1, 0, 1):
                step = ROOTS[(z != 0) + (y != 0) + (x != 0)]
                if step > 0 and ROOTS[distance[at + z + y + x]] - own >= SLOPE * step:
                    return False
    return True


@compiled
def _kind(state, at, plane, row):  # type: ignore[no-untyped-def]
    """Return whether the voxel is simple, an isthmus, or neither.

    Unknown voxels separate and connect nothing: the answer must hold both with and without them in the background.
    """
    objects, unknown, bit = np.int64(0), np.int64(0), 0
    for z in (-plane, 0, plane):
        for y in (-row, 0, row):
            for x in (-1, 0, 1):
                near = np.int64(state[at + z + y + x])
                objects |= (near & OBJECT) << bit
                unknown |= ((near & UNKNOWN) >> 1) << bit
                bit += 1
    objects &= ~CENTRE
    background = ~objects & EIGHTEEN
    of_object, of_background = _parts_of_object(objects), _parts_of_background(background)
    of_known = _parts_of_background(background & ~unknown) if unknown else of_background
    if max(of_object, of_background, of_known) > 1:
        return ISTHMUS
    return SIMPLE if of_object == of_background == of_known == 1 else NEITHER


@compiled
def _parts_of_object(voxels):  # type: ignore[no-untyped-def]
    """Count the 26-connected components: 0, 1, or 2 for more."""
    if voxels == 0:
        return 0
    part, before = voxels & -voxels, 0
    while part != before:
        before = part
        part |= (part & NOT_RIGHT) << 1 | (part & NOT_LEFT) >> 1
        part |= (part & NOT_BELOW) << 3 | (part & NOT_ABOVE) >> 3
        part |= part << 9 | part >> 9
        part &= voxels
    return 1 if part == voxels else 2


@compiled
def _parts_of_background(voxels):  # type: ignore[no-untyped-def]
    """Count the 6-connected components that are neighbours of the centre: 0, 1, or 2 for more."""
    faces = voxels & FACES
    if faces == 0:
        return 0
    part, before = faces & -faces, 0
    while part != before:
        before = part
        along = (part & NOT_RIGHT) << 1 | (part & NOT_LEFT) >> 1 | (part & NOT_BELOW) << 3 | (part & NOT_ABOVE) >> 3
        part |= (along | part << 9 | part >> 9) & voxels
    return 1 if part & faces == faces else 2
