"""Scores of a whole volume, by the names in tables."""

from __future__ import annotations

import os

import numpy as np
from runner_core import Array

from runner_vesuvius.labels import IGNORE, SURFACE

SHOWN = ("score", "topo", "surface_dice", "voi_score", "dice")


def volume_scores(mask: Array, truth: Array) -> dict[str, float]:
    """Score a predicted mask against a label (D, H, W) uint8; voxels labelled 2 do not count.

    score               the challenge's: 0.30 topo + 0.35 surface_dice + 0.35 voi_score
    topo                F1 of Betti matching, over the dimensions that are active
    surface_dice        share of both surfaces within 2 voxels of the other
    voi_score           1 / (1 + 0.3 (split + merge))
    dice                2|P∩T| / (|P|+|T|)
    topo_f1_0, 1, 2     F1 of components, loops and cavities; NaN if neither has any
    split, merge        bits by which true sheets are split, and by which pieces merge several sheets
    """
    from runner_vesuvius.metric import score

    found = score(mask, truth, threads=len(os.sched_getaffinity(0)))
    predicted, true = (mask != 0) & (truth != IGNORE), truth == SURFACE
    both, total = int(np.count_nonzero(predicted & true)), int(np.count_nonzero(predicted) + np.count_nonzero(true))
    return {
        "score": found.score,
        "topo": found.topology,
        "surface_dice": found.surface_dice,
        "voi_score": found.components,
        "dice": 2 * both / total if total else 1.0,
        **{f"topo_f1_{dimension}": f1 for dimension, f1 in enumerate(found.topology_f1)},
        "split": found.split,
        "merge": found.merge,
    }
