"""The records that can be used, with what is known of each and the side of the split on which it lies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from runner_core.audit.examine import Examined
from runner_core.audit.facts import RecordFacts
from runner_core.project import Annotation, AnyRecord


@dataclass(frozen=True)
class Checked:
    """`found` is parallel to `records`; `sides` maps train, validation and test to their numbers, and is empty where
    there is no split."""

    records: Sequence[AnyRecord]
    found: Sequence[Examined]
    sides: Mapping[str, Sequence[int]]
    faulty: int = 0
    """Records that cannot be used: nobody knows what they hold."""

    @property
    def parts(self) -> dict[str, Sequence[int]]:
        """The sides that have records."""
        return {side: numbers for side, numbers in self.sides.items() if numbers}

    def facts(self, numbers: Iterable[int] | None = None) -> Iterator[tuple[AnyRecord, RecordFacts]]:
        """Of these records, of all without `numbers`."""
        for number in range(len(self.records)) if numbers is None else numbers:
            if (known := self.found[number].facts) is not None:
                yield self.records[number], known

    def balance(self, numbers: Iterable[int] | None = None) -> Balance:
        """How these records (all without `numbers`) are labelled together."""
        return _balance([known.annotation for _, known in self.facts(numbers) if known.annotation is not None])


class Balance(NamedTuple):
    """Voxels of `records` labelled ones together. `having`: how many of them have the class at all."""

    records: int
    counts: Mapping[str, int]
    having: Mapping[str, int]
    annotated: int
    ignored: int | None

    def share(self, name: str) -> float:
        """Of a class, of the voxels that are not ignored."""
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
