"""Statistics of the training records: z-scores of the channels, class frequencies, the area of each label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from runner_core import BadInput, Json, Statistics, Store, counted

from runner_ssmunet.bands import SAME
from runner_ssmunet.labels import LABELS, output_labels, output_names

Array = np.ndarray[Any, np.dtype[Any]]

_ROWS = 4096
"""Pixels that are converted to float64 at once."""
_NEARLY_EVERY = 0.1
"""Share of the cores that may differ."""
_LEAST = 0.01
"""Share of a core below which its pixels off the tissue say nothing."""


def fit(
    store: Store, training: Sequence[int], classes: Sequence[str], ignore: int | None, most_weight: float
) -> Statistics:
    """Return statistics of the records `training` (numbers in `store`), with one record in memory at a time.

    - `wavenumbers` (L,) float64, cm⁻¹, the axis of every record in the store
    - `mean`, `std` (channels,) float64 of tissue pixels, whatever their label; a channel that never varies has std 1
    - `class_counts` (K,) int64: annotated tissue pixels of each of the network's outputs (labels.py), and
      `class_weights` (K,) float64 as `balanced` gives them
    - `off_tissue`: annotated pixels off the tissue, which are not trained on

    Raises BadInput where axes differ, where no training record has tissue, and where fewer than two classes
    are annotated.
    """
    wavenumbers = common_axis([(str(m.get("core", k)), m) for k, m in zip(store.keys, store.meta, strict=True)])
    moments = Moments(store.arrays["spectra"].shapes[0][-1])
    label_counts, off_tissue = np.zeros(LABELS, np.int64), 0
    for record in training:
        tissue = store.arrays["tissue"].read(record) > 0
        moments.add(store.arrays["spectra"].read(record)[tissue])
        labels = store.arrays["label"].read(record)
        label_counts += np.bincount(labels[tissue], minlength=LABELS)
        off_tissue += int(np.count_nonzero(labels[~tissue]))
    if not moments.count:
        raise BadInput(f"none of the {counted(len(training), 'training record')} has a tissue pixel: see data.tissue")
    class_counts = label_counts[output_labels(classes, ignore)]
    if not class_counts.any():
        raise BadInput(
            f"none of the {counted(len(training), 'training record')} has an annotated pixel on its tissue: do its "
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
        "off_tissue": off_tissue,
        "class_counts": class_counts,
        "class_weights": balanced(class_counts, most_weight),
    }


def label_shares(store: Store, training: Sequence[int]) -> Array:
    """Return each label's share of the tissue, and of the rest: (256, 2) float32.

    It is the share that the label reaches in all training cores but a tenth. NaN: no core has such pixels.
    """
    shares = np.full((len(training), LABELS, 2), np.nan)
    for row, record in enumerate(training):
        label, tissue = store.arrays["label"].read(record), store.arrays["tissue"].read(record) > 0
        for side, where in enumerate((tissue, ~tissue)):
            if (count := np.count_nonzero(where)) > _LEAST * where.size:
                shares[row, :, side] = np.bincount(label[where], minlength=LABELS) / count
    seen = np.isfinite(shares[:, 0]).any(axis=0)
    out = np.full((LABELS, 2), np.nan, np.float32)
    out[:, seen] = np.nanquantile(shares[..., seen], _NEARLY_EVERY, axis=0)
    return out


def balanced(counts: Array, most: float) -> Array:
    """Return weights (K,) float64 of classes with `counts` (K,) pixels: median count over own count.

    A weight is at most `most`, and 1 for a class without pixels. This is median frequency balancing (Eigen and Fergus,
    "Predicting depth, surface normals and semantic labels with a common multi-scale convolutional architecture", 2015),
    over all annotated pixels at once.

    >>> balanced(np.array([100, 50, 200, 0]), 10).tolist()
    [1.0, 2.0, 0.5, 1.0]
    """
    there = counts > 0
    weights = np.ones(len(counts))
    weights[there] = np.minimum(np.median(counts[there]) / counts[there], most)
    return weights


def chance_losses(counts: Array, weights: Array | None = None) -> float:
    """Return the weighted cross-entropy (nats) of the best network that looks at no pixel.

    It answers every pixel with the classes' shares, weighted by `weights` (K,). `counts` (K,) are pixels. Without
    weights all are 1.

    >>> round(chance_losses(np.array([30, 30, 0, 0])), 6)  # ln 2
    0.693147
    """
    weighted = counts if weights is None else counts * weights
    shares = weighted[weighted > 0] / weighted.sum()
    return float(-(shares * np.log(shares)).sum())


def common_axis(cores: Sequence[tuple[str, Mapping[str, Json]]]) -> Array:
    """Return the axis (L,) float64 that all cores have; `cores` holds (name, meta with `wavenumbers`).

    Raises BadInput naming two that differ.
    """
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
    """Return the difference of two axes (cm⁻¹) in words, or an empty string."""
    if len(first) != len(second):
        return f"{extent(first)} and {extent(second)}"
    worst = int(np.abs(first - second).argmax())
    if abs(first[worst] - second[worst]) <= SAME * spacing(first):
        return ""
    return f"number {worst + 1} is {first[worst]:g} and {second[worst]:g} cm⁻¹"


def spacing(axis: Array) -> float:
    """Return the median spacing of an axis (cm⁻¹)."""
    return float(np.median(np.diff(axis))) if len(axis) > 1 else 1.0


def extent(axis: Array) -> str:
    """Return the number of wavenumbers of an axis, and its limits, in words."""
    return f"{counted(len(axis), 'wavenumber')} from {axis[0]:g} to {axis[-1]:g} cm⁻¹"


class Moments:
    """Mean and variance of channels over any number of pixels, added in parts in float64.

    Parts are joined by Chan, Golub and LeVeque's formula ("Algorithms for computing the sample variance", 1983), which
    loses no precision if the mean is large compared with the deviation.
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
        """Return the standard deviation (L,) float64; 1 for a channel that varies by rounding only."""
        std = np.sqrt(self._squares / max(self.count, 1))
        return np.where(std > 1e-9 * np.maximum(np.abs(self.mean), 1e-3), std, 1.0)
