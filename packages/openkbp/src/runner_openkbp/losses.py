"""Loss terms of doses in Gy (B, S, S, S, 1), float32."""

from __future__ import annotations

from typing import Any

import numpy as np
from keras import ops

STEP = 2.0
"""Gy between the doses at which DVHs are compared."""
DOSES = np.arange(STEP / 2, 80, STEP, dtype=np.float32)
"""The doses (Gy) at which DVHs are compared."""
SOFTNESS = 1.0
"""Width (Gy) of the sigmoid that replaces a voxel's step from below to above a dose."""


def mae(dose: Any, reference: Any, where: Any | None = None) -> Any:
    """Return the mean absolute error (Gy) over all voxels.

    With a mask `where` it is the mean over each patient's voxels in the mask, then over patients.
    """
    error = ops.abs(dose - reference)
    if where is None:
        return ops.mean(error)
    axes = (1, 2, 3, 4)
    return ops.mean(ops.sum(error * where, axes) / ops.maximum(ops.sum(where, axes), 1.0))


def regions_mae(dose: Any, reference: Any, rois: Any) -> Any:
    """Return the mean absolute error (Gy) inside each region, mean over the regions that have voxels.

    `rois` are masks (B, S, S, S, R).
    """
    count, channels = dose.shape[0], rois.shape[-1]
    masks = ops.reshape(rois, (count, -1, channels))
    error = ops.reshape(ops.abs(dose - reference), (count, 1, -1))
    voxels = ops.sum(masks, 1)
    means = ops.matmul(error, masks)[:, 0] / ops.maximum(voxels, 1.0)
    return ops.sum(means) / ops.maximum(ops.sum(ops.cast(voxels > 0, means.dtype)), 1.0)


def dvh_distance(dose: Any, reference: Any, rois: Any) -> Any:
    """Return the area between the dose-volume histograms of prediction and reference (Gy), mean over ROIs.

    A sigmoid decides whether a voxel counts as above a dose, which makes the histogram differentiable (Nguyen et al.
    2020, 10.1002/mp.13955). The area between two such curves is the mean distance of their quantiles, which the DVH
    score samples. Unlike the squared difference it is in Gy, as the other losses are. `rois` are masks (B, S, S, S, R);
    empty ones do not count. One volume for each of the 40 doses is kept until the gradient is computed.
    """
    count, channels = dose.shape[0], rois.shape[-1]
    masks = ops.reshape(rois, (count, -1, channels))
    voxels = ops.sum(masks, 1)
    difference = _above(dose, masks) - _above(reference, masks)
    area = ops.sum(ops.abs(difference), 1) * STEP / ops.maximum(voxels, 1.0)
    present = ops.cast(voxels > 0, area.dtype)
    return ops.sum(area) / ops.maximum(ops.sum(present), 1.0)


def _above(dose: Any, masks: Any) -> Any:
    """Count the voxels (soft) of each ROI with at least each dose: (B, doses, ROIs)."""
    flat = ops.reshape(dose, (dose.shape[0], -1, 1))
    return ops.einsum("bvt,bvr->btr", ops.sigmoid((flat - DOSES) / SOFTNESS), masks)
