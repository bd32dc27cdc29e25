"""Which output of the network a stored label means: one rule for statistics, loss, metrics, scores and files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

UNANNOTATED = "unannotated"
"""The class that label 0 becomes where no label is ignored."""
LABELS = 256
"""Stored labels are uint8."""


def output_names(classes: Sequence[str], ignore: int | None) -> tuple[str, ...]:
    """Names of the network's outputs: `classes`, and before them label 0 where no label is ignored."""
    return tuple(classes) if ignore is not None else (UNANNOTATED, *classes)


def output_labels(classes: Sequence[str], ignore: int | None) -> Array:
    """The label that each output stands for: (outputs,) uint8."""
    first = 0 if ignore is None else 1
    return np.arange(first, len(classes) + 1, dtype=np.uint8)


def target_of_label(classes: Sequence[str], ignore: int | None) -> Array:
    """Output number of each label, −1 for those that loss and metrics leave out: (256,) int64, to be indexed with
    stored labels."""
    targets = np.full(LABELS, -1, np.int64)
    labels = output_labels(classes, ignore)
    targets[labels] = np.arange(len(labels))
    return targets


def wrong_settings(classes: Sequence[str], ignore: int | None) -> str | None:
    """What is wrong with data.classes and data.ignore, if anything."""
    if len(classes) < 2 or len(set(classes)) < len(classes) or not all(classes):
        return f"data.classes is {tuple(classes)}; two different names or more are needed"
    if len(classes) >= LABELS:
        return f"data.classes has {len(classes)} names; labels are stored in 8 bits, so that {LABELS - 1} is the most"
    if ignore is not None and not (ignore == 0 or len(classes) < ignore < LABELS):
        return (
            f"data.ignore is {ignore}; labels 1 to {len(classes)} are the classes, so that 0, or {len(classes) + 1} "
            f"to {LABELS - 1}, can stand for pixels that nobody annotated"
        )
    return None
