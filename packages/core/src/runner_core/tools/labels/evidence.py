"""Numbers that say how a record's label differs from what the networks say, to be compared with other records'."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from runner_core.contract import Array

_TINY = 1e-6
_PARTS = 8
"""Parts along each axis, to each of which the networks give as much."""
_SOME = 0.1
"""Share of a high value above which the networks say that there is something."""


@dataclass(frozen=True)
class Sign:
    """A way in which a label can be wrong. `least` is the smallest spread between records that is believed."""

    name: str
    least: float
    signed: bool


def signs(axes: int, values: bool = False) -> tuple[Sign, ...]:
    """Return the signs of labels with so many axes; `values` rather than classes have three more."""
    return (
        Sign("overlap", 0.1, False),
        Sign("share of voxels", 0.3, False),
        Sign("region", 0.5, False),
        Sign("size", 0.03, True),
        Sign("part", 0.1, False),
        Sign("border", 0.1, True),
        *(Sign(f"shift along axis {axis}", 0.1, True) for axis in range(axes)),
        *((Sign("height", 0.02, True), Sign("pattern", 0.01, False), Sign("empty", 0.005, False)) if values else ()),
    )


def evidence(pairs: Iterable[tuple[Array, Array]], known: Array, margins: Array, region: float) -> Array:
    """Return a number for each of `signs`, without those of values.

    Args:
        pairs: For each class (or for the values) what the networks say and what the label says, on the grid.
        known: Where there is a label.
        margins: How sure the networks are that a voxel is wrong.
        region: The score of the worst region.
    """
    axes = known.ndim
    apart = 0.0
    said, true = ([np.zeros(length) for length in known.shape] for _ in range(2))
    squares, products = np.zeros((axes + 1, axes + 1)), np.zeros(axes + 1)
    for soft, label in pairs:
        rest = np.where(known, label - soft, np.float32(0))
        apart += float(np.abs(rest).sum(dtype=np.float64))
        said = [a + b for a, b in zip(said, _profiles(soft, known), strict=True)]
        true = [a + b for a, b in zip(true, _profiles(label, known), strict=True)]
        own = _normal(soft, rest, known)
        squares, products = squares + own[0], products + own[1]
    all_said, all_true = float(said[0].sum()), float(true[0].sum())
    total = all_said + all_true + _TINY
    overlap = apart / total
    move = np.linalg.solve(squares + _TINY * (1 + np.trace(squares)) * np.eye(axes + 1), products)
    share = float(margins.sum(dtype=np.float64)) / (total / 2)
    return np.array(
        [
            _logit(overlap),
            np.log(share + 1e-3),
            np.log1p(region),
            np.log((all_true + 1) / (all_said + 1)),
            _missing(said, true),
            move[-1],
            *(-move[:-1]),
        ]
    )


def _profiles(values: Array, known: Array) -> list[Array]:
    """Return the sums of the absolute values along each axis."""
    size = np.abs(np.where(known, values, np.float32(0)))
    axes = range(known.ndim)
    return [size.sum(tuple(n for n in axes if n != axis), dtype=np.float64) for axis in axes]


def _missing(said: Sequence[Array], true: Sequence[Array]) -> float:
    """Return how much less of one part is labelled than of the whole: the largest difference of logarithms."""
    whole = np.log((true[0].sum() + 1) / (said[0].sum() + 1))
    most = 0.0
    for own, labelled in zip(said, true, strict=True):
        part = np.clip(np.cumsum(own) / (own.sum() + _TINY) * _PARTS, 0, _PARTS - 1).astype(int)
        there, here = (np.bincount(part, weights, _PARTS) for weights in (own, labelled))
        least = 0.1 * there.mean() + _TINY
        most = max(most, whole - np.log((here + least) / (there + least))[there > 0].min(initial=whole))
    return float(most)


def evidence_of_values(said: Array, label: Array) -> Array:
    """Return a number for each of the signs that only values have.

    The height is that of the label alone: networks are often wrong about it, and other records' labels are alike.
    """
    known = np.isfinite(label)
    if not known.any():
        return np.zeros(3)
    true, said = label[known], said[known]
    height, usual = np.quantile(np.abs(true), 0.99), np.quantile(np.abs(said), 0.99)
    deviation = float(true.std() * said.std())
    alike = float(np.mean((true - true.mean()) * (said - said.mean()))) / deviation if deviation > 0 else 0.0
    empty = (true == 0) & (np.abs(said) > _SOME * usual)
    return np.array([np.log(height + _TINY), 1 - alike, empty.mean()])


def _normal(soft: Array, rest: Array, known: Array) -> tuple[Array, Array]:
    """Return the normal equations of `rest` = move · gradient + border × length of the gradient.

    A label that is shifted by d against what the networks say differs from it by −d · gradient; one that is eroded or
    dilated by b voxels all around, by b × the gradient's length.
    """
    slopes = [np.gradient(soft, axis=n) if length > 1 else np.zeros_like(soft) for n, length in enumerate(soft.shape)]
    length = np.sqrt(sum(slope * slope for slope in slopes))
    places = np.flatnonzero(known & (length > _TINY * max(float(length.max()), _TINY)))
    columns = np.stack([slope.ravel()[places] for slope in (*slopes, length)]).astype(np.float64)
    return columns @ columns.T, columns @ rest.ravel()[places].astype(np.float64)


def _logit(value: float) -> float:
    value = min(max(value, 1e-4), 1 - 1e-4)
    return float(np.log(value / (1 - value)))


def compared(found: Sequence[Array], of: Sequence[Sign]) -> Array:
    """Return how far each record (N, S) lies from the others, in robust standard deviations.

    Of signs whose direction does not matter the size counts, of the others only what is worse than usual.
    """
    table = np.stack(found)
    middle = np.median(table, axis=0)
    spread = np.maximum(1.4826 * np.median(np.abs(table - middle), axis=0), [sign.least for sign in of])
    far = (table - middle) / spread
    return np.where([sign.signed for sign in of], np.abs(far), np.maximum(far, 0))


def total(far: Array) -> float:
    """Return one score of how far a record lies from the others."""
    return float(np.sqrt((far * far).sum()))


_TEXTS = {
    "overlap": ("label and networks agree less than in other records",) * 2,
    "share of voxels": ("more voxels look wrong than in other records",) * 2,
    "region": ("a larger region looks wrong than in other records",) * 2,
    "part": ("a part of it is labelled less than the networks say",) * 2,
    "height": (
        "its highest values are lower than in other records",
        "its highest values are higher than in other records",
    ),
    "pattern": ("high and low values lie elsewhere than the networks say",) * 2,
    "empty": ("it has no values where the networks say that there are some",) * 2,
    "size": ("the label is smaller than the networks say", "the label is larger than the networks say"),
    "border": ("the label's border lies inside the networks'", "the label's border lies outside the networks'"),
}


_FAR = 4.0
"""Deviations from which a direction (smaller, shifted) is told rather than only that much is wrong."""


def text(of: Sequence[Sign], far: Array, row: Array) -> str:
    """Return what is most unusual about a record; `row` is its evidence, less the usual one."""
    directed = np.where([sign.signed for sign in of], far, 0)
    worst = int(np.argmax(directed if directed.max() >= _FAR else far))
    name, higher = of[worst].name, bool(row[worst] > 0)
    if name in _TEXTS:
        return _TEXTS[name][higher]
    where = name.removeprefix("shift along ")
    return f"the label is shifted to {'higher' if higher else 'lower'} places of {where} against the networks"
