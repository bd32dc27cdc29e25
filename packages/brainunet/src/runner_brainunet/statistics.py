"""Statistics of the training records, and the losses of a network that looks at nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from runner_core import Statistics, Store, is_streamed

from runner_brainunet.config import LossConfig


def fit(store: Store, training: Sequence[int]) -> Statistics:
    """Return brain_share, the share of brain in the training slices' voxels.

    Streamed records have no statistics: reading them all here would fetch the whole data set.
    """
    if is_streamed(store):
        return {}
    brain = voxels = 0
    for record in training:
        mask = store.arrays["mask"].read(record)
        brain, voxels = brain + int(np.count_nonzero(mask)), voxels + mask.size
    return {"brain_share": brain / voxels}


def chance_losses(share: float, weights: LossConfig) -> Mapping[str, float]:
    """Return the loss and its terms for the best single probability, given to every voxel.

    No network that ignores its input can do better. `share` is the share of voxels that are brain. Batches are taken
    to be large and alike. The result is empty if the share is 0 or 1, or if Dice is averaged over samples: every slice
    then has its own share, which is not known.
    """
    if not 0 < share < 1 or (weights.dice and weights.dice_over == "sample"):
        return {}
    p = np.linspace(0, 1, 1001)[1:-1]
    terms = {
        "bce_loss": -(share * np.log(p) + (1 - share) * np.log(1 - p)),
        "dice_loss": 1 - 2 * share * p / (share + p),
    }
    loss = weights.bce * terms["bce_loss"] + weights.dice * terms["dice_loss"]
    best = int(loss.argmin())
    return {name: float(values[best]) for name, values in {"loss": loss, **terms}.items()}
