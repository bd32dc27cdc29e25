"""The score of the surface detection challenge: topology, surface and components of a predicted volume."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from runner_core import BadInput

from runner_vesuvius.labels import IGNORE
from runner_vesuvius.metric.betti import betti_counts
from runner_vesuvius.metric.surface import surface_dice
from runner_vesuvius.metric.voi import variation_of_information

Array = np.ndarray[Any, Any]

TOPOLOGY, SURFACE, COMPONENTS = 0.30, 0.35, 0.35
"""Weights of the three parts."""
DIMENSIONS = (0.34, 0.33, 0.33)
"""Weights of components, loops and cavities within topology."""
ALPHA = 0.3
"""Rate at which the score of components falls with the variation of information."""


class Score(NamedTuple):
    score: float
    """0.30 topology + 0.35 surface_dice + 0.35 components."""
    topology: float
    surface_dice: float
    """Surface Dice at a tolerance of 2 voxels."""
    components: float
    """1 / (1 + 0.3 (split + merge))."""
    topology_f1: tuple[float, float, float]
    """F1 of components, loops and cavities; NaN if neither volume has any."""
    counts: Array
    """(3, 3) int64, by components, loops, cavities: matched, predicted and true, summed over the tiles."""
    split: float
    """Bits by which true components are split into pieces."""
    merge: float
    """Bits by which predicted components merge several true ones."""


def score(predicted: Array, truth: Array, threads: int = 1) -> Score:
    """Return the official score of a whole volume; 1 is perfect.

    `predicted` and `truth` are (D, H, W), bool or integer, surface if not 0; voxels with `truth` 2 do not count.
    Topology is compared in 2 × 2 × 2 tiles (the first of an axis has the larger part), `threads` of them at a time.

    A volume of 320³ with a rough prediction (31,000 loops) takes 14 s of one core and 400 MB beyond the two volumes,
    each further thread about 65 MB (measured; Betti-Matching-3D alone: 25 s and 5.1 GB for one of its eight tiles).
    White noise is slower: 12 s and 0.5 GB for a tile of 96³.

    Raises BadInput for other shapes and types.
    """
    _check(predicted, truth)
    known = truth != IGNORE
    ours, theirs = (predicted != 0) & known, (truth != 0) & known
    halves = [(slice(0, -(-n // 2)), slice(-(-n // 2), n)) for n in truth.shape]
    tiles = [tile for tile in itertools.product(*halves) if truth[tile].size]
    with ThreadPoolExecutor(max(1, threads)) as pool:
        counts = sum(pool.map(lambda tile: betti_counts(ours[tile], theirs[tile]), tiles), np.zeros((3, 3), np.int64))
    topology, f1 = topology_score(counts)
    near = surface_dice(ours, theirs)
    information = variation_of_information(ours, theirs)
    components = 1 / (1 + ALPHA * (information.split + information.merge))
    total = TOPOLOGY * topology + SURFACE * near + COMPONENTS * components
    return Score(total, topology, near, components, f1, counts, information.split, information.merge)


def topology_score(counts: Array) -> tuple[float, tuple[float, float, float]]:
    """Return the counts (3, 3) of `betti_counts` as one number, and F1 by dimension (NaN: neither has any).

    F1 is 2 matched / (predicted + true), and 0.5 / (predicted + 0.5) if the truth has none. Weights are shared among
    the dimensions that have an F1; the score is 1 if none has.
    """
    f1 = []
    for matched, predicted, true in counts.tolist():
        if true:
            f1.append(2 * matched / (predicted + true))
        else:
            f1.append(0.5 / (predicted + 0.5) if predicted else float("nan"))
    weights = np.where(np.isnan(f1), 0, DIMENSIONS)
    topology = float(np.nansum(weights * f1) / weights.sum()) if weights.any() else 1.0
    return topology, (f1[0], f1[1], f1[2])


def _check(predicted: Array, truth: Array) -> None:
    for name, volume in (("prediction", predicted), ("truth", truth)):
        if volume.ndim != 3 or volume.dtype.kind not in "bui":
            raise BadInput(
                f"the {name} has the shape {volume.shape} and the type {volume.dtype}: a score compares masks "
                f"(depth, height, width) of integers; probabilities must be thresholded first"
            )
    if predicted.shape != truth.shape:
        raise BadInput(
            f"the prediction has the shape {predicted.shape}, the truth {truth.shape}: they must be the same"
        )
