"""Losses on doses in Gy (B, S, S, S, 1), float32."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from keras import ops
from runner_core.protocols import Tensors

from runner_openkbp.config import LossConfig

COARSE = 0.5
"""Weight of a cascade's first network (Liu et al. 2021, 10.1002/mp.15034)."""
STEP = 2.0
"""Gy between the doses at which DVHs are compared."""
DOSES = np.arange(STEP / 2, 80, STEP, dtype=np.float32)
"""The doses (Gy) at which DVHs are compared."""
SOFTNESS = 1.0
"""Gy: scale of the sigmoid that stands for a voxel's step from below to above a dose."""


def dose_losses(doses: list[Any], batch: Tensors, config: LossConfig) -> tuple[Any, Mapping[str, Any]]:
    """Weighted loss and its terms (Gy), unweighted: mae, of a cascade's first network mae_coarse, dvh.

    `doses`: one prediction, or a cascade's two; `batch`: image, mask and dose. A loss of weight 0 is not computed.
    """
    where = batch["mask"] if config.masked else None
    loss, terms = 0.0, {}
    if config.mae:
        terms["mae"] = mae(doses[-1], batch["dose"], where)
        loss += config.mae * terms["mae"]
        if len(doses) > 1:
            terms["mae_coarse"] = mae(doses[0], batch["dose"], where)
            loss += config.mae * COARSE * terms["mae_coarse"]
    if config.dvh:
        terms["dvh"] = dvh_distance(doses[-1], batch["dose"], batch["image"][..., 1:])
        loss += config.dvh * terms["dvh"]
    return loss, terms


def mae(dose: Any, reference: Any, where: Any | None = None) -> Any:
    """Mean absolute error (Gy): over all voxels, or, given a mask `where`, over each patient's voxels in it and then
    over patients."""
    error = ops.abs(dose - reference)
    if where is None:
        return ops.mean(error)
    axes = (1, 2, 3, 4)
    return ops.mean(ops.sum(error * where, axes) / ops.maximum(ops.sum(where, axes), 1.0))


def dvh_distance(dose: Any, reference: Any, rois: Any) -> Any:
    """Area between the dose-volume histograms of prediction and reference (Gy), mean over the patients' ROIs.

    A voxel counts as above a dose by a sigmoid, which makes the histogram differentiable (Nguyen et al. 2020,
    10.1002/mp.13955). The area between two such curves is the mean distance of their quantiles, which the DVH
    score samples; unlike the squared difference it is in Gy, as the other losses are. `rois`: masks (B, S, S, S, R);
    those without a voxel count nothing. Keeps a volume for each of the 40 doses until the gradient is there.
    """
    count, channels = dose.shape[0], rois.shape[-1]
    masks = ops.reshape(rois, (count, -1, channels))
    voxels = ops.sum(masks, 1)
    difference = _above(dose, masks) - _above(reference, masks)
    area = ops.sum(ops.abs(difference), 1) * STEP / ops.maximum(voxels, 1.0)
    present = ops.cast(voxels > 0, area.dtype)
    return ops.sum(area) / ops.maximum(ops.sum(present), 1.0)


def _above(dose: Any, masks: Any) -> Any:
    """Voxels (soft) of each ROI with at least each dose: (B, doses, ROIs)."""
    flat = ops.reshape(dose, (dose.shape[0], -1, 1))
    return ops.einsum("bvt,bvr->btr", ops.sigmoid((flat - DOSES) / SOFTNESS), masks)
