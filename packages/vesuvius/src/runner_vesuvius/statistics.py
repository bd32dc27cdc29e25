"""Statistics of the training volumes: intensities, share of surface, best threshold."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from runner_core import Array, BadInput, Statistics, Store


def fit(store: Store, training: Sequence[int]) -> Statistics:
    """Return the statistics of all labelled voxels of the training records.

    These are `mean` and `std` of the intensities, `surface_share`, and `threshold`: surface predicted from this
    intensity on has the highest Dice (`threshold_dice`).

    Only the records' stored `histogram` is read: (2, 256), voxels of background and of surface by intensity. That is
    kilobytes instead of volumes. Raises BadInput if no record has a surface voxel, or none has background.
    """
    counts = np.zeros((2, 256), np.int64)
    for record in training:
        counts += store.arrays["histogram"].read(record).astype(np.int64)
    background, surface = counts.sum(1).tolist()
    if not surface or not background:
        missing = "surface (label 1)" if not surface else "background (label 0)"
        raise BadInput(
            f"none of the {len(training)} training volumes has a voxel of {missing}: there is nothing to learn. "
            "Look at the labels with `runner vesuvius check`, and at data.split."
        )
    values, known = np.arange(256), counts.sum(0)
    mean = float((values * known).sum() / known.sum())
    std = float(np.sqrt(((values - mean) ** 2 * known).sum() / known.sum()))
    threshold, dice = best_threshold(counts)
    share = surface / (surface + background)
    return {"mean": mean, "std": max(std, 1.0), "surface_share": share, "threshold": threshold, "threshold_dice": dice}


def best_threshold(counts: Array) -> tuple[int, float]:
    """Return the intensity t for which `image >= t` has the highest Dice with the surface, and that Dice.

    `counts` (2, 256) are the voxels of background and surface by intensity.
    """
    found = counts[:, ::-1].cumsum(1)[:, ::-1]
    dice = 2 * found[1] / (found.sum(0) + counts[1].sum())
    best = int(dice.argmax())
    return best, float(dice[best])
