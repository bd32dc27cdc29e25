"""Barcodes, and the matching of bars of two volumes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from runner_vesuvius.persistence.cells import Filtration, Ids
from runner_vesuvius.persistence.merging import cavities, components
from runner_vesuvius.persistence.reduction import loops

Volume = npt.NDArray[np.floating[Any]]
Cells = tuple[Ids, Ids]
"""Cells of one dimension k: the k-cells at which classes are born and the (k+1)-cells at which they die."""


class Pairs(NamedTuple):
    """Bars of one dimension: numbers (int64, in C order) of the voxels whose values are their births and deaths."""

    births: npt.NDArray[np.int64]
    deaths: npt.NDArray[np.int64]


class Matching(NamedTuple):
    """Bars of one dimension; row i of `first` and row i of `second` are the same feature."""

    first: Pairs
    second: Pairs
    only_first: Pairs
    only_second: Pairs


def barcode(volume: Volume) -> tuple[Pairs, Pairs, Pairs]:
    """Return the bars of positive length of the sublevel filtration: components, loops and cavities.

    `volume` (D, H, W) is finite. The component that never dies (born at the first of the smallest voxels) is left out.

    >>> [len(bars.births) for bars in barcode(np.array([[[0.0, 2.0, 1.0]]]))]
    [1, 0, 0]
    """
    own = Filtration(_checked(volume))
    found = _homology(own, own)
    return tuple(_voxels(own, k, lasting(own, k, cells)) for k, cells in enumerate(found))  # type: ignore[return-value]


def match(first: Volume, second: Volume, elders: Volume | None = None) -> tuple[Matching, Matching, Matching]:
    """Match two volumes (D, H, W) by dimension, through their comparison image min(first, second).

    A bar of `first` and one of `second` match if their classes, carried over to the comparison image, die at the same
    cell, and a bar of positive length ends there. Counts, values and the treatment of equal values are those of the
    authors' Betti-Matching-3D.

    If two components or two cavities of `first` merge, the order of `elders` (D, H, W) decides which class continues;
    the bar of the other ends. The default is `first` itself. Any choice gives bars with the Betti numbers of `first` at
    every level; with the usual one, in which the more extreme class continues, they are a barcode.

    Raises ValueError if shapes differ, values are not finite, or volumes do not have three dimensions.
    """
    _checked(second)
    if _checked(first).shape != second.shape:
        raise ValueError(f"the volumes differ in shape: {first.shape} and {second.shape}")
    a, b, both = Filtration(first), Filtration(second), Filtration(np.minimum(first, second))
    old = a if elders is None else Filtration(_checked(elders))
    own_a, own_b, own_both = _homology(a, a, old, old), _homology(b, b), _homology(both, both)
    squares = own_both[2][0]
    image_a = _homology(a, both, old, squares=squares)
    image_b = own_both if _begins_as(b, both) else _homology(b, both, squares=squares)
    return tuple(  # type: ignore[return-value]
        _matched((a, own_a[k], image_a[k]), (b, own_b[k], image_b[k]), k, lasting(both, k, own_both[k])[1])
        for k in range(3)
    )


def _begins_as(binary: Filtration, both: Filtration) -> bool:
    """Return whether the comparison image is lowest exactly where the binary volume has the lower of its two values.

    That is so for a truth and a prediction that is less than sure everywhere else. Then all births of bars are there,
    and the births in its image are those in the comparison image. The orders differ in the other cells, but only their
    set matters.
    """
    return len(binary.values) == 2 and bool(((binary.levels[0] == 0) == (both.levels[0] == 0)).all())


def _homology(
    rows: Filtration,
    columns: Filtration,
    oldest_vertices: Filtration | None = None,
    oldest_cubes: Filtration | None = None,
    squares: Ids | None = None,
) -> tuple[Cells, Cells, Cells]:
    """Return classes by dimension, including those that die at once.

    They are those of a volume (`rows` and `columns` the same), or of the image of `rows` in `columns`. `squares` are
    those at which cavities are born in `columns`, if they are known.
    """
    holes = cavities(rows, oldest_cubes or columns)
    born = holes[0] if squares is None else squares
    return components(oldest_vertices or rows, columns), loops(rows, columns, born), holes


def lasting(own: Filtration, dimension: int, cells: Cells) -> Cells:
    """Return the classes that do not die at the level of their birth."""
    births, deaths = cells
    keep = own.levels[dimension][births] < own.levels[dimension + 1][deaths]
    return births[keep], deaths[keep]


def _matched(
    first: tuple[Filtration, Cells, Cells], second: tuple[Filtration, Cells, Cells], k: int, ends: Ids
) -> Matching:
    """Match bars of dimension k.

    `first` and `second` are (filtration, own classes, image classes); bars of the comparison image end at `ends`.
    """
    (a, own_a, image_a), (b, own_b, image_b) = first, second
    bars_a, bars_b = lasting(a, k, own_a), lasting(b, k, own_b)
    of_a, of_b = _bars_at(ends, bars_a, image_a, a, k), _bars_at(ends, bars_b, image_b, b, k)
    both = (of_a >= 0) & (of_b >= 0)
    of_a, of_b = of_a[both], of_b[both]
    return Matching(
        _voxels(a, k, (bars_a[0][of_a], bars_a[1][of_a])),
        _voxels(b, k, (bars_b[0][of_b], bars_b[1][of_b])),
        _voxels(a, k, (np.delete(bars_a[0], of_a), np.delete(bars_a[1], of_a))),
        _voxels(b, k, (np.delete(bars_b[0], of_b), np.delete(bars_b[1], of_b))),
    )


def _bars_at(ends: Ids, bars: Cells, image: Cells, own: Filtration, k: int) -> npt.NDArray[np.int64]:
    """Return, for each end, the row of the bar whose class dies there in the comparison image; −1: none."""
    row = np.full(len(own.levels[k]), -1, np.int64)
    row[bars[0]] = np.arange(len(bars[0]))
    birth = np.full(len(own.levels[k + 1]), -1, np.int64)
    birth[image[1]] = image[0]
    return row[birth[ends]]  # every end is in the image: the columns are the comparison image's


def _voxels(own: Filtration, k: int, cells: Cells) -> Pairs:
    return Pairs(own.voxels(k, cells[0]), own.voxels(k + 1, cells[1]))


def _checked(volume: Volume) -> Volume:
    if volume.ndim != 3 or not volume.size or not np.isfinite(volume).all():
        raise ValueError(f"a volume of three dimensions and finite values is needed, not one of shape {volume.shape}")
    return volume
