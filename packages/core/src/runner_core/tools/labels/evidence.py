"""How a record's label differs from what the networks say, in a few numbers that other records' are compared with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from runner_core.contract import Array

_TINY = 1e-6


@dataclass(frozen=True)
class Sign:
    """One way in which a label can be wrong. `least` is the smallest spread between records that is believed."""

    name: str
    least: float
    signed: bool


def signs(axes: int) -> tuple[Sign, ...]:
    return (
        Sign("overlap", 0.1, False),
        Sign("share of voxels", 0.3, False),
        Sign("region", 0.5, False),
        Sign("size", 0.03, True),
        Sign("border", 0.1, True),
        *(Sign(f"shift along axis {axis}", 0.1, True) for axis in range(axes)),
    )


def evidence(pairs: Iterable[tuple[Array, Array]], known: Array, margins: Array, region: float) -> Array:
    """Return a number for each of `signs`.

    Args:
        pairs: For each class (or for the values) what the networks say and what the label says, on the grid.
        known: Where there is a label.
        margins: How sure the networks are that a voxel is wrong.
        region: The score of the worst region.
    """
    axes = known.ndim
    said, true, apart = 0.0, 0.0, 0.0
    squares, products = np.zeros((axes + 1, axes + 1)), np.zeros(axes + 1)
    for soft, label in pairs:
        rest = np.where(known, label - soft, np.float32(0))
        apart += float(np.abs(rest).sum(dtype=np.float64))
        said += float(np.abs(soft[known]).sum(dtype=np.float64))
        true += float(np.abs(label[known]).sum(dtype=np.float64))
        own = _normal(soft, rest, known)
        squares, products = squares + own[0], products + own[1]
    total = said + true + _TINY
    overlap = apart / total
    move = np.linalg.solve(squares + _TINY * (1 + np.trace(squares)) * np.eye(axes + 1), products)
    share = float(margins.sum(dtype=np.float64)) / (total / 2)
    return np.array(
        [
            _logit(overlap),
            np.log(share + 1e-3),
            np.log1p(region),
            np.log((true + 1) / (said + 1)),
            move[-1],
            *(-move[:-1]),
        ]
    )


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
