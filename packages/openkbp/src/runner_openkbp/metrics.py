"""The validation metric: the challenge's dose score on the network's grid."""

from __future__ import annotations

from typing import Any

from keras import ops
from runner_core import Tensors


def dose_error(prediction: Any, batch: Tensors) -> Any:
    """Return Σ|reference − prediction · mask| / Σ mask of each patient, mean over the batch (Gy, 0-d).

    `prediction` is Gy (B, S, S, S, 1); `batch` holds dose and mask (possible dose) of that shape.
    """
    axes = (1, 2, 3, 4)
    error = ops.sum(ops.abs(batch["dose"] - prediction * batch["mask"]), axes)
    return ops.mean(error / ops.maximum(ops.sum(batch["mask"], axes), 1.0))
