"""Voxels whose label is probably wrong, by what networks say that never saw it.

Classes: confident learning (Northcutt, Jiang and Chuang, "Confident Learning: Estimating Uncertainty in Dataset
Labels", 2021). A class's threshold is the mean probability that the networks give it where it is the label. A voxel
looks wrong if another class reaches its own threshold and is more probable than the label, which stays below its own.
Values: the residual, compared with the typical one of voxels for which the networks say about the same.
"""

from __future__ import annotations

import numpy as np

from runner_core.contract import Array

IGNORED = -1
_LEVELS = 16
_SAMPLED = 1 << 15
"""Voxels of each record from which the typical residual is known."""
_BEYOND = 3.0
"""Typical residuals beyond which a value looks wrong."""
_LEAST_SHARE = 0.05
"""Smallest residual that may look wrong, as a share of a high value (the 99th percentile of the true ones)."""


def probabilities(soft: Array) -> Array:
    """Return float32 probabilities of all classes, (K, …); one class alone gets "the rest" before it."""
    found = soft.astype(np.float32) / np.float32(255) if soft.dtype == np.uint8 else soft.astype(np.float32)
    return np.concatenate([1 - found, found]) if len(found) == 1 else found


class Classes:
    """Thresholds of classes, from records that are shown one by one."""

    def __init__(self, classes: tuple[str, ...]) -> None:
        self.names = (f"not {classes[0]}", *classes) if len(classes) == 1 else classes
        self._sums, self.counts = np.zeros((2, len(self.names)))

    def observe(self, soft: Array, labels: Array, spread: Array | None) -> None:
        known = labels.ravel()
        found = probabilities(soft).reshape(len(self.names), -1)
        for k in range(len(self.names)):
            own = found[k][known == k]
            self._sums[k] += own.sum(dtype=np.float64)
            self.counts[k] += own.size

    @property
    def thresholds(self) -> Array:
        """Mean probability of each class where it is the label; infinite if it never is: nobody can learn it then."""
        return np.where(self.counts > 0, self._sums / np.maximum(self.counts, 1), np.inf)

    @property
    def foreground(self) -> list[int]:
        """Numbers of all classes but one that is the label of most voxels; of one class and the rest, that class."""
        if len(self.names) == 2 and self.names[0] == f"not {self.names[1]}":
            return [1]
        return [k for k, count in enumerate(self.counts) if 2 * count <= self.counts.sum()]

    def wrong(self, soft: Array, labels: Array, spread: Array | None) -> tuple[Array, Array]:
        """Return margins (float32, 0 where nothing looks wrong), and the kind of each voxel.

        The margin is the probability of the class that the networks say, less that of the label. The kind is
        K × label + that class.
        """
        found, limits = probabilities(soft), self.thresholds
        likely = found >= limits.reshape(-1, *[1] * labels.ndim)
        said = np.where(likely, found, -1).argmax(0)
        known = np.maximum(labels, 0)
        own = np.take_along_axis(found, known[None], 0)[0]
        margins = np.take_along_axis(found, said[None], 0)[0] - own
        wrong = (labels != IGNORED) & likely.any(0) & (said != labels) & (margins > 0) & (own < limits[known])
        return np.where(wrong, margins, np.float32(0)), known * len(self.names) + said

    def kinds(self) -> dict[int, tuple[str, str]]:
        """Return what the label and the networks say at voxels of each kind."""
        return {
            k * len(self.names) + n: (label, said)
            for k, label in enumerate(self.names)
            for n, said in enumerate(self.names)
        }


class Values:
    """The typical residual for each level of what the networks say, from records that are shown one by one."""

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self._seen: list[Array] = []
        self._fitted: tuple[Array, Array, Array] | None = None

    def observe(self, soft: Array, labels: Array, spread: Array | None) -> None:
        self._fitted = None
        places = np.flatnonzero(np.isfinite(labels))
        places = places[:: max(1, len(places) // _SAMPLED)]
        self._seen.append(np.stack([soft.ravel()[places], labels.ravel()[places]]).astype(np.float32))

    @property
    def typical(self) -> tuple[Array, Array, Array]:
        """Return the upper ends of the levels, and the bias and the deviation of each."""
        if self._fitted is None:
            said, true = np.concatenate(self._seen, axis=1)
            ends = np.unique(np.quantile(said, np.linspace(0, 1, _LEVELS + 1)[1:-1])).astype(np.float32)
            level = np.searchsorted(ends, said)
            bias, spread = np.zeros((2, len(ends) + 1), np.float32)
            for n in np.unique(level):
                rest = (true - said)[level == n]
                bias[n] = np.median(rest)
                spread[n] = 1.4826 * np.median(np.abs(rest - bias[n]))
            least = _LEAST_SHARE * np.quantile(np.abs(true), 0.99)
            self._fitted = ends, bias, np.maximum(spread, np.float32(least / _BEYOND))
        return self._fitted

    def wrong(self, soft: Array, labels: Array, spread: Array | None) -> tuple[Array, Array]:
        """Return margins (float32, 0 where nothing looks wrong), and the kind: 1 if the label is higher, else 0.

        The margin is the residual in typical residuals, above `_BEYOND` of them. Where the networks disagree among
        each other, the typical residual is larger by that.
        """
        ends, bias, typical = self.typical
        level = np.searchsorted(ends, soft)
        rest = np.nan_to_num(labels - soft - bias[level])
        scale = typical[level] if spread is None else np.hypot(typical[level], spread)
        return np.maximum(np.abs(rest) / scale - np.float32(_BEYOND), 0).astype(np.float32), (rest > 0).astype(np.int64)

    def kinds(self) -> dict[int, tuple[str, str]]:
        unit = f" ({self._unit})" if self._unit else ""
        return {0: (f"less{unit}", "more"), 1: (f"more{unit}", "less")}
