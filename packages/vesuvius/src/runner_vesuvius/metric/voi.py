"""Variation of information between the components of two masks: how much is split, how much is merged.

Meilă 2007, "Comparing clusterings - an information based distance".
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from runner_vesuvius._compiled import compiled
from runner_vesuvius.components import label26

Array = np.ndarray[Any, Any]


class Information(NamedTuple):
    """Bits."""

    split: float
    """H(predicted | truth): true components in pieces."""
    merge: float
    """H(truth | predicted): predicted components that are several true ones."""


def variation_of_information(predicted: Array, truth: Array) -> Information:
    """Of the 26-connected components of two masks (z, y, x), over the voxels that are in one of them.

    Not to be in a mask counts as one more component of it. Both empty: 0. Takes about 9 bytes a voxel beyond the masks.
    """
    (ours, _), (theirs, number) = label26(predicted), label26(truth)
    lengths = np.empty(_runs(ours.reshape(-1), theirs.reshape(-1), number, _NONE, _NONE), np.int64)
    pairs = np.empty_like(lengths)
    _runs(ours.reshape(-1), theirs.reshape(-1), number, pairs, lengths)
    both, place = np.unique(pairs, return_inverse=True)
    joint = np.bincount(place, lengths, len(both))
    if not len(both):
        return Information(0.0, 0.0)
    joint = joint / joint.sum()
    entropy = _entropy(joint)
    of_predicted = _entropy(np.bincount(both // (number + 1), joint))
    of_truth = _entropy(np.bincount(both % (number + 1), joint))
    return Information(split=max(0.0, entropy - of_truth), merge=max(0.0, entropy - of_predicted))


_NONE = np.empty(0, np.int64)


def _entropy(shares: Array) -> float:
    shares = shares[shares > 0]
    return float(-(shares * np.log2(shares)).sum())


@compiled
def _runs(ours, theirs, number, pairs, lengths):  # type: ignore[no-untyped-def]
    """Runs of voxels with the same two labels, not both 0: how many there are and, where there is room, which."""
    count = 0
    last = np.int64(0)
    for i in range(ours.size):
        pair = np.int64(ours[i]) * (number + 1) + theirs[i]
        if pair and pair != last:
            if pairs.size:
                pairs[count] = pair
                lengths[count] = 0
            count += 1
        if pair and pairs.size:
            lengths[count - 1] += 1
        last = pair
    return count
