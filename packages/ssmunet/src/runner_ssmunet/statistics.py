"""What the training records teach before training: z-scores of the channels, how often each class is annotated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from runner_core._errors import BadInput
from runner_core._text import counted
from runner_core.project import Statistics
from runner_core.protocols import Json, Store

from runner_ssmunet.labels import LABELS, output_labels, output_names

Array = np.ndarray[Any, np.dtype[Any]]

HEAVIEST = 10.0
"""No class weighs more than so many times what the median class does."""
_ROWS = 4096
"""Pixels that are turned into float64 at once."""
_SAME = 0.1
"""Axes are the same while no wavenumber differs by more than this share of the spacing."""


def fit(store: Store, training: Sequence[int], classes: Sequence[str], ignore: int | None) -> Statistics:
    """Statistics of the records `training` (numbers in `store`), one record in memory at a time.

    - `wavenumbers` (L,) float64, cm⁻¹, the axis of every record in the store
    - `mean`, `std` (channels,) float64 of tissue pixels, whatever their label; a channel that never varies has std 1
    - `label_counts` (256,) int64: pixels with each stored label, 0 the unannotated
    - `class_counts` (K,) int64: annotated pixels of each of the network's outputs (labels.py), and `class_weights` (K,)
      float64 as `balanced` gives them

    Raises BadInput where axes differ, where no training record has tissue, and where fewer than two classes
    are annotated.
    """
    wavenumbers = common_axis([(str(m.get("core", k)), m) for k, m in zip(store.keys, store.meta, strict=True)])
    moments = Moments(store.arrays["spectra"].shapes[0][-1])
    label_counts = np.zeros(LABELS, np.int64)
    for record in training:
        tissue = store.arrays["tissue"].read(record) > 0
        moments.add(store.arrays["spectra"].read(record)[tissue])
        labels = store.arrays["label"].read(record)
        label_counts += np.bincount(labels.ravel(), minlength=LABELS)
    if not moments.count:
        raise BadInput(f"none of the {counted(len(training), 'training record')} has a tissue pixel: see data.tissue")
    class_counts = label_counts[output_labels(classes, ignore)]
    if not class_counts.any():
        raise BadInput(
            f"none of the {counted(len(training), 'training record')} has an annotated pixel near its tissue: do its "
            "labels and its tissue mask lie on one grid?"
        )
    if np.count_nonzero(class_counts) == 1:
        only = output_names(classes, ignore)[int(class_counts.argmax())]
        raise BadInput(
            f"one class only is annotated in the {counted(len(training), 'training record')}, {only}: there is nothing "
            "to tell it from. Annotate another class too, or choose another split (data.split)."
        )
    return {
        "wavenumbers": wavenumbers,
        "mean": moments.mean,
        "std": moments.std(),
        "label_counts": label_counts,
        "class_counts": class_counts,
        "class_weights": balanced(class_counts),
    }


def balanced(counts: Array) -> Array:
    """Weights (K,) float64 of classes with `counts` (K,) pixels: median count over own count, at most HEAVIEST; 1 for a
    class without any. Median frequency balancing (Eigen and Fergus, "Predicting depth, surface normals and semantic
    labels with a common multi-scale convolutional architecture", 2015), over all annotated pixels at once.

    >>> balanced(np.array([100, 50, 200, 0])).tolist()
    [1.0, 2.0, 0.5, 1.0]
    """
    there = counts > 0
    weights = np.ones(len(counts))
    weights[there] = np.minimum(np.median(counts[there]) / counts[there], HEAVIEST)
    return weights


def uninformed(counts: Array, weights: Array | None = None) -> float:
    """The weighted cross-entropy (nats) of a network that answers every pixel with the shares of the classes as the
    weights (K,) make them, which is the best that looks at no pixel: `counts` (K,) pixels; None: all weights are 1.

    >>> uninformed(np.array([30, 30, 0, 0])) == np.log(2)
    True
    """
    weighted = counts if weights is None else counts * weights
    shares = weighted[weighted > 0] / weighted.sum()
    return float(-(shares * np.log(shares)).sum())


def common_axis(cores: Sequence[tuple[str, Mapping[str, Json]]]) -> Array:
    """The axis (L,) float64 that all have: (name, meta with `wavenumbers`). Raises BadInput naming two that differ."""
    if not cores:
        raise BadInput("no record to take the wavenumbers from")
    first_name, first_meta = cores[0]
    first = np.asarray(first_meta["wavenumbers"], np.float64)
    for name, meta in cores[1:]:
        if difference := axes_differ(first, np.asarray(meta["wavenumbers"], np.float64)):
            raise BadInput(
                f"{first_name} and {name} have different wavenumbers: {difference}. Set data.step "
                f"({spacing(first):.3g} cm⁻¹, say), which resamples every core onto one axis."
            )
    return first


def axes_differ(first: Array, second: Array) -> str:
    """In what two axes (cm⁻¹) differ, or nothing."""
    if len(first) != len(second):
        return f"{extent(first)} and {extent(second)}"
    worst = int(np.abs(first - second).argmax())
    if abs(first[worst] - second[worst]) <= _SAME * spacing(first):
        return ""
    return f"number {worst + 1} is {first[worst]:g} and {second[worst]:g} cm⁻¹"


def spacing(axis: Array) -> float:
    """The median spacing of an axis (cm⁻¹)."""
    return float(np.median(np.diff(axis))) if len(axis) > 1 else 1.0


def extent(axis: Array) -> str:
    """How many wavenumbers an axis has, and its limits, in words."""
    return f"{counted(len(axis), 'wavenumber')} from {axis[0]:g} to {axis[-1]:g} cm⁻¹"


class Moments:
    """Mean and variance of channels over any number of pixels, added in parts in float64.

    Parts are joined by Chan, Golub and LeVeque's formula ("Algorithms for computing the sample variance", 1983), which
    loses nothing where the mean is large beside the deviation.
    """

    def __init__(self, channels: int) -> None:
        self.count = 0
        self.mean = np.zeros(channels)
        self._squares = np.zeros(channels)

    def add(self, pixels: Array) -> None:
        """Add `pixels` (P, L) of any float type."""
        for first in range(0, len(pixels), _ROWS):
            self._add(pixels[first : first + _ROWS].astype(np.float64))

    def _add(self, part: Array) -> None:
        mean = part.mean(0)
        part -= mean
        total = self.count + len(part)
        shift = mean - self.mean
        self._squares += np.einsum("pl,pl->l", part, part) + shift**2 * (self.count * len(part) / total)
        self.mean += shift * (len(part) / total)
        self.count = total

    def std(self) -> Array:
        """Standard deviation (L,) float64; 1 where a channel does not vary but for rounding."""
        std = np.sqrt(self._squares / max(self.count, 1))
        return np.where(std > 1e-9 * np.maximum(np.abs(self.mean), 1e-3), std, 1.0)
