"""Judge labels of whole records by their embeddings: a record whose neighbours carry another label looks wrong.

The vectors of two networks have nothing to do with each other, so each network finds neighbours by itself. Neighbours
lie in other groups, so that what a plate has in common does not count.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from runner_core.base.errors import BadInput
from runner_core.contract import Array
from runner_core.contract.records import AnyRecord
from runner_core.data.pipeline import CroppedRecord, local
from runner_core.tools.labels.evidence import Sign, compared
from runner_core.tools.labels.judge import Judged, WrongLabels
from runner_core.tools.labels.regions import Region
from runner_core.training.ensembles import Ensemble, Member

NEAREST = 3
"""Number of nearest records of each label that are looked at."""
LIMIT = 5.0
"""Score from which a label is suspicious: lower than for other labels, whose scores have more than one part."""
_SIGN = Sign("neighbours", 0.02, False)


class Neighbours:
    """The search for wrong labels among embeddings: `observe` every record, then `conclude`."""

    def __init__(self, ensemble: Ensemble) -> None:
        self.ensemble = ensemble
        self.records: list[AnyRecord] = []
        self.labels: list[str] = []
        self.vectors: list[list[Array]] = [[] for _ in ensemble.members]
        self.unlabelled: list[str] = []
        self.errors: list[str] = []

    def observe(self, record: AnyRecord) -> None:
        """Embed a record by every network; those that were trained on it only find neighbours for others."""
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
        return np.asarray(soft.reshape(-1, soft.shape[-1]).mean(0, dtype=np.float64), np.float32)

    def conclude(self) -> WrongLabels:
        """Compare the label of each record with those of its neighbours."""
        spaces = [_unit(np.stack(own)) for own in self.vectors if own]
        groups = np.array([record.group for record in self.records])
        found, margins, seen, alone = [], [], [], []
        for n, (record, label) in enumerate(zip(self.records, self.labels, strict=True)):
            pairs = zip(self.ensemble.members, spaces, strict=True)
            judges = [space for member, space in pairs if not member.trained_on(record)]
            if not judges:
                seen.append(record.key)
                continue
            near = self._near(n, judges, np.flatnonzero(groups != record.group))
            if label not in near or len(near) < 2:
                alone.append(record.key)
                continue
            said = max((other for other in near if other != label), key=lambda other: near[other])
            margins.append(np.array([near[said] - near[label]]))
            found.append((record, label, said, len(judges)))
        if not found:
            return WrongLabels((), seen, self.unlabelled, self.errors, alone)
        judged = []
        for (record, label, said, count), own, far in zip(found, margins, compared(margins, (_SIGN,)), strict=True):
            nearer = "nearer" if own[0] > 0 else "no nearer"
            why = f"its neighbours in other groups labelled {said} are {nearer} than those labelled {label}"
            region = [Region((), (), 0, float(own[0]), label, said)] if own[0] > 0 else []
            judged.append(Judged(record, float(far[0]), why, region, count))
        judged.sort(key=lambda one: -one.score)
        return WrongLabels(judged, seen, self.unlabelled, self.errors, alone, LIMIT)

    def _near(self, n: int, spaces: list[Array], others: Array) -> dict[str, float]:
        """Return the mean cosine to the nearest records of each label among `others`, over the networks' spaces."""
        near = defaultdict(list)
        for space in spaces:
            cosines = space[others] @ space[n]
            own: dict[str, list[float]] = defaultdict(list)
            for place in np.argsort(-cosines, kind="stable"):
                if len(kept := own[self.labels[others[place]]]) < NEAREST:
                    kept.append(float(cosines[place]))
            for label, values in own.items():
                near[label].append(float(np.mean(values)))
        return {label: float(np.mean(values)) for label, values in near.items()}


def _unit(vectors: Array) -> Array:
    """Return vectors of length 1 whose every axis had mean 0 and deviation 1 over the records."""
    scaled = (vectors - vectors.mean(0)) / np.maximum(vectors.std(0), 1e-6)
    return np.asarray(scaled / np.maximum(np.linalg.norm(scaled, axis=1, keepdims=True), 1e-6), np.float32)
