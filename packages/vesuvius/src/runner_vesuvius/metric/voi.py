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
    """Split and merge in bits."""

    split: float
    """H(predicted | truth): true components in pieces."""
    merge: float
    """H(truth | predicted): predicted components that are several true ones."""


def variation_of_information(predicted: Array, truth: Array) -> Information:
    """Compare the 26-connected components of two masks (z, y, x), over the voxels that are in one of them.

    Voxels outside a mask count as one more component of it. If both are empty, the result is 0. Takes about 9 bytes per
    voxel beyond the masks.
    """
    (ours, _), (theirs, number) = label26(predicted), label26(truth)
    pairs, voxels = _joint(ours, theirs, number)
    if not len(pairs):
        return Information(0.0, 0.0)
    shares = voxels / voxels.sum()
    entropy = _entropy(shares)
    of_predicted = _entropy(np.bincount(pairs // (number + 1), shares))
    of_truth = _entropy(np.bincount(pairs % (number + 1), shares))
    return Information(split=max(0.0, entropy - of_truth), merge=max(0.0, entropy - of_predicted))


def _joint(ours: Array, theirs: Array, number: int) -> tuple[Array, Array]:
    """Return the pairs of labels that occur and how many voxels each has.

    A pair is ours × (number + 1) + theirs; (0, 0) is left out.
    """
    found, voxels = [], []
    for plane in range(len(ours)):  # one at a time: all runs of a noisy volume would take more memory than its labels
        labels = ours[plane].reshape(-1), theirs[plane].reshape(-1)
        pairs, lengths = np.empty((2, labels[0].size), np.int64)
        runs = _runs(*labels, number, pairs, lengths)
        here, place = np.unique(pairs[:runs], return_inverse=True)
        found.append(here)
        voxels.append(np.bincount(place, lengths[:runs], len(here)))
    pairs, place = np.unique(np.concatenate(found), return_inverse=True)
    return pairs, np.bincount(place, np.concatenate(voxels), len(pairs))


def _entropy(shares: Array) -> float:
    shares = shares[shares > 0]
    return float(-(shares * np.log2(shares)).sum())


@compiled
def _runs(ours, theirs, number, pairs, lengths):  # type: ignore[no-untyped-def]
    """Write runs of voxels with equal labels, not both 0, into `pairs` and `lengths`; return their number."""
    count = 0
    last = np.int64(0)
    for i in range(ours.size):
        pair = np.int64(ours[i]) * (number + 1) + theirs[i]
        if pair:
            if pair != last:
                pairs[count] = pair
                lengths[count] = 0
                count += 1
            lengths[count - 1] += 1
        last = pair
    return count
