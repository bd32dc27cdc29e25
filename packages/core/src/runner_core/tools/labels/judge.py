"""Judge the labels of records by networks that never saw them; nothing is changed.

Each record is predicted once. Its outputs lie in a temporary folder until thresholds are known from all records, so
one record is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from runner_core.base.errors import BadInput
from runner_core.contract import Array, Json
from runner_core.contract.facets import Combining
from runner_core.contract.records import AnyRecord
from runner_core.data.pipeline import CroppedRecord, local
from runner_core.tools.labels.confident import IGNORED, Classes, Values, probabilities
from runner_core.tools.labels.evidence import compared, evidence, evidence_of_values, signs, text, total
from runner_core.tools.labels.regions import Region, regions
from runner_core.training.ensembles import Ensemble

FEW = 10
"""Number of records below which it is hardly known what is usual."""


@dataclass(frozen=True)
class Stored:
    """A file with what the networks said of a record, and its label."""

    record: AnyRecord
    file: Path
    origin: tuple[int, ...]
    """Place of the arrays in the grid of the decoded record."""
    networks: int

    def arrays(self) -> tuple[Array, Array, Array | None]:
        """Return the soft output, the labels, and how much several networks disagree."""
        with np.load(self.file) as found:
            names = [*found.files]
            soft, labels = found["soft"], found["labels"]
            spread = found["spread"].astype(np.float32) if "spread" in names else None
        soft = soft if soft.dtype == np.uint8 else soft.astype(np.float32)
        return soft, labels if labels.dtype.kind == "i" else labels.astype(np.float32), spread


@dataclass(frozen=True)
class Judged:
    """A record, and how far its label lies from what the networks say, compared with the other records."""

    record: AnyRecord
    score: float
    why: str
    regions: Sequence[Region]
    networks: int
    """Number of networks that judged: those that never saw the record."""
    stored: Stored | None = None
    nearest: Mapping[str, AnyRecord] = field(default_factory=dict)
    """For embeddings, the nearest record in other groups with the record's own label, and with the other one."""


@dataclass(frozen=True)
class WrongLabels:
    """Judged records, the most suspicious first, and why others were not judged."""

    judged: Sequence[Judged]
    seen: Sequence[str] = ()
    """Keys of the records that all networks were trained on."""
    unlabelled: Sequence[str] = ()
    errors: Sequence[str] = ()
    alone: Sequence[str] = ()
    """Keys of the records whose label no other group has, where labels of whole records are compared."""
    limit: float = 10.0
    """Score from which a label is suspicious."""

    def to_json(self) -> Json:
        return {
            "records": [
                {
                    "record": one.record.key,
                    "group": one.record.group,
                    "rank": rank,
                    "score": one.score,
                    "why": one.why,
                    "networks": one.networks,
                    "regions": [
                        {
                            "start": list(r.start),
                            "stop": list(r.stop),
                            "voxels": r.size,
                            "score": r.score,
                            "labelled": r.labelled,
                            "networks_say": r.said,
                        }
                        for r in one.regions
                    ],
                    "nearest": {label: near.key for label, near in one.nearest.items()},
                }
                for rank, one in enumerate(self.judged, 1)
            ],
            "suspicious_from": self.limit,
            "seen_by_all_networks": list(self.seen),
            "without_labels": list(self.unlabelled),
            "labels_of_one_group": list(self.alone),
            "errors": list(self.errors),
        }


Usual = Classes | Values
"""What is usual for the networks, known from all records."""


def nothing_known(combining: Combining) -> Usual:
    """Return what is usual before any record is observed."""
    return Classes(combining.classes) if combining.kind == "probabilities" else Values(combining.unit)


class Judging:
    """The search for wrong labels: `observe` every record, then `conclude`."""

    def __init__(self, ensemble: Ensemble, folder: Path) -> None:
        """Keep outputs in `folder`."""
        self.ensemble, self.folder = ensemble, folder
        self.usual = nothing_known(ensemble.combining)
        self.stored: list[Stored] = []
        self.seen: list[str] = []
        self.unlabelled: list[str] = []
        self.errors: list[str] = []

    def observe(self, record: AnyRecord) -> None:
        """Predict a record by the networks that never saw it."""
        if self.ensemble.trained_on(record):
            self.seen.append(record.key)
            return
        members = self.ensemble.members_for(record)
        project = members[0].project
        try:
            with local(project, record) as here:
                cropped = CroppedRecord(members[0].pipeline, here)
                wanted = members[0].combining.labels
                labels = None if wanted is None else wanted(here, cropped)
                if labels is None:
                    self.unlabelled.append(record.key)
                    return
                spread = None
                if len(members) > 1:
                    found, spread = self.ensemble.soft_and_spread(cropped)
                else:
                    found = self.ensemble.soft(cropped)
                soft = next(iter(found.values()))
                if labels.ndim == 0:  # a class or a value of the whole record
                    soft, labels, spread = soft[..., None], labels[None], spread if spread is None else spread[None]
                self._keep(record, cropped.box.start, soft, labels, spread, len(members))
        except BadInput as error:
            self.errors.append(str(error))

    def _keep(
        self, record: AnyRecord, origin: tuple[int, ...], soft: Array, labels: Array, spread: Array | None, count: int
    ) -> None:
        kept = Stored(record, self.folder / f"{len(self.stored)}.npz", origin, count)
        # float16 is fine enough for probabilities; values can be larger than it holds
        real = np.float16 if isinstance(self.usual, Classes) else np.float32
        packed: dict[str, Any] = {
            "soft": soft if soft.dtype == np.uint8 else soft.astype(real),
            "labels": labels.astype(np.int16 if isinstance(self.usual, Classes) else np.float32),
        }
        if spread is not None:
            packed["spread"] = spread.astype(real)
        np.savez_compressed(kept.file, **packed)
        self.stored.append(kept)
        self.usual.observe(*kept.arrays())

    def conclude(self) -> WrongLabels:
        """Compare each record with the others."""
        rows, found = [], []
        of = signs(0)
        for kept in self.stored:
            soft, labels, spread = kept.arrays()
            row, worst = measured(self.usual, soft, labels, spread)
            of = signs(labels.ndim, isinstance(self.usual, Values))
            rows.append(row)
            found.append([moved(region, kept.origin) for region in worst])
        if not rows:
            return WrongLabels((), self.seen, self.unlabelled, self.errors)
        far = compared(rows, of)
        middle = np.median(np.stack(rows), axis=0)
        judged = [
            Judged(kept.record, total(own), text(of, own, row - middle), worst, kept.networks, kept)
            for kept, own, row, worst in zip(self.stored, far, rows, found, strict=True)
        ]
        judged.sort(key=lambda one: -one.score)
        return WrongLabels(judged, self.seen, self.unlabelled, self.errors)


def measured(usual: Usual, soft: Array, labels: Array, spread: Array | None) -> tuple[Array, list[Region]]:
    """Return a record's evidence and its worst regions."""
    margins, kind = usual.wrong(soft, labels, spread)
    worst = regions(margins, kind, usual.kinds())
    known = labels != IGNORED if labels.dtype.kind == "i" else np.isfinite(labels)
    pairs = _pairs(usual, soft, labels)
    found = evidence(pairs, known, margins, worst[0].score if worst else 0.0)
    return np.append(found, evidence_of_values(soft, labels)) if isinstance(usual, Values) else found, worst


def _pairs(usual: Usual, soft: Array, labels: Array) -> Iterator[tuple[Array, Array]]:
    """Yield what the networks and the label say, class by class; the most common class is what the others leave."""
    if isinstance(usual, Values):
        yield soft, np.nan_to_num(labels)
        return
    found = probabilities(soft)
    for k in usual.foreground:
        yield found[k], (labels == k).astype(np.float32)


def moved(region: Region, origin: tuple[int, ...]) -> Region:
    start, stop = (tuple(a + b for a, b in zip(end, origin, strict=False)) for end in (region.start, region.stop))
    return replace(region, start=start, stop=stop)
