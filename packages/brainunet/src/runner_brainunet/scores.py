"""Scores of whole volumes in true spacing. MONAI computes the distances."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from runner_core import tensorboard_without_tensorflow

Array = np.ndarray[Any, np.dtype[Any]]


def volume_scores(prediction: Array, truth: Array, spacing: Sequence[float]) -> dict[str, float]:
    """Return the scores of two 3-D bool masks with voxels of `spacing` (mm per axis of the arrays).

    dice                2|P∩T| / (|P|+|T|)
    iou                 |P∩T| / |P∪T|
    hd95_mm             the larger of the two 95th percentiles of surface distances (infinite without prediction)
    surface_dice_1mm    share of both surfaces within 1 mm of the other (Nikolov et al. 2021)
    """
    both = int(np.count_nonzero(prediction & truth))
    total = int(np.count_nonzero(prediction)) + int(np.count_nonzero(truth))
    scores = {
        "dice": 2 * both / total if total else 1.0,
        "iou": both / (total - both) if total else 1.0,
        "hd95_mm": float("inf") if total else 0.0,
        "surface_dice_1mm": 0.0 if total else 1.0,
    }
    if prediction.any() and truth.any():
        scores["hd95_mm"], scores["surface_dice_1mm"] = surface_scores(prediction, truth, spacing)
    return scores


def surface_scores(prediction: Array, truth: Array, spacing: Sequence[float]) -> tuple[float, float]:
    """Return the 95th-percentile Hausdorff distance (mm) and the surface Dice at 1 mm of two non-empty masks."""
    tensorboard_without_tensorflow()
    import torch
    from monai.metrics import compute_hausdorff_distance, compute_surface_dice

    hits = np.argwhere(prediction | truth)
    start, stop = hits.min(0), hits.max(0) + 1
    box = tuple(slice(a, b) for a, b in zip(start, stop, strict=True))
    # an empty border: a mask that touches its array's end has its surface there all the same
    p, t = (torch.from_numpy(np.pad(mask[box], 1).astype(np.float32))[None, None] for mask in (prediction, truth))
    settings = {"include_background": True, "spacing": [float(s) for s in spacing]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # MONAI's own use of its own old argument
        distance = compute_hausdorff_distance(p, t, percentile=95, **settings)
        surface = compute_surface_dice(p, t, class_thresholds=[1.0], use_subvoxels=True, **settings)
    return float(distance), float(surface)
