"""What a plan follows from, looked up: the data, the network, this process, the machine."""

from __future__ import annotations

import os
import shutil
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np

from runner_core._memory import available_ram
from runner_core.cache.folder import cache_root
from runner_core.memory.asked import Facts
from runner_core.protocols import Arrays, Samples, Store, is_streamed
from runner_core.setup import Data, Setup

_TRIED = 4
"""Samples that an engine tries at most."""
_LOOKED_AT = 8
"""From which they are taken."""


def survey(setup: Setup, data: Data, trainer: Any | None, folder: Path) -> Facts:
    """What is known before the first step. `trainer`: None where the network is not looked at."""
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
        footprint=footprint,
        on_gpu=on_gpu,
        kept=len(list((folder / "checkpoints").glob("step-*"))),
        has=_has(setup, count, on_gpu, folder),
    )


def _has(setup: Setup, processes: int, on_gpu: bool, folder: Path) -> dict[str, int]:
    """What these processes hold by now counts as free: with what the attempt at a step left, which is used again."""
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
    """The fullest of some samples from all over the set, for an engine to try: of a few projects a step takes more the
    more there is to see. Of streamed records zeros: none is fetched for it."""
    arrays = {name: np.zeros((_LOOKED_AT, *spec.shape), spec.dtype) for name, spec in samples.spec.items()}
    if is_streamed(store):
        return {name: array[:_TRIED] for name, array in arrays.items()}
    numbers = np.arange(_LOOKED_AT, dtype=np.int64)
    copy(samples).fill(numbers * len(samples) // _LOOKED_AT, numbers, seed, 0, arrays)
    full = np.sum([np.count_nonzero(array.reshape(_LOOKED_AT, -1), axis=1) for array in arrays.values()], axis=0)
    fullest = np.argsort(-full, kind="stable")[:_TRIED]
    return {name: array[fullest] for name, array in arrays.items()}
