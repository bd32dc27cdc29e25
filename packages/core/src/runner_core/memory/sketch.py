"""Data of which one record stands for all: enough to know what samples and a network take, before a cache is built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from runner_core._errors import BadInput
from runner_core.cache.identity import source_bytes
from runner_core.pipeline import local
from runner_core.project import AnyRecord, at_url
from runner_core.protocols import Array, CachePlan, Json, StoredArray
from runner_core.setup import Data, Setup


@dataclass
class _Stored:
    """`StoredArray` of one record, in memory."""

    array: Array

    def __post_init__(self) -> None:
        self.dtype: np.dtype[np.generic] = self.array.dtype
        self.shapes: Sequence[tuple[int, ...]] = [self.array.shape]

    def read(self, record: int, region: tuple[slice, ...] | None = None) -> Array:
        return self.array if region is None else self.array[region]

    def take(self, rows: Array, out: Array) -> None:
        np.take(self.array, rows, axis=0, out=out, mode="clip")


@dataclass
class _OneRecord:
    """`Store` of one record, in memory."""

    keys: Sequence[str]
    meta: Sequence[Mapping[str, Json]]
    arrays: Mapping[str, StoredArray]
    device: bool = False
    identity: str = ""

    def close(self) -> None:
        """Nothing is open."""


def sketch(setup: Setup, records: Sequence[AnyRecord], splits: Mapping[str, Sequence[int]], cache: CachePlan) -> Data:
    """Data whose store has one record, for training and validation alike: the training record with files of the median
    size, prepared. `cache` is what the cache of all of them takes.

    Raises BadInput where it cannot be prepared, or no samples can be taken of it alone.
    """
    training = [records[n] for n in splits.get("train", ())]
    if not training:
        raise BadInput("there are no records to train on; see data.split")
    sizes = [0 if at_url(record) else source_bytes(record) for record in training]
    median = training[sorted(range(len(training)), key=sizes.__getitem__)[len(training) // 2]]
    with local(setup.project, median) as here:
        prepared = setup.pipeline(here)
    stored = {name: _Stored(np.ascontiguousarray(array)) for name, array in prepared.arrays.items()}
    store = _OneRecord([median.key], [prepared.meta], stored, device=cache.mode == "device")
    project = setup.project
    sides = [side for side in ("train", "validation") if splits.get(side)]
    try:
        statistics = project.fit(store, [0])
        samples = {side: project.samples(store, [0], side) for side in sides}
        empty = [side for side in sides if not len(samples[side])]
    except (ValueError, IndexError, KeyError, ZeroDivisionError) as error:
        raise BadInput(f"{median.key}: no samples can be taken of this record alone: {error}") from error
    if "train" in empty:
        raise BadInput(f"{median.key}: this record alone has no samples to train on")
    samples = {side: found for side, found in samples.items() if side not in empty}
    return Data(records, {side: [0] for side in samples}, store, statistics, samples, cache, sketched=True)
