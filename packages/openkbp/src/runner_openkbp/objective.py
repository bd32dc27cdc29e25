"""The loss of one step: its terms in Gy and their weighted sum."""

from __future__ import annotations

from typing import Any

from runner_core import Step, Tensors

from runner_openkbp import losses
from runner_openkbp.config import LossConfig
from runner_openkbp.rois import ROIS

COARSE = 0.5
"""Weight of a cascade's first network (Liu et al. 2021, 10.1002/mp.15034)."""


def objective(doses: list[Any], batch: Tensors, config: LossConfig) -> Step:
    """Return the weighted loss, its unweighted terms (Gy) and the last of `doses` as prediction.

    The terms are mae, mae_coarse (for a cascade's first network) and dvh; a term of weight 0 is not computed.

    Args:
        doses: one prediction, or a cascade's two.
        batch: image, mask and dose.
    """
    where = batch["mask"] if config.masked else None
    loss, terms = 0.0, {}
    if config.mae:
        terms["mae"] = losses.mae(doses[-1], batch["dose"], where)
        loss += config.mae * terms["mae"]
        if len(doses) > 1:
            terms["mae_coarse"] = losses.mae(doses[0], batch["dose"], where)
            loss += config.mae * COARSE * terms["mae_coarse"]
    rois = batch["image"][..., 1 : 1 + len(ROIS)]
    if config.regions:
        terms["regions"] = losses.regions_mae(doses[-1], batch["dose"], rois * batch["mask"])
        loss += config.regions * terms["regions"]
    if config.dvh:
        terms["dvh"] = losses.dvh_distance(doses[-1], batch["dose"], rois)
        loss += config.dvh * terms["dvh"]
    return Step(loss, terms, doses[-1])
