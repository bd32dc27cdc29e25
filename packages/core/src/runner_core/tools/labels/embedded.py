"""Judge labels of whole records by their embeddings: a record looks wrong that is more like those with another label.

Each label is a normal distribution of vectors, and all labels have one covariance (linear discriminant analysis), so
that directions in which records of one label differ anyway count little. It is computed from other groups, so that what
a plate has in common does not count. The vectors of two networks have nothing to do with each other, so each network
judges in its own space.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from runner_core.base.errors import BadInput
from runner_core.contract import Array
from runner_core.contract.records import AnyRecord
from runner_core.data.pipeline import CroppedRecord, local
from runner_core.tools.labels.evidence import Sign, compared
from runner_core.tools.labels.judge import Judged, WrongLabels
from runner_core.tools.labels.regions import Region
from runner_core.training.ensembles import Ensemble, Member

LIMIT = 3.5
"""Score from which a label is suspicious: lower than for other labels, whose scores have more than one part."""
SHRINKAGES = (1.0, 0.3, 0.1, 0.03, 0.01, 1e-3, 1e-4, 1e-5)
"""Shares of a sphere in the covariance. The one that agrees most with the labels of other groups is taken."""
_SIGN = Sign("likelihood", 0.1, False)


class Embedded:
    """The search for wrong labels among embeddings: `observe` every record, then `conclude`."""

    def __init__(self, ensemble: Ensemble) -> None:
        self.ensemble = ensemble
        self.records: list[AnyRecord] = []
        self.labels: list[str] = []
        self.vectors: list[list[Array]] = [[] for _ in ensemble.members]
        self.unlabelled: list[str] = []
        self.errors: list[str] = []

    def observe(self, record: AnyRecord) -> None:
        """Embed a record by every network; those trained on it only learn what its label looks like."""
        first = self.ensemble.members[0]
        wanted = first.combining.labels
        try:
            with local(first.project, record) as here:
                cropped = CroppedRecord(first.pipeline, here)
                label = None if wanted is None else wanted(here, cropped)
                if label is None:
                    self.unlabelled.append(record.key)
                    return
                found = [self._vector(member, cropped) for member in self.ensemble.members]
        except BadInput as error:
            self.errors.append(str(error))
            return
        for own, vector in zip(self.vectors, found, strict=True):
            own.append(vector)
        self.records.append(record)
        self.labels.append(str(label))

    @staticmethod
    def _vector(member: Member, cropped: CroppedRecord) -> Array:
        """Return the mean of a network's vectors of a record."""
        soft = next(iter(member.combining.soft(cropped, member.infer).values()))
        return np.asarray(soft.reshape(-1, soft.shape[-1]).mean(0, dtype=np.float64))

    def conclude(self) -> WrongLabels:
        """Compare the label of each record with the label that it looks like."""
        if not self.records:
            return WrongLabels((), (), self.unlabelled, self.errors)
        names, labels = np.unique(self.labels, return_inverse=True)
        groups = np.array([record.group for record in self.records])
        judges = np.array([[not m.trained_on(record) for record in self.records] for m in self.ensemble.members])
        spaces = [Space(np.stack(own), labels, groups, mine) for own, mine in zip(self.vectors, judges, strict=True)]
        counts = judges.sum(0)
        likely = self._together(sum(space.likely for space in spaces) / np.maximum(counts, 1)[:, None], counts > 0)
        said, margins = _margins(likely, labels)
        places = np.flatnonzero((counts > 0) & np.isfinite(margins))
        far = compared([margins[n, None] for n in places], (_SIGN,)) if len(places) else ()
        judged = []
        for n, own in zip(places, far, strict=True):
            label, other = self.labels[n], str(names[said[n]])
            numbers = {label: labels[n], other: said[n]}
            near = {name: self.records[self._nearest(n, number, spaces)] for name, number in numbers.items()}
            why, region = _text(label, other, float(margins[n]))
            judged.append(Judged(self.records[n], float(own[0]), why, region, int(counts[n]), nearest=near))
        judged.sort(key=lambda one: -one.score)
        keys = np.array([record.key for record in self.records])
        alone = keys[(counts > 0) & ~np.isfinite(margins)]
        return WrongLabels(judged, keys[counts == 0].tolist(), self.unlabelled, self.errors, alone.tolist(), LIMIT)

    def _together(self, likely: Array, judged: Array) -> Array:
        """Return (N, K) with the mean of all judged records that have one carrier, such as the fields of a well."""
        carrier = self.ensemble.combining.carrier
        if carrier is None:
            return likely
        _, number = np.unique([carrier(record) for record in self.records], return_inverse=True)
        sums = np.zeros((number.max() + 1, likely.shape[1]))
        np.add.at(sums, number[judged], likely[judged])
        counts = np.bincount(number[judged], minlength=len(sums))
        return np.asarray((sums / np.maximum(counts, 1)[:, None])[number])

    def _nearest(self, n: Any, label: Any, spaces: Sequence[Space]) -> int:
        """Return the place of the nearest record in other groups with this label, by the networks that judge."""
        space = spaces[0]
        own = np.flatnonzero((space.labels == label) & (space.groups != space.groups[n]))
        far = sum(((one.white[own] - one.white[n]) ** 2).sum(1) for one in spaces if one.judges[n])
        return int(own[np.argmin(far)])


def _text(label: str, other: str, margin: float) -> tuple[str, list[Region]]:
    """Return what a record looks like, and a region for the whole of it if it looks wrong."""
    why = f"it is {'more' if margin > 0 else 'less'} like records of other groups labelled {other} than like those"
    return f"{why} labelled {label}", [Region((), (), 0, margin, label, other)] if margin > 0 else []


class Space:
    """The vectors of one network (N, D), with labels (N,), groups (N,), and the records that it may judge (N,)."""

    def __init__(self, vectors: Array, labels: Array, groups: Array, judges: Array) -> None:
        """Choose the covariance that agrees most with the labels of other groups."""
        self.labels, self.groups, self.judges = labels, groups, judges
        vectors = vectors - vectors.mean(0)
        found = np.zeros((len(SHRINKAGES), len(labels), int(labels.max()) + 1), np.float32)
        for group in np.unique(groups[judges]):
            here = groups == group
            if not here.all():
                found[:, here] = list(_likely(vectors[~here], labels[~here], vectors[here], found.shape[2]))
            else:
                found[:, here] = -np.inf
        best = int(np.argmax([_agreement(own[judges], labels[judges]) for own in found]))
        self.likely = np.where(judges[:, None], found[best], 0)
        """Logarithms (N, K) of how likely each label is, −∞ if no other group has it; 0 of records not judged."""
        self.likely /= _usual_gap(self.likely[judges])
        axes, _, scales = _fitted(vectors, labels)
        self.white = vectors @ (axes * np.sqrt(scales(SHRINKAGES[best])))


def _agreement(likely: Array, labels: Array) -> float:
    """Return by how many standard deviations the records' labels are likelier than the best of the others."""
    margins = _margins(likely, labels)[1]
    known = margins[np.isfinite(margins)]
    return -float(known.mean() / max(float(known.std()), 1e-12)) if known.size else 0.0


def _margins(likely: Array, labels: Array) -> tuple[Array, Array]:
    """Return the likeliest other label of each record, and by how much it is likelier than its own.

    That is not finite where no other group has the label, or only that one.
    """
    every, others = np.arange(len(labels)), likely.copy()
    others[every, labels] = -np.inf
    said = others.argmax(1)
    with np.errstate(invalid="ignore"):
        return said, others[every, said] - likely[every, labels]


def _usual_gap(likely: Array) -> float:
    """Return the median difference between the two likeliest labels, which brings networks to one scale."""
    best = np.sort(likely, axis=1)[:, -2:]
    gaps = np.diff(best[np.isfinite(best).all(1)], axis=1)
    return max(float(np.median(gaps)), 1e-6) if gaps.size else 1.0


def _fitted(vectors: Array, labels: Array) -> tuple[Array, Array, Callable[[float], Array]]:
    """Return the axes of the labels' common covariance, their means, and its inverse along the axes for a shrinkage."""
    names, number = np.unique(labels, return_inverse=True)
    means = np.stack([vectors[labels == k].mean(0) for k in names])
    rest = vectors - means[number]
    spread, axes = np.linalg.eigh(rest.T @ rest / len(rest))
    middle = max(float(spread.mean()), 1e-12)
    return axes, means, lambda shrinkage: 1 / ((1 - shrinkage) * np.maximum(spread, 0) + shrinkage * middle)


def _likely(known: Array, labels: Array, vectors: Array, count: int) -> Iterator[Array]:
    """Yield for each of `SHRINKAGES` the logarithm (n, count) of how likely each label is, by what is known."""
    axes, means, scales = _fitted(known, labels)
    there, here = means @ axes, vectors @ axes
    for shrinkage in SHRINKAGES:
        scale = scales(shrinkage)
        found = np.full((len(vectors), count), -np.inf)
        found[:, np.unique(labels)] = (here * scale) @ there.T - 0.5 * (there * there * scale).sum(1)
        yield found
