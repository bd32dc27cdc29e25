"""The trivial prediction: every voxel that is at least as bright as a threshold."""

from __future__ import annotations

from runner_core import Array, Box

from runner_vesuvius.config import ScrollPredictConfig
from runner_vesuvius.outputs import Detected
from runner_vesuvius.postprocess import tidied


def baseline(image: Array, box: Box, threshold: float, settings: ScrollPredictConfig) -> Detected:
    """Return the voxels of intensity `threshold` or more, post-processed as a prediction is.

    Args:
        image: the cropped volume.
        box: where the crop lies in the record's grid.
        threshold: the one that is best on the training volumes (`statistics.best_threshold`).
    """
    return Detected(tidied(box.restore(image >= threshold), settings), None)
