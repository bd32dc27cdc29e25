"""Find the cores of a tissue microarray in a map of its tissue: their grid, its rotation, and each core's place.

Cores are discs on a grid that may be turned by some degrees. Some are missing, some torn. A disc of the cores' size is
slid over the tissue; where most tissue lies below it, a core begins. The grid grows from the best core to its
neighbours, and is fitted (six numbers of an affine map) to all cores found, again and again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from runner_core import BadInput, otsu_threshold

Array = np.ndarray[Any, np.dtype[Any]]

_ACROSS = 24
"""Pixels of a core's diameter on the map that is searched."""
_LEAST = 0.12
"""Least share of a core's disc that is tissue. Less is a missing core."""
_APART = 0.75
"""Cores are at least this many diameters apart."""
_NEAR = 0.3
"""A core lies at most this share of the pitch from its place on the grid."""
_STEEPEST = 12.0
"""Largest rotation of the grid (degrees) that is told from the other direction of its rows."""


@dataclass(frozen=True)
class Spot:
    """A place of the grid: `row` and `column` from 0, its middle `y`, `x` (pixels), and the share of tissue there."""

    row: int
    column: int
    y: float
    x: float
    tissue: float

    @property
    def found(self) -> bool:
        """Return whether there is a core."""
        return self.tissue > 0

    @property
    def name(self) -> str:
        """Return the name of the place, such as A1: a letter for the row, a number for the column."""
        return row_name(self.row) + str(self.column + 1)


@dataclass(frozen=True)
class Grid:
    """Spots by row and column, all of a rectangle; `diameter` and `pitch` in pixels, `angle` in degrees, clockwise."""

    spots: Mapping[tuple[int, int], Spot]
    diameter: float
    pitch: tuple[float, float]
    angle: float


def row_name(row: int) -> str:
    """Return the letters of a row.

    >>> row_name(0), row_name(25), row_name(26)
    ('A', 'Z', 'AA')
    """
    letters = ""
    row += 1
    while row:
        row, digit = divmod(row - 1, 26)
        letters = chr(ord("A") + digit) + letters
    return letters


def tissue_of(area: Array, measured: Array) -> Array:
    """Return the tissue (H, W) bool of a map of the amide-I area, by Otsu's threshold of its logarithm."""
    values = area[measured]
    low, high = np.percentile(values, (1, 99)) if values.size else (0.0, 0.0)
    if high <= max(low, 0):
        raise BadInput("no tissue stands out in it")
    heights = np.log(area.clip(max(-low, 0.02 * high)))
    return np.asarray(measured & (heights > otsu_threshold(heights[measured])))


def find(tissue: Array, diameter: float | None = None) -> Grid:
    """Return the grid of cores in `tissue` (H, W) bool. `diameter` (pixels) is found if it is not given.

    Raises BadInput if there are fewer than two cores.
    """
    diameter = diameter or _diameter(tissue)
    factor = max(1, round(diameter / _ACROSS))
    coarse = binned(tissue.astype(np.float32), factor)
    across = diameter / factor
    places, shares = _discs(coarse, across)
    if len(places) < 2:
        found = "one core" if len(places) else "no core"
        raise BadInput(f"{found} of about {diameter:.0f} pixels found: two or more make a grid")
    index, grid = _grown(places, shares)
    spots = _spots(coarse, across, places, shares, index, grid)
    scaled = {
        key: replace(spot, y=(spot.y + 0.5) * factor - 0.5, x=(spot.x + 0.5) * factor - 0.5)
        for key, spot in spots.items()
    }
    down, right = grid[:2] * factor
    return Grid(
        scaled,
        diameter,
        (float(np.hypot(*down)), float(np.hypot(*right))),
        float(np.degrees(np.arctan2(right[0], right[1]))),
    )


def binned(image: Array, factor: int) -> Array:
    """Return the means of squares of `factor`² pixels; what is left over at the ends is filled up with 0."""
    padded = np.pad(image, [(0, -length % factor) for length in image.shape])
    rows, columns = (length // factor for length in padded.shape)
    return np.asarray(padded.reshape(rows, factor, columns, factor).mean((1, 3)))


def _diameter(tissue: Array) -> float:
    """Return the diameter of the cores: the median extent of the pieces of tissue, each weighted by its area."""
    from scipy import ndimage

    factor = max(1, max(tissue.shape) // 1024)
    coarse = ndimage.binary_closing(binned(tissue.astype(np.float32), factor) > 0.3, iterations=2)
    pieces, count = ndimage.label(coarse)
    if not count:
        raise BadInput("no tissue stands out in it")
    areas = np.bincount(pieces.ravel())[1:]
    extents = np.array([max(s.stop - s.start for s in found) for found in ndimage.find_objects(pieces)])
    order = np.argsort(extents)
    middle = np.searchsorted(np.cumsum(areas[order]), areas.sum() / 2)
    return float(extents[order][middle] * factor)


def _discs(coarse: Array, across: float) -> tuple[Array, Array]:
    """Return the middles (N, 2) of cores and the share of tissue in each, the fullest first."""
    from scipy import ndimage, signal

    reach = int(np.ceil(across / 2))
    y, x = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    disc = (y**2 + x**2 <= (across / 2) ** 2).astype(np.float32)
    filled = signal.fftconvolve(coarse, disc / disc.sum(), mode="same")
    # what lies close around a disc counts against it: the best place is the middle of a core, not any place inside
    ring = ((y**2 + x**2 <= (across / 2 + 1) ** 2) & (y**2 + x**2 > (across / 2 - 1) ** 2)).astype(np.float32)
    rated = filled - 0.25 * signal.fftconvolve(coarse, ring / ring.sum(), mode="same")
    rated = ndimage.gaussian_filter(rated, across / 12)
    places: list[Array] = []
    shares: list[float] = []
    peaks = np.argwhere((rated == ndimage.maximum_filter(rated, int(across * 0.5) | 1)) & (filled > _LEAST))
    for place in peaks[np.argsort(-rated[tuple(peaks.T)])]:
        if all(np.hypot(*(place - other)) > _APART * across for other in places):
            places.append(place)
            shares.append(float(filled[tuple(place)]))
    return np.array([_middle(coarse, place, across) for place in places]).reshape(-1, 2), np.array(shares)


def _middle(coarse: Array, place: Array, across: float) -> Array:
    """Return the middle of the tissue's extent near a place: that of a torn core is nearer to it than its centroid."""
    reach = int(0.6 * across)
    first = np.maximum(place - reach, 0)
    part = coarse[first[0] : place[0] + reach + 1, first[1] : place[1] + reach + 1] > 0.5
    rows, columns = np.nonzero(part)
    if not rows.size:
        return place.astype(np.float64)
    ends = np.array([np.percentile(rows, (2, 98)), np.percentile(columns, (2, 98))])
    full = (ends[:, 1] - ends[:, 0]) > 0.85 * across
    return np.where(full, first + ends.mean(1), place)


def _grown(places: Array, shares: Array) -> tuple[Array, Array]:
    """Return row and column of each core (N, 2), −1e9 off the grid, and the affine map (3, 2): down, right, origin."""
    down, right = _steps(places)
    index = np.full(places.shape, -(10**9))
    rated = [(np.hypot(*(places - place).T) < 1.5 * max(np.hypot(*down), np.hypot(*right))).sum() for place in places]
    first = int(np.lexsort((shares, rated))[-1])
    index[first] = 0
    waiting = [first]
    while waiting:
        here = waiting.pop(0)
        for way in (
            (1, 0),
            (-1, 0),
            (0, 1),
            (0, -1),
            (2, 0),
            (-2, 0),
            (0, 2),
            (0, -2),
            (1, 1),
            (-1, -1),
            (1, -1),
            (-1, 1),
        ):
            aim = places[here] + way[0] * down + way[1] * right
            distance = np.hypot(*(places - aim).T)
            near = int(distance.argmin())
            if index[near, 0] < -(10**8) and distance[near] < _NEAR * min(np.hypot(*down), np.hypot(*right)):
                index[near] = index[here] + way
                waiting.append(near)
    grid = _fitted(places, index, down, right)
    for _ in range(5):  # cores that no neighbour led to, and none that strayed
        exact = np.linalg.solve(grid[:2].T, (places - grid[2]).T).T
        rounded = np.rint(exact).astype(int)
        off = np.hypot(*(places - grid[2] - rounded @ grid[:2]).T)
        index = np.where((off < _NEAR * min(np.hypot(*grid[0]), np.hypot(*grid[1])))[:, None], rounded, -(10**9))
        grid = _fitted(places, index, grid[0], grid[1])
    used = index[:, 0] > -(10**8)
    start = index[used].min(0)
    grid[2] += start @ grid[:2]
    return np.where(used[:, None], index - start, index), grid


def _fitted(places: Array, index: Array, down: Array, right: Array) -> Array:
    used = index[:, 0] > -(10**8)
    rows = index[used].astype(np.float64)
    weights = 1e-3  # holds a direction in which there is one core only
    design = np.vstack([np.hstack([rows, np.ones((len(rows), 1))]), weights * np.eye(3)[:2]])
    target = np.vstack([places[used], weights * np.stack([down, right])])
    return np.asarray(np.linalg.lstsq(design, target, rcond=None)[0])


def _steps(places: Array) -> tuple[Array, Array]:
    """Return the steps (y, x) from a core to the one below it and to the one on its right."""
    away = places[None] - places[:, None]
    distance = np.hypot(away[..., 0], away[..., 1])
    np.fill_diagonal(distance, np.inf)
    nearest = float(np.median(distance.min(1)))
    y, x = away[..., 0], away[..., 1]
    slope = np.tan(np.radians(_STEEPEST))
    pairs = distance < 1.9 * nearest
    found: list[Array | None] = []
    for along, across in ((y, x), (x, y)):
        steps = away[pairs & (along > 0) & (np.abs(across) <= slope * along)]
        if not len(steps):
            found.append(None)
            continue
        lengths = np.hypot(*steps.T)
        short = steps[lengths < 1.25 * np.percentile(lengths, 10)]
        found.append(np.median(short if len(short) else steps, axis=0))
    down, right = found
    if down is None and right is None:
        raise BadInput(f"its cores lie on no grid, or on one turned by more than {_STEEPEST:.0f}°")
    if down is None:
        assert right is not None
        down = np.array([right[1], -right[0]])  # one row
    if right is None:
        right = np.array([-down[1], down[0]])
    return down, right


def _spots(
    coarse: Array, across: float, places: Array, shares: Array, index: Array, grid: Array
) -> dict[tuple[int, int], Spot]:
    """Return all places of the grid, each with the core that lies nearest to it, if any."""
    best: dict[tuple[int, int], int] = {}
    for n, (row, column) in enumerate(index.tolist()):
        if row >= 0 and shares[n] > shares[best.get((row, column), n)] - 1e-9:
            best[row, column] = n
    rows, columns = (1 + max(place[axis] for place in best) for axis in (0, 1))
    spots = {}
    for row in range(rows):
        for column in range(columns):
            y, x = grid[2] + row * grid[0] + column * grid[1]
            share = _share(coarse, y, x, across)
            if (row, column) in best:
                core = best[row, column]
                (y, x), share = places[core], float(shares[core])
            spots[row, column] = Spot(row, column, float(y), float(x), share)
    return spots


def _share(coarse: Array, y: float, x: float, across: float) -> float:
    """Return the share of tissue in the disc around a place where no core was seen, 0 if it is as little as debris."""
    rows, columns = np.ogrid[: coarse.shape[0], : coarse.shape[1]]
    disc = (rows - y) ** 2 + (columns - x) ** 2 <= (across / 2) ** 2
    share = float(coarse[disc].mean()) if disc.any() else 0.0
    return share if share > 2 * _LEAST else 0.0
