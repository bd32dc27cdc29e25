"""Find records that hold the same scan, stored in another way: resampled, mirrored, cut, with other grey values.

Fingerprints of all records are compared at a low resolution in every orientation. The pairs that are most alike are
laid over each other and compared in detail. What counts as alike depends on the data: heads in one atlas resemble each
other more than fields of cells do, so a copy must be nearer to its original than most records are to others. Copies
of one scan are copies of each other: a pair is left out if a much nearer copy of one record is no copy of the other.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import permutations, product
from typing import NamedTuple

import numpy as np

from runner_core.base.text import shape_text
from runner_core.contract import Finding
from runner_core.contract.records import AnyRecord
from runner_core.contract.values import Array
from runner_core.data.fingerprints import SIDES, Fingerprint, interpolated

_LOW = {2: 16, 3: 8}
"""Side at which all pairs are compared, by the number of axes."""
_COMPONENTS = 64
"""Numbers of a picture at that side that are compared: its principal components."""
_RESERVE = 10
"""With fewer records than this, their mean is hardly known, and hardly subtracted."""
_FLOOR = 0.5
"""Correlation at that side below which a pair is never a copy."""
_PARTNERS = 4
"""Number of most similar records that each record may be compared with in detail."""
_PAIRS = 1500
"""Largest number of pairs that are compared in detail; the most similar ones come first."""
_SAMPLE = 40
"""Number of records whose less similar partners show how alike the records of this data set usually are."""
_BLOCK = 256
"""Records whose similarities to all others are in memory at once."""
_ORIENTATIONS = 3
"""Most similar orientations of a pair that are tried."""
_NEAR = 2
"""Voxels of a fingerprint to each side over which a local mean is taken; what differs from that is its detail."""
_FARTHEST = 0.15
"""Largest shift, and largest change of a side, that is undone, as a share of the side."""
_OVERLAP = 0.7
"""Least share of a fingerprint that must lie within the other."""
_HOPELESS = 0.6
"""Likeness at half the resolution below which a pair is not looked at more closely."""
_MOVED = 0.02
"""Shift, or change of a side, that is worth a word."""
_STRICT, _USUAL, _LAX = 0.03, 0.12, 0.2
"""Largest difference of a copy: if all records resemble each other, if nothing is known of that, if none do."""
_CLOSE, _NEARER = 0.1, 2.0
"""How many times nearer a copy must be than the second most similar record is, for this share of the records."""


class Orientation(NamedTuple):
    """The second record's axes in the order of the first's, and which of the first's are reversed."""

    axes: tuple[int, ...]
    reversed: tuple[bool, ...]

    def of(self, array: Array) -> Array:
        return np.transpose(array, self.axes)[tuple(slice(None, None, -1 if back else 1) for back in self.reversed)]


LEAK = "near copies"
"""Rule of records in two groups that hold the same scan."""
_SHOWN = 20


def find_near_duplicates(
    records: Sequence[AnyRecord],
    fingerprints: Sequence[Fingerprint | None],
    digests: Sequence[str | None],
    different: Sequence[str],
) -> list[Finding]:
    """Return an error for each pair of records in two groups that hold the same scan, stored in another way.

    Equal `digests` are exact duplicates, reported elsewhere. No two records with keys in `different` are duplicates.
    """
    files = [str(next(iter(record.files.values()), record.key)) for record in records]
    found = [
        f"{one.key} (group {one.group}) and {other.key} (group {other.group}) hold the same scan, {pair.likeness:.0%} "
        f"alike; the second is {pair.how}. If a split parts the groups, scores are those of data seen in training. Put "
        f"both into one group, or remove one. If they are different scans: "
        f"--different {shlex.quote(one.key)} {shlex.quote(other.key)}"
        for pair in near_duplicates(fingerprints, [[record.group for record in records], files, digests])
        for one, other in [(records[pair.first], records[pair.second])]
        if not {one.key, other.key} <= {*different}
    ]
    if len(found) > _SHOWN:
        found[_SHOWN:] = [
            f"{len(found) - _SHOWN:,} more pairs of records in different groups hold the same scan; "
            "they are named when fewer are left"
        ]
    return [Finding(LEAK, "error", text) for text in found]


@dataclass(frozen=True)
class NearDuplicate:
    """Two records by their numbers; `how` is text about the way from the first to the second."""

    first: int
    second: int
    likeness: float
    how: str


class _Pair(NamedTuple):
    """Two records laid over each other; `likeness` is the correlation of their details."""

    likeness: float
    orientation: Orientation
    moved: float


def near_duplicates(
    fingerprints: Sequence[Fingerprint | None], alike: Sequence[Sequence[object]]
) -> list[NearDuplicate]:
    """Return the near duplicates, the most similar pair first.

    `alike` holds sequences parallel to the records, such as their groups: two records of equal entries (not None) are
    not compared.
    """
    found: list[NearDuplicate] = []
    for axes in SIDES:
        numbers = [n for n, known in enumerate(fingerprints) if known is not None and known.picture.ndim == axes]
        some = [known for n in numbers if (known := fingerprints[n]) is not None]
        labels = _labels([[entries[n] for n in numbers] for entries in alike])
        for (one, other), pair in _copies(some, labels):
            how = _described(some[one], some[other], pair)
            found.append(NearDuplicate(numbers[one], numbers[other], pair.likeness, how))
    return sorted(found, key=lambda pair: -pair.likeness)


def _labels(alike: Iterable[Sequence[object]]) -> Array:
    """Return (records, sequences) whole numbers, equal for equal entries; each None has a number of its own."""
    columns = []
    for entries in alike:
        numbers: dict[object, int] = {}
        columns.append([numbers.setdefault(n if entry is None else (entry,), n) for n, entry in enumerate(entries)])
    return np.array(columns, np.intp).T


def _copies(fingerprints: Sequence[Fingerprint], labels: Array) -> Iterator[tuple[tuple[int, int], _Pair]]:
    """Yield the pairs that are nearer to each other than records of this data set usually are."""
    if len(fingerprints) < 2:
        return
    others, similar = _partners(fingerprints, labels)

    @cache
    def compared(one: int, other: int) -> _Pair:
        return _compared(fingerprints[one].picture, fingerprints[other].picture)

    most = _largest_distance(others, similar, compared)
    found: dict[tuple[int, int], _Pair] = {}
    for place in np.argsort(-similar, axis=None)[:_PAIRS]:
        one, rank = divmod(int(place), others.shape[1])
        if similar[one, rank] < _FLOOR:
            break
        other = int(others[one, rank])
        if 1 - (pair := compared(one, other)).likeness <= most:
            found[one, other] = pair
    for (one, other), pair in found.items():
        if not any(_denied(ends, pair, found, compared, labels, most) for ends in ((one, other), (other, one))):
            yield (one, other), pair


def _largest_distance(others: Array, similar: Array, compared: Callable[[int, int], _Pair]) -> float:
    """Return how far a copy may be from its original, by how near records usually are that are no copies.

    That is the distance to the second nearest record: the nearest one may be a copy, the second is one only where many
    are. Of many records a sample is looked at, which has many later records to be compared with.
    """
    count = len(others) if len(others) < 2 * _SAMPLE else len(others) // 2
    distances: dict[int, list[float]] = {}
    for one in range(0, count, max(1, count // _SAMPLE)):
        for other in others[one][similar[one] > -1].tolist():
            distance = 1 - compared(one, other).likeness
            distances.setdefault(one, []).append(distance)
            distances.setdefault(other, []).append(distance)
    usual = [sorted(own)[1] for own in distances.values() if len(own) > 1]
    return min(_LAX, max(_STRICT, float(np.quantile(usual, _CLOSE)) / _NEARER)) if usual else _USUAL


def _denied(
    ends: tuple[int, int],
    pair: _Pair,
    found: Mapping[tuple[int, int], _Pair],
    compared: Callable[[int, int], _Pair],
    labels: Array,
    most: float,
) -> bool:
    """Return whether the first record has a copy that is much nearer to it, and that is no copy of the second."""
    one, other = ends
    for (first, second), own in found.items():
        third = second if first == one else first
        if one not in (first, second) or third == other or (labels[third] == labels[other]).any():
            continue
        nearer = 1 - own.likeness < (1 - pair.likeness) / _NEARER
        if nearer and 1 - compared(min(third, other), max(third, other)).likeness > most:
            return True
    return False


def _partners(fingerprints: Sequence[Fingerprint], labels: Array) -> tuple[Array, Array]:
    """Return, for each record, the numbers of the most similar later records, and their similarities.

    What all records have in common is subtracted, so that two heads are alike only if they differ from other heads in
    the same way. A similarity of -1 stands for no record.
    """
    low = np.stack([_low(known.picture) for known in fingerprints])
    mean = low.mean(axis=0) * (len(low) / (len(low) + _RESERVE))
    all_ = _own(low, mean)
    basis = np.linalg.svd(all_[:: max(1, len(low) // 1000)], full_matrices=False)[2][:_COMPONENTS].T
    all_ = _unit(all_ @ basis)
    count = min(_PARTNERS, len(low) - 1)
    others, best = np.zeros((len(low), count), np.intp), np.full((len(low), count), -1, np.float32)
    for start in range(0, len(low), _BLOCK):
        some = low[start : start + _BLOCK]
        similar = np.full((len(some), len(low) - start), -1, np.float32)
        for order in _turned(fingerprints[0].picture.ndim):
            np.maximum(similar, _unit(_own(some[:, order], mean) @ basis) @ all_[start:].T, out=similar)
        same = (labels[start : start + _BLOCK, None] == labels[None, start:]).any(axis=2)
        similar[same | np.tri(*similar.shape, dtype=bool)] = -1
        kept = min(count, similar.shape[1])
        chosen = np.argpartition(-similar, kept - 1, axis=1)[:, :kept]  # sorting whole rows takes far longer
        near = np.take_along_axis(similar, chosen, axis=1)
        order = np.argsort(-near, axis=1)
        others[start : start + _BLOCK, :kept] = np.take_along_axis(chosen, order, axis=1) + start
        best[start : start + _BLOCK, :kept] = np.take_along_axis(near, order, axis=1)
    return others, best


def _own(low: Array, mean: Array) -> Array:
    """Return what differs from the mean of all records."""
    return _unit(low - mean)


def _unit(vectors: Array) -> Array:
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9), np.float32)


def _low(picture: Array) -> Array:
    """Return a picture at the low resolution as a vector of length 1, with mean 0."""
    return _normal(_shrunk(picture, _LOW[picture.ndim]).ravel())


def _normal(values: Array) -> Array:
    values = values - values.mean()
    return np.asarray(values / max(float(np.linalg.norm(values)), 1e-9), np.float32)


def _product(first: Array, second: Array) -> float:
    """Return the scalar product; unlike `@` it starts no threads, which cost more than so small a product."""
    return float(np.einsum("n,n->", first, second))


def _shrunk(picture: Array, side: int) -> Array:
    """Return the picture at a side that divides its own."""
    for axis in range(picture.ndim):
        parts = picture.reshape(*picture.shape[:axis], side, -1, *picture.shape[axis + 1 :])
        picture = parts.mean(axis=axis + 1, dtype=np.float32)
    return picture


@cache
def _orientations(axes: int) -> list[Orientation]:
    return [
        Orientation(order, back) for order in permutations(range(axes)) for back in product((False, True), repeat=axes)
    ]


@cache
def _turned(axes: int) -> Array:
    """Return (orientations, voxels): where each voxel of a turned picture of low resolution comes from."""
    places = np.arange(_LOW[axes] ** axes).reshape((_LOW[axes],) * axes)
    return np.stack([orientation.of(places).ravel() for orientation in _orientations(axes)])


def _compared(first: Array, second: Array) -> _Pair:
    """Lay the second picture over the first in the best orientation, and compare their details."""
    axes = first.ndim
    similar = np.einsum("on,n->o", _low(second)[_turned(axes)], _low(first))
    low = _shrunk(first, _LOW[axes])
    tried = []
    for number in np.argsort(-similar)[:_ORIENTATIONS]:
        turned = _orientations(axes)[number].of(second).astype(np.float32)
        start = _laid_over(low, _shrunk(turned, _LOW[axes]), np.zeros((2, axes)))
        tried.append((start.correlation, number, turned, start.placing))
    _, number, turned, placing = max(tried, key=lambda one: one[0])
    likeness = 0.0
    for side in (SIDES[axes] // 2, SIDES[axes]):
        one, other = _shrunk(first, side), _shrunk(turned, side)
        placing = _laid_over(one, other, placing).placing
        likeness = _in_detail(one, other, placing)
        if likeness < _HOPELESS:
            break
    return _Pair(likeness, _orientations(axes)[number], float(abs(placing).max()))


class _Laid(NamedTuple):
    correlation: float
    placing: Array
    """(2, axes): how much longer each side of the second picture is, and how far it is shifted, as shares of a side."""


def _laid_over(first: Array, second: Array, placing: Array, rounds: int = 3) -> _Laid:
    """Return the placing of the second picture that makes it most similar to the first (Gauss-Newton)."""
    axes, side = first.ndim, len(first)
    middle = np.stack(np.meshgrid(*[(np.arange(side) + 0.5) / side - 0.5] * axes, indexing="ij"))
    best = _Laid(-1.0, placing)
    for _ in range(rounds + 1):
        moved, inside = _placed(second, placing)
        if inside.mean() < _OVERLAP:
            break
        one, other = _normal(first[inside]), moved[inside] - moved[inside].mean()
        length = max(float(np.linalg.norm(other)), 1e-9)
        other /= length
        correlation = _product(one, other)
        if correlation > best.correlation:
            best = _Laid(correlation, placing)
        slopes = np.array(np.gradient(moved)) * (side / length) / (1 + placing[0]).reshape(-1, *[1] * axes)
        changes = np.concatenate([(slopes * middle)[:, inside], slopes[:, inside]])
        changes -= changes.mean(axis=1, keepdims=True)
        scaling = np.einsum("pn,n->p", changes, other)  # of grey values, which changes no correlation
        square = np.einsum("pn,qn->pq", changes, changes) - np.outer(scaling, scaling)
        square += np.eye(2 * axes) * (1e-3 * np.trace(square) / (2 * axes) + 1e-12)
        wanted = np.einsum("pn,n->p", changes, one) - correlation * scaling
        step = np.linalg.solve(square, wanted) / max(correlation, 0.1)
        placing = np.clip(placing + np.clip(step, -0.05, 0.05).reshape(2, axes), -_FARTHEST, _FARTHEST)
    return best


def _placed(picture: Array, placing: Array) -> tuple[Array, Array]:
    """Return the picture stretched and shifted, and where it has values."""
    side = len(picture)
    inside = np.ones(picture.shape, bool)
    for axis, (longer, shift) in enumerate(placing.T):
        places = 0.5 + (1 + longer) * ((np.arange(side) + 0.5) / side - 0.5) + shift
        inside &= ((places >= 0) & (places <= 1)).reshape([-1 if axis == n else 1 for n in range(picture.ndim)])
        picture = interpolated(picture, axis, places * side - 0.5)
    return picture, inside


def _in_detail(first: Array, second: Array, placing: Array) -> float:
    """Return the correlation of what differs from local means, where both pictures have values."""
    moved, inside = _placed(second, placing)
    return _product(_normal(_details(first)[inside]), _normal(_details(moved)[inside]))


def _details(picture: Array) -> Array:
    """Return what differs from the mean of the voxels around."""
    means, side = picture, len(picture)
    low, high = (np.clip(np.arange(side) + end, 0, side) for end in (-_NEAR, _NEAR + 1))
    for axis in range(picture.ndim):
        sums = np.cumsum(means, axis=axis, dtype=np.float64)
        sums = np.concatenate([np.zeros_like(np.take(sums, [0], axis)), sums], axis=axis)
        count = (high - low).reshape(-1, *[1] * (picture.ndim - axis - 1))
        means = (np.take(sums, high, axis) - np.take(sums, low, axis)) / count
    return picture - means


def _described(first: Fingerprint, second: Fingerprint, pair: _Pair) -> str:
    """Return what was done to the first to get the second."""
    order, back = pair.orientation
    turned = tuple(first.shape[order.index(axis)] for axis in range(len(order)))
    said = []
    if order != tuple(range(len(order))):
        said.append(f"turned (axes {', '.join(map(str, order))})")
    if any(back):
        said.append(
            f"mirrored along {'axis' if sum(back) == 1 else 'axes'} {', '.join(map(str, np.flatnonzero(back)))}"
        )
    if turned != second.shape:
        said.append(f"resampled or cut ({shape_text(turned)} to {shape_text(second.shape)})")
    if pair.moved > _MOVED:
        said.append(f"moved or cut by {pair.moved:.0%}")
    if (first.low, first.high) != (second.low, second.high):
        said.append("with other grey values")
    return ", ".join(said) or "saved again with small changes"
