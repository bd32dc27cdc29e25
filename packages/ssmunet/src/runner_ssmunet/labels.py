"""The outputs of the network: their names, the stored labels that they stand for, and the way back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from runner_core.project import Annotation

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


def targets(labels: Any, ignore: int | None) -> Any:
    """Stored labels → output numbers, −1 for pixels that count for nothing: NumPy or torch, of any shape, int64.

    Stored label 0 is that of the unannotated, whatever the file's own is.

    >>> targets(np.array([0, 1, 2], np.uint8), 0).tolist(), targets(np.array([0, 1, 2], np.uint8), None).tolist()
    ([-1, 0, 1], [0, 1, 2])
    """
    wide = labels.astype(np.int64) if isinstance(labels, np.ndarray) else labels.long()
    return wide if ignore is None else wide - 1


def annotation(labels: Array, classes: Sequence[str], ignore: int | None) -> Annotation:
    """Pixels of each output of the network, of stored labels (H, W).

    >>> annotation(np.array([[0, 1], [0, 2]], np.uint8), ("a", "b"), 0)
    Annotation(counts={'a': 1, 'b': 1}, ignored=2, voxels=None)
    """
    counts = np.bincount(labels.ravel(), minlength=LABELS)
    named = zip(output_names(classes, ignore), output_labels(classes, ignore).tolist(), strict=True)
    return Annotation({name: int(counts[label]) for name, label in named}, 0 if ignore is None else int(counts[0]))


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
