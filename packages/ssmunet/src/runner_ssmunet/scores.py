"""Scores of whole cores and of sets of cores, all from confusion matrices of annotated pixels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from runner_core import Table

from runner_ssmunet.labels import MISSED

Array = np.ndarray[Any, np.dtype[Any]]

SHOWN = ("miou", "macro_f1", "accuracy", "pixels")


def confusion(predicted: Array, true: Array, classes: int) -> Array:
    """Count pixels of each true class (rows, K) by predicted class (columns, K + 1; last: no tissue), int64.

    `predicted` and `true` hold classes from 0 in arrays of one shape. `predicted` is −1 off the tissue, `true` −1 for
    unannotated pixels, which count nowhere.
    """
    known = true >= 0
    column = np.where(predicted < 0, classes, predicted)[known]
    cells = true[known] * (classes + 1) + column
    return np.bincount(cells.ravel(), minlength=classes * (classes + 1)).reshape(classes, classes + 1)


def per_class(counts: Array) -> dict[str, Array]:
    """Return iou, f1, recall, precision and pixels of each class (K,); NaN for a class without pixels."""
    hits = np.diagonal(counts).astype(float)
    true, found = counts.sum(1), counts[:, :-1].sum(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return {
            "iou": hits / (true + found - hits),
            "f1": 2 * hits / (true + found),
            "recall": hits / true,
            "precision": hits / found,
            "pixels": true,
        }


def summary(counts: Array, names: Sequence[str]) -> dict[str, float]:
    """Return miou and macro_f1 (means over classes in truth or prediction), accuracy, pixels and iou_NAME."""
    return _summary(counts, names, per_class(counts))


def core_scores(counts: Array, names: Sequence[str]) -> dict[str, float]:
    """Return the scores of one core, and its confusion matrix as pixels_TRUE_as_FOUND.

    miou and macro_f1 are means over the annotated classes of the core; iou_NAME of any other class is NaN. A core shows
    only a few classes, and one stray pixel of another would count as much as a class that is never found. Such a pixel
    still lowers the scores of its true class, and precision over the set.
    """
    annotated = counts.sum(1) > 0
    each = {name: np.where(annotated, values, np.nan) for name, values in per_class(counts).items()}
    return _summary(counts, names, each) | _as_scores(counts, names)


def pooled(scores: Sequence[Mapping[str, float]], names: Sequence[str]) -> dict[str, float]:
    """Return scores over a set of cores: `summary` of the sum of their confusion matrices.

    No core shows every class.
    """
    counts = _sum(scores, names)
    return summary(counts, names) | _as_scores(counts, names)


def tables(
    scores: Sequence[Mapping[str, float]], baseline: Sequence[Mapping[str, float]], names: Sequence[str]
) -> list[Table]:
    """Return the scores by class, next to the baseline's if there are any, and the set's confusion matrix."""
    counts = _sum(scores, names)
    each, trivial = per_class(counts), per_class(_sum(baseline, names))
    columns = {"pixels": each["pixels"], "IoU": each["iou"]}
    columns |= {"IoU of the baseline": trivial["iou"]} if baseline else {}
    columns |= {"F1": each["f1"], "recall": each["recall"], "precision": each["precision"]}
    rows: list[list[str | float]] = [[name, *(c[k].item() for c in columns.values())] for k, name in enumerate(names)]
    taken: list[list[str | float]] = [[name, *counts[k].tolist()] for k, name in enumerate(names)]
    return [
        Table("classes", "By class", ("class", *columns), rows),
        Table("confusion", "Confusion: pixels of each true class (rows), by what they were taken for",
              ("true class", *names, MISSED), taken),
    ]  # fmt: skip


def _summary(counts: Array, names: Sequence[str], each: Mapping[str, Array]) -> dict[str, float]:
    total = float(counts.sum())
    means = {name: _mean(each[part]) for name, part in (("miou", "iou"), ("macro_f1", "f1"))}
    accuracy = float(np.diagonal(counts).sum()) / total if total else float("nan")
    ious = {f"iou_{name}": float(value) for name, value in zip(names, each["iou"], strict=True)}
    return {**means, "accuracy": accuracy, "pixels": total, **ious}


def _as_scores(counts: Array, names: Sequence[str]) -> dict[str, float]:
    return {name: float(counts[cell]) for name, cell in _cells(names).items()}


def _cells(names: Sequence[str]) -> dict[str, tuple[int, int]]:
    return {
        f"pixels_{true}_as_{found}": (row, column)
        for row, true in enumerate(names)
        for column, found in enumerate((*names, MISSED))
    }


def matrix(core: Mapping[str, float], names: Sequence[str]) -> Array:
    """Return the confusion matrix (K, K + 1) in a core's scores."""
    counts = np.zeros((len(names), len(names) + 1))
    for name, cell in _cells(names).items():
        counts[cell] = core[name]
    return counts


def _sum(scores: Sequence[Mapping[str, float]], names: Sequence[str]) -> Array:
    counts = np.zeros((len(names), len(names) + 1), np.int64)
    for name, cell in _cells(names).items():
        counts[cell] = int(sum(core[name] for core in scores))
    return counts


def _mean(values: Array) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else float("nan")
