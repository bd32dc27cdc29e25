"""Collect the inputs of a memory plan from the data, the network, this process and the machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from runner_core.base.errors import BadInput
from runner_core.base.resources import available_ram
from runner_core.contract import Array, Arrays, CachePlan, Json, Samples, Store, StoredArray, is_streamed
from runner_core.contract.footprint import Footprint
from runner_core.contract.records import AnyRecord, at_url
from runner_core.contract.setup import Data, Setup
from runner_core.data.cache.folder import cache_root
from runner_core.data.cache.identity import source_bytes
from runner_core.data.pipeline import RecordPipeline, local


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
        """Do nothing; no file is open."""


def sketch(setup: Setup, records: Sequence[AnyRecord], splits: Mapping[str, Sequence[int]], cache: CachePlan) -> Data:
    """Return data whose store holds one record for both training and validation.

    It is the training record with the median file size, prepared. `cache` is the plan of the cache of all records.
    Raises BadInput if the record cannot be prepared or gives no samples by itself.
    """
    training = [records[n] for n in splits.get("train", ())]
    if not training:
        raise BadInput("there are no records to train on; see data.split")
    sizes = [0 if at_url(record) else source_bytes(record) for record in training]
    median = training[sorted(range(len(training)), key=sizes.__getitem__)[len(training) // 2]]
    with local(setup.project, median) as here:
        prepared = RecordPipeline.of(setup)(here)
    stored = {name: _Stored(np.ascontiguousarray(array)) for name, array in prepared.arrays.items()}
    store = _OneRecord([median.key], [prepared.meta], stored, device=cache.mode == "device")
    project = setup.project
    names = [side for side in ("train", "validation") if splits.get(side)]
    try:
        statistics = project.fit(store, [0])
        samples = {side: project.samples(store, [0], side) for side in names}
        empty = [side for side in names if not len(samples[side])]
    except (ValueError, IndexError, KeyError, ZeroDivisionError) as error:
        raise BadInput(f"{median.key}: no samples can be taken from this record alone: {error}") from error
    if "train" in empty:
        raise BadInput(f"{median.key}: this record alone has no samples to train on")
    samples = {side: found for side, found in samples.items() if side not in empty}
    return Data(records, {side: [0] for side in samples}, store, statistics, samples, cache, sketched=True)


_TRIED = 4
"""Largest number of samples that an engine tries."""
_LOOKED_AT = 8
"""Number of samples from which the tried ones are chosen."""


def survey(setup: Setup, data: Data, trainer: Any | None, folder: Path) -> Facts:
    """Return the facts known before the first step; `trainer` is None if the network is not inspected."""
    import psutil

    train, validation = data.samples["train"], data.samples.get("validation")
    on_gpu = trainer is not None and setup.device.kind != "cpu"
    mode, cache = data.plan.mode if data.plan else setup.config.cache.mode, data.plan
    plain = _plain(data.store)
    held = int(psutil.Process().memory_info().rss)
    footprint = None
    if trainer is not None and hasattr(trainer, "footprint"):
        footprint = trainer.footprint(_few(train, data.store, setup.config.train.seed))
    on_host = footprint is not None and not on_gpu
    counted = (footprint.weights + footprint.average if footprint and on_host else 0) + (
        plain if mode == "memory" and not data.sketched else 0
    )
    count = setup.team.count
    to_cache = 0 if cache is None or not data.sketched else round(cache.disk_bytes * (1 - cache.ready / cache.records))
    return Facts(
        sample=_sample_bytes(train),
        validation_sample=0 if validation is None else _sample_bytes(validation),
        plain=cache.ram_bytes or cache.device_bytes or plain if cache else plain,
        to_cache=to_cache,
        program=held,
        counted=counted,
        block=getattr(trainer, "block", setup.config.train.steps_per_execution),
        processes=count,
        devices=setup.team.devices,
        footprint=footprint,
        on_gpu=on_gpu,
        kept=len(list((folder / "checkpoints").glob("step-*"))),
        has=_has(setup, count, on_gpu, folder),
    )


def _has(setup: Setup, processes: int, on_gpu: bool, folder: Path) -> dict[str, int]:
    """Return the available bytes by place.

    Memory that these processes hold already counts as free, including what the tried step left, because it is used
    again.
    """
    import psutil

    held = processes * int(psutil.Process().memory_info().rss)
    run, cache = _existing(folder), _existing(cache_root(setup.config.cache.dir))
    found = {"host": available_ram() + held, "disk": shutil.disk_usage(run).free}
    if on_gpu and setup.device.memory_bytes:
        found["device"] = setup.device.memory_bytes
    if os.stat(run).st_dev != os.stat(cache).st_dev:
        found["cache"] = shutil.disk_usage(cache).free
    return found


def _existing(folder: Path) -> Path:
    return next(p for p in (folder.absolute(), *folder.absolute().parents) if p.exists())


def _plain(store: Store) -> int:
    return sum(a.dtype.itemsize * sum(int(np.prod(s, dtype=np.int64)) for s in a.shapes) for a in store.arrays.values())


def _sample_bytes(samples: Samples) -> int:
    return sum(int(np.prod(s.shape, dtype=np.int64)) * np.dtype(s.dtype).itemsize for s in samples.spec.values())


def _few(samples: Samples, store: Store, seed: int) -> Arrays:
    """Return the fullest of some samples from all over the set, for an engine to try.

    In a few projects a step takes more memory the more there is to see. Streamed records give zeros, because none is
    fetched for this.
    """
    arrays = {name: np.zeros((_LOOKED_AT, *spec.shape), spec.dtype) for name, spec in samples.spec.items()}
    if is_streamed(store):
        return {name: array[:_TRIED] for name, array in arrays.items()}
    numbers = np.arange(_LOOKED_AT, dtype=np.int64)
    copy(samples).fill(numbers * len(samples) // _LOOKED_AT, numbers, seed, 0, arrays)
    full = np.sum([np.count_nonzero(array.reshape(_LOOKED_AT, -1), axis=1) for array in arrays.values()], axis=0)
    fullest = np.argsort(-full, kind="stable")[:_TRIED]
    return {name: array[fullest] for name, array in arrays.items()}


@dataclass(frozen=True)
class Facts:
    """Sizes in bytes, and other facts that no setting changes."""

    sample: int
    """Bytes of one training sample in a batch."""
    validation_sample: int
    """Bytes of one validation sample; 0 if nothing validates."""
    plain: int
    """Bytes of all prepared arrays, uncompressed."""
    to_cache: int
    """Bytes still to be written into the cache."""
    program: int
    """Bytes that this process holds already; `counted` bytes of them have rows of their own."""
    counted: int
    block: int
    """Batches that go to the device at once."""
    processes: int
    """Number of processes that train together on this machine."""
    footprint: Footprint | None
    """None if the network is not inspected."""
    on_gpu: bool
    kept: int
    """Checkpoints that exist already."""
    devices: int = 1
    """Number of devices of each process."""
    has: Mapping[str, int] = field(default_factory=dict)
    """Bytes that the machine has, by place; what this process already holds counts as free."""
