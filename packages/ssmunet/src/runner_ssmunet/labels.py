"""The network's outputs: their names, the stored labels that they stand for, and the way back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from runner_core import Annotation

Array = np.ndarray[Any, np.dtype[Any]]

UNANNOTATED = "unannotated"
"""The class of label 0 if no label is ignored."""
MISSED = "no_tissue"
"""The class of pixels off the tissue mask, in a confusion matrix."""
LABELS = 256
"""Number of stored labels: they are uint8."""
MANY_OFF = 0.05
"""Share of annotated pixels off the tissue above which labels and mask hardly lie on one grid."""


def output_names(classes: Sequence[str], ignore: int | None) -> tuple[str, ...]:
    """Return the names of the network's outputs: `classes`, after label 0 if no label is ignored."""
    return tuple(classes) if ignore is not None else (UNANNOTATED, *classes)


def output_labels(classes: Sequence[str], ignore: int | None) -> Array:
    """Return the label that each output stands for: (outputs,) uint8."""
    first = 0 if ignore is None else 1
    return np.arange(first, len(classes) + 1, dtype=np.uint8)


def targets(labels: Any, ignore: int | None) -> Any:
    """Turn stored labels into output numbers, −1 for pixels without effect: NumPy or torch, any shape, int64.

    Stored label 0 means unannotated, whatever the file's own label is.

    >>> targets(np.array([0, 1, 2], np.uint8), 0).tolist(), targets(np.array([0, 1, 2], np.uint8), None).tolist()
    ([-1, 0, 1], [0, 1, 2])
    """
    wide = labels.astype(np.int64) if isinstance(labels, np.ndarray) else labels.long()
    return wide if ignore is None else wide - 1


def scored(labels: Any, tissue: Any, ignore: int | None) -> Any:
    """Turn stored labels into output numbers that scores count, −1 for unannotated: NumPy or torch, int64.

    `tissue` is bool of the same shape. An annotated pixel off the tissue counts as missed, since nothing is predicted
    there. Label 0 off the tissue is no annotation, even if it is a class.

    >>> scored(np.array([0, 1, 0], np.uint8), np.array([True, False, False]), None).tolist()
    [0, 1, -1]
    """
    out = targets(labels, ignore)
    out[(labels == 0) & ~tissue] = -1
    return out


def learned(labels: Any, tissue: Any, ignore: int | None) -> Any:
    """Turn stored labels into output numbers to train on, −1 off the tissue. NumPy or torch, int64.

    Off the tissue the network sees no spectrum: there is nothing to learn from.

    >>> learned(np.array([0, 1, 2], np.uint8), np.array([True, False, True]), 0).tolist()
    [-1, -1, 1]
    """
    out = targets(labels, ignore)
    out[~tissue] = -1
    return out


def annotation(labels: Array, tissue: Array, classes: Sequence[str], ignore: int | None) -> Annotation:
    """Count the pixels that train each output of the network, from stored labels and tissue (H, W).

    >>> annotation(np.array([[0, 1], [0, 2]], np.uint8), np.array([[True, True], [True, False]]), ("a", "b"), 0)
    Annotation(counts={'a': 1, 'b': 0}, ignored=3, voxels=None)
    """
    counts = np.bincount(labels[tissue], minlength=LABELS)
    off = int(np.count_nonzero(~tissue))
    named = zip(output_names(classes, ignore), output_labels(classes, ignore).tolist(), strict=True)
    unannotated = 0 if ignore is None else int(counts[0])
    return Annotation({name: int(counts[label]) for name, label in named}, off + unannotated)


def wrong_settings(classes: Sequence[str], ignore: int | None) -> str | None:
    """Return what is wrong with data.classes and data.ignore, if anything."""
    if len(classes) == 1:
        return f"data.classes is {tuple(classes)}; two names or more are needed"
    if fault := wrong_names(classes, ignore):
        return f"data.classes: {fault}"
    if len(classes) >= LABELS:
        return f"data.classes has {len(classes)} names; labels are stored in 8 bits, so that {LABELS - 1} is the most"
    if ignore is not None and not (ignore == 0 or len(classes) < ignore < LABELS):
        if not classes:
            return f"data.ignore is {ignore}; a label from 0 to {LABELS - 1} stands for pixels that nobody annotated"
        return (
            f"data.ignore is {ignore}; labels 1 to {len(classes)} are the classes, so that 0, or {len(classes) + 1} "
            f"to {LABELS - 1}, can stand for pixels that nobody annotated"
        )
    return None


def wrong_names(classes: Sequence[str], ignore: int | None) -> str | None:
    """Return what is wrong with names of classes, if anything. Pixels of no class have names of their own."""
    if not all(name.strip() for name in classes):
        return "a class has no name; each needs one"
    if odd := [name for name in classes if not name.isprintable()]:
        return f"a class is called {odd[0]!r}; a name is one line of text"
    if twice := [name for name in classes if list(classes).count(name) > 1]:
        return f"two classes are called {twice[0]}; each needs another name"
    taken = (MISSED,) if ignore is not None else (MISSED, UNANNOTATED)
    for name in taken:
        if name in classes:
            return f"a class is called {name}, which is what pixels of no class are called: take another name"
    return None
