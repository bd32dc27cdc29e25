"""The usable records, with what is known of each and its split."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from runner_core.contract.records import Annotation, AnyRecord
from runner_core.tools.check.examine import Examined
from runner_core.tools.check.facts import RecordFacts


@dataclass(frozen=True)
class Checked:
    """Usable records.

    `found` is parallel to `records`. `splits` maps train, validation and test to record numbers, and is empty without a
    split.
    """

    records: Sequence[AnyRecord]
    found: Sequence[Examined]
    splits: Mapping[str, Sequence[int]]
    faulty: int = 0
    """Number of records that cannot be used, whose content is unknown."""

    @property
    def parts(self) -> dict[str, Sequence[int]]:
        """The splits that have records."""
        return {side: numbers for side, numbers in self.splits.items() if numbers}

    def facts(self, numbers: Iterable[int] | None = None) -> Iterator[tuple[AnyRecord, RecordFacts]]:
        """Yield facts about these records, or about all without `numbers`."""
        for number in range(len(self.records)) if numbers is None else numbers:
            if (known := self.found[number].facts) is not None:
                yield self.records[number], known

    def balance(self, numbers: Iterable[int] | None = None) -> Balance:
        """Return how these records (all without `numbers`) are labelled together."""
        return _balance([known.annotation for _, known in self.facts(numbers) if known.annotation is not None])


class Balance(NamedTuple):
    """Voxel counts of all labelled records; `having` counts the records that have a class at all."""

    records: int
    counts: Mapping[str, int]
    having: Mapping[str, int]
    annotated: int
    ignored: int | None

    def share(self, name: str) -> float:
        """Return a class's share of the voxels that are not ignored."""
        return self.counts.get(name, 0) / max(1, self.annotated)

    @property
    def ignored_share(self) -> float:
        return (self.ignored or 0) / max(1, self.annotated + (self.ignored or 0))


def _balance(annotations: Sequence[Annotation]) -> Balance:
    counts: Counter[str] = Counter()
    having: Counter[str] = Counter()
    for annotation in annotations:
        counts.update(annotation.counts)
        having.update({name: int(count > 0) for name, count in annotation.counts.items()})
    ignored = [annotation.ignored for annotation in annotations if annotation.ignored is not None]
    annotated = sum(annotation.annotated for annotation in annotations)
    return Balance(len(annotations), counts, having, annotated, sum(ignored) if ignored else None)
