"""Place patches around stored coordinates, for a whole batch at once."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from runner_core.base.errors import BadInput
from runner_core.contract import Array, Store, StoredArray
from runner_core.data.sampling import random_below

WORDS = 2
"""Random words that a patch needs in addition to those of its position: which array, and which of its coordinates."""


class Around:
    """Moves patches to the coordinates of stored arrays.

    `shares` maps array names to shares of the patches. `grids` (records, axes) holds every record's size. `patch` is
    (axes,). Raises BadInput for invalid shares, and for arrays that hold no coordinates of such a grid.
    """

    def __init__(self, store: Store, shares: Mapping[str, float], grids: Array, patch: Array) -> None:
        self._keys, self._names = store.keys, list(shares)
        self._grids, self._patch = grids, patch
        self._ends = np.cumsum(_checked_shares(shares))
        self._arrays = [_coordinates(store, name, len(patch)) for name in shares]
        counts = np.array([[s[0] for s in array.shapes] for array in self._arrays], np.int64)
        self._counts = counts
        self._first = np.cumsum(counts, axis=1) - counts
        """First row of each record in each array: (arrays, records)."""
        last = len(counts)
        self._next = np.full((last + 1, counts.shape[1]), last)
        """First array, from each one on, in which a record has a coordinate; `last` means none, so any position."""
        for i in reversed(range(last)):
            self._next[i] = np.where(counts[i] > 0, i, self._next[i + 1])

    def move(self, starts: Array, records: Array, words: Array, random: Array) -> None:
        """Overwrite the rows of `starts` (samples, axes) that are to hold a coordinate of their record.

        `words` (samples, axes) choose the position of a coordinate in its patch. `random` (samples, 2) chooses the
        coordinate. All are uint64.
        """
        drawn = np.searchsorted(self._ends, (random[:, 0] >> np.uint64(11)) * 2.0**-53, side="right")
        chosen = self._next[drawn, records]
        inside = random_below(words, self._patch)
        for i, array in enumerate(self._arrays):
            samples = np.flatnonzero(chosen == i)
            if len(samples):
                own = records[samples]
                points = np.empty((len(samples), len(self._patch)), array.dtype)
                array.take(self._first[i, own] + random_below(random[samples, 1], self._counts[i, own]), points)
                points = points.astype(np.int64)
                self._refuse_outside(i, points, own)
                starts[samples] = np.clip(points - inside[samples], 0, self._grids[own] - self._patch)

    def _refuse_outside(self, array: int, points: Array, records: Array) -> None:
        outside = ((points < 0) | (points >= self._grids[records])).any(axis=1)
        if outside.any():
            at = int(np.argmax(outside))
            raise BadInput(
                f"'{self._names[array]}' of record {self._keys[records[at]]} has the coordinate "
                f"{tuple(points[at].tolist())}, outside its grid of {tuple(self._grids[records[at]].tolist())}: "
                "`prepare` must give coordinates of the cropped grid, in the order of its axes"
            )


def _checked_shares(shares: Mapping[str, float]) -> list[float]:
    values = list(shares.values())
    if not all(math.isfinite(v) and v >= 0 for v in values) or sum(values) > 1 + 1e-9:
        raise BadInput(
            f"shares of patches around coordinates must be 0 or more, and at most 1 in total, not {dict(shares)}"
        )
    return values


def _coordinates(store: Store, name: str, axes: int) -> StoredArray:
    """Return the stored array `name`; raise BadInput if it holds no coordinates."""
    if name not in store.arrays:
        raise BadInput(f"patches cannot be drawn around '{name}': `prepare` gives {', '.join(store.arrays)}")
    array = store.arrays[name]
    if array.dtype.kind not in "iu":
        raise BadInput(f"patches cannot be drawn around '{name}': coordinates are integers, these are {array.dtype}")
    for key, shape in zip(store.keys, array.shapes, strict=True):
        if len(shape) != 2 or shape[1] != axes:
            raise BadInput(
                f"patches cannot be drawn around '{name}': that of record {key} has shape {shape}, not (coordinates, "
                f"{axes}), for the {axes} axes of the patch"
            )
    return array
