"""Read every record once, and keep what `check` needs to know of it.

`examine` decodes and prepares each record as for training, in one process per core. `RecordFacts` holds sizes, grey
values and labels; `Checked` the usable records with their split.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import xxhash

from runner_core.base.errors import BadInput
from runner_core.contract import Array, Finding
from runner_core.contract.records import Annotation, AnyRecord, Decoded, Record
from runner_core.contract.setup import Setup
from runner_core.data.cache.build import run_all
from runner_core.data.cache.identity import files_below
from runner_core.data.fingerprints import Fingerprint, fingerprint
from runner_core.data.pipeline import RecordPipeline, local

_SAMPLE = 1 << 17
"""Least number of values sampled from a larger array.

They suffice to distinguish 256 grey values from thousands within milliseconds.
"""
GREY = 32
"""Number of different values below which an array is a mask or a label map, which often has its highest value."""


@dataclass(frozen=True)
class Levels:
    """Grey values of an array.

    `low` and `high` are exact. The rest comes from a sample of `seen` values, evenly spread over the array. NaN and
    infinite values count only in `bad`, their share of the sample. An array of such values alone, and an empty one, has
    NaN for `low` and `high`.
    """

    low: float
    high: float
    distinct: int
    seen: int
    highest: float
    """Share of the sample that equals `high`."""
    bad: float = 0.0

    @property
    def constant(self) -> bool:
        """True if all values are equal, or there are none."""
        return not self.low < self.high

    @property
    def spread(self) -> float:
        return self.high - self.low


def levels(array: Array) -> Levels | None:
    """Return the grey values of numbers and booleans, or None for other types (text, complex numbers)."""
    if array.dtype.kind == "b":
        array = array.view(np.uint8)
    if array.dtype.kind not in "iuf":
        return None
    some = _sample(array)
    if not some.size:
        return Levels(math.nan, math.nan, 0, 0, 0.0)
    low, high, bad = float(array.min()), float(array.max()), 0.0
    if not (math.isfinite(low) and math.isfinite(high)):  # rare: then the range comes from the sample alone
        sound = some[np.isfinite(some)]
        bad = 1 - sound.size / some.size
        if not sound.size:
            return Levels(math.nan, math.nan, 0, some.size, 0.0, bad)
        some, low, high = sound, float(sound.min()), float(sound.max())
    return Levels(low, high, len(np.unique(some)), some.size, float(np.mean(some == high)), bad)


def digest(array: Array) -> str:
    """Return a digest of the array's values, equal for equal arrays with the same memory order."""
    state = xxhash.xxh3_128(f"{array.dtype.str} {array.shape} ".encode())
    flat = array.ravel(order="K")
    state.update(flat.view(np.uint8).data if flat.size else b"")
    return state.hexdigest()


def _sample(array: Array) -> Array:
    """Return every n-th value in memory order (a view if that is free).

    The step has no factor in common with any axis, so the sample covers every column and channel.
    """
    step = max(1, array.size // _SAMPLE)
    while step > 1 and any(math.gcd(step, n) > 1 for n in array.shape if n > 1):
        step += 1
    return array.ravel(order="K")[::step]


@dataclass(frozen=True)
class ArrayFacts:
    """Facts about one decoded array, or about the file's own array if `Decoded.original` has it."""

    dtype: str
    shape: tuple[int, ...]
    levels: Levels | None
    digest: str | None
    """Digest of the values, or None for arrays that may be equal without being duplicates.

    These are constant arrays, and an array that only the cropper looks at.
    """


@dataclass(frozen=True)
class RecordFacts:
    """Facts about a record.

    `shape` and `spacing` are the file's own. `arrays` are by name, the image first. `annotation` is None without
    annotation.
    """

    files: int
    file_bytes: int
    shape: tuple[int, ...]
    spacing: tuple[float, ...]
    arrays: Mapping[str, ArrayFacts]
    annotation: Annotation | None

    @property
    def image(self) -> ArrayFacts | None:
        """The first array."""
        return next(iter(self.arrays.values()), None)


def record_facts(record: Record, decoded: Decoded, annotation: Annotation | None) -> RecordFacts:
    """Return facts about a record whose files are on this machine; raise OSError if they are gone."""
    files = {file for place in record.files.values() for file in files_below(place)}  # a file may have several roles
    sizes = [os.stat(file).st_size for file in files]
    arrays = {name: _facts(array, str(array.dtype)) for name, array in decoded.arrays.items()}
    first = next(iter(arrays), "")
    if decoded.guide in arrays and decoded.guide != first:  # made for the cropper: two may be equal
        arrays[decoded.guide] = replace(arrays[decoded.guide], digest=None)
    original = decoded.original
    if original is None:
        shape = decoded.arrays[decoded.guide].shape if decoded.guide in decoded.arrays else ()
        shape, spacing = shape[: len(decoded.spacing)], decoded.spacing
    else:
        shape, spacing = original.array.shape, original.spacing
        arrays[first] = _facts(original.array, original.dtype or str(original.array.dtype))
    return RecordFacts(len(sizes), sum(sizes), tuple(shape), tuple(spacing), arrays, annotation)


def _facts(array: Array, dtype: str) -> ArrayFacts:
    found = levels(array)
    alike = found is None or found.constant
    return ArrayFacts(dtype, array.shape, found, None if alike else digest(array))


DECODE = "decode"
"""Rule of records that cannot be prepared."""


@dataclass(frozen=True)
class Examined:
    """Findings about a record; `facts` is None if it could not be decoded, `fingerprint` if its image has none."""

    findings: list[Finding]
    facts: RecordFacts | None
    prepared_bytes: int = 0
    """Bytes that the cache keeps of it without compression."""
    fingerprint: Fingerprint | None = None

    @property
    def usable(self) -> bool:
        return not any(finding.level == "error" for finding in self.findings)

    @property
    def unreadable(self) -> bool:
        return any(finding.rule == DECODE for finding in self.findings)


@dataclass(frozen=True)
class Examine:
    """Find faults of a record, and facts about what was decoded; picklable.

    The faults are what preparing refuses, otherwise what the project's own check finds.
    """

    pipeline: RecordPipeline

    def __call__(self, task: tuple[int, AnyRecord]) -> tuple[int, Examined]:
        number, record = task
        project, facts = self.pipeline.project, None
        own = project.checks()
        try:
            with local(project, record) as here:
                decoded = project.decode(here)
                facts = record_facts(here, decoded, None if own.annotation is None else own.annotation(decoded))
                image = next(iter(decoded.arrays.values()), None)
                picture = None if image is None else fingerprint(image, len(decoded.spacing))
                decoded.original = None  # preparing needs the memory, but not the file's own array
                prepared = self.pipeline.prepared(here, decoded)
                size = sum(array.nbytes for array in prepared.arrays.values())
                del decoded, image, prepared  # the project's check reads the files once more
                return number, Examined([] if own.record is None else list(own.record(here)), facts, size, picture)
        except (BadInput, OSError) as error:
            return number, Examined([Finding(DECODE, "error", str(error))], facts)


def examine(setup: Setup, records: Sequence[AnyRecord]) -> Iterator[tuple[AnyRecord, Examined]]:
    """Yield the findings about each record, in the records' order, however many processes work."""
    processes = setup.config.cache.workers or len(os.sched_getaffinity(0))
    done: dict[int, Examined] = {}
    shown = 0
    with run_all(Examine(RecordPipeline.of(setup)), enumerate(records), min(processes, len(records) // 4)) as results:
        for number, found in results:
            done[number] = found
            while shown in done:
                yield records[shown], done.pop(shown)
                shown += 1


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
        return {split: numbers for split, numbers in self.splits.items() if numbers}

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
