"""A training that takes steps on request, run in the process of a trial.

Everything is made by the functions that a training uses, so the measured times are those of training.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import psutil

from runner_core.base.resources import own_peak
from runner_core.base.text import shape_text
from runner_core.config import RunConfig
from runner_core.contract import HostBatch, Json, Store, StreamedSamples, is_streamed
from runner_core.data.loader import Loader
from runner_core.data.pipeline import RecordPipeline
from runner_core.tools.measure.process import own_memory
from runner_core.tools.measure.trial import Ready, Turn, rest
from runner_core.training.assembly import TrainingSpec, assemble
from runner_core.training.data import open_data
from runner_core.training.kernels.check import verify
from runner_core.training.kernels.known import remembered
from runner_core.training.kernels.options import options
from runner_core.training.launchers import RENDEZVOUS, find_place

Say = Callable[[str], None]

_LONG = 0.5
"""Seconds of a step above which one step suffices to settle in."""
_PROFILED = 30
"""Number of steps of a short profile."""


class Training:
    """A training that takes steps when its caller asks; its methods return JSON."""

    @classmethod
    def begin(
        cls, base: Mapping[str, Json], settings: Mapping[str, Json], folder: str, say: Say
    ) -> tuple[Training, Json]:
        training = cls(TrainingSpec.from_json(base), settings, folder, say)
        return training, asdict(training.first_step())

    def __init__(self, base: TrainingSpec, settings: Mapping[str, Json], folder: str, say: Say) -> None:
        setup = base.setup(settings)
        self._base, self._setup = base, setup
        place = find_place(os.environ) if RENDEZVOUS in os.environ else None
        if place is not None:  # one of several processes, each of which gets the same requests
            setup.team = setup.engine.join(place)
        self._team = setup.team
        self._data = data = open_data(setup, say)
        # settings that are tried may take more memory: their first step shows it
        plans = not settings and setup.config.health.memory == "refuse"
        parts = assemble(setup, data, Path(folder), lambda text: None, validates=False, plans=plans)
        self._trainer, self._cadence, self._loader = parts.trainer, parts.cadence, parts.loaders.training
        self._lead = _lead(data.samples["train"], setup.config, self._trainer.block)
        self._step = 0
        self._seconds = 0.0  # of a step
        self._coming: Iterator[HostBatch] | None = None
        self._same: dict[str, Any] | None = None

    # ------------------------------------------------------------ requests

    def first_step(self) -> Ready:
        """Take the first step, which also compiles."""
        setup, train = self._setup, self._setup.config.train
        before = time.perf_counter()
        self._run(1)
        losses = self._settle()
        seconds = time.perf_counter() - before
        host, device = self.memory()
        devices = self._team.count
        return Ready(
            engine=setup.engine.name,
            device=f"{f'{devices} × ' if devices > 1 else ''}{setup.device.name or setup.device.kind}",
            kind=setup.device.kind,
            device_total=setup.device.memory_bytes,
            threads=_threads(setup.engine.versions()),
            precision=setup.precision.compute,
            cache=self._cache_mode(),
            set_bytes=_set_bytes(self._data.store),
            batch=train.batch_size * devices,
            sample={
                name: f"{shape_text(spec.shape)} {spec.dtype}".strip()
                for name, spec in self._data.samples["train"].spec.items()
                if name != "record"
            },
            steps_per_epoch=self._cadence.steps_per_epoch,
            samples_per_epoch=min(
                self._cadence.steps_per_epoch * train.batch_size * devices, self._samples_per_epoch()
            ),
            block=self._trainer.block,
            lead=self._lead,
            parameters=_parameters(self._trainer),
            seconds=seconds,  # the parent overwrites it with the time since the process's start
            first_step_seconds=seconds,
            loss=losses[0],
            host_bytes=host,
            device_bytes=device,
            notes=tuple(self._trainer.notes()),
            strategy=self._trainer.strategy,
            exchange=dict(self._trainer.exchange),
        )

    # what `Trial` has by the same names:

    def steps(self, count: int) -> Json:
        first, losses = self._step, []
        if self._lead > 1 or self._seconds < _LONG:
            self._run(self._lead)
            losses = self._settle()
        begun = time.perf_counter()
        samples, steps, waited = self._run(count)
        losses += self._settle()
        seconds = time.perf_counter() - begun
        self._seconds = self._team.share(seconds / steps)
        rest()
        return asdict(
            Turn(seconds, self._team.count * samples, steps, waited, first, losses, tuple(self._trainer.notes()))
        )

    def data(self, seconds: float) -> Json:
        """Measure the loader alone, in samples/s."""
        self._coming = None
        batches = self._batches(self._step)
        for batch in islice(batches, self._lead):
            batch.release()
        samples, count, begun = 0, self._lead, time.perf_counter()
        for batch in batches:
            samples, count = samples + batch.count, count + 1
            batch.release()
            if (taken := time.perf_counter() - begun) >= seconds:
                break
        if is_streamed(self._data.store):  # fetched records are here now, so nothing would wait for them again
            self._skip(self._team.share(count))
        return self._team.count * samples / taken

    def network(self, count: int) -> Json:
        """Measure the network alone, in seconds per step."""
        stood, self._coming = self._step, None
        self._run(1, self._one_batch())
        self._settle()
        begun = time.perf_counter()
        _, steps, _ = self._run(count, self._one_batch())
        self._settle()
        seconds = time.perf_counter() - begun
        self._step = stood
        return seconds / steps

    def loss(self, count: int) -> Json:
        """Measure the loss alone; return seconds or None."""
        if self._team.count > 1:  # a loss may wait for the other processes
            return None
        phases, step = self._setup.engine.phases(self._trainer), self._step % self._cadence.steps
        return None if phases is None else phases.loss_seconds(next(self._one_batch()), step, count)

    def evaluate(self, samples: int) -> Json:
        train = self._base.settings["train"]
        size = min(int(train["batch_size"]), len(self._data.samples["train"]))
        loader = Loader(
            self._data.samples["train"],
            batch_size=size,
            seed=self._setup.config.train.seed,
            shuffle=True,  # neighbours from one record would not be representative
            steps_per_epoch=max(1, -(-samples // size)),
            prefetch=0,
            allocate=self._setup.engine.allocate,
        )
        try:
            found = self._trainer.validate(loader.batches(0))
        finally:
            loader.close()
        return {name: value for name, value in found.items() if not name.startswith("decision_")}

    def memory(self) -> tuple[int, int]:
        workers = sum(own_memory(child.pid) for child in psutil.Process().children())
        every = self._team.every([own_peak() + workers, self._trainer.peak_memory()])
        return sum(host for host, _ in every), max(device for _, device in every)

    # ------------------------------------------------------------ steps

    def _run(self, count: int, batches: Iterator[HostBatch] | None = None) -> tuple[int, int, float]:
        """Take `count` steps, and more to finish the last block, without waiting for the device.

        Returns samples, steps and the seconds waited for data.
        """
        if batches is None:
            batches = self._coming = self._coming or self._batches(self._step)
        trainer, total = self._trainer, self._cadence.steps
        samples = steps = 0
        waited = 0.0
        while steps < count or not self._cadence.ends_block(self._step % total or total):
            mark = time.perf_counter()
            batch = next(batches)
            if trainer.idle():
                waited += time.perf_counter() - mark
            samples += batch.count
            trainer.train_step(batch, self._step % total)
            self._step += 1
            steps += 1
        return samples, steps, waited

    def _batches(self, step: int) -> Iterator[HostBatch]:
        """Yield batches from `step` on, without end: after the last epoch comes the first."""
        while True:
            epoch, within = divmod(step % self._cadence.steps, self._cadence.steps_per_epoch)
            for batch in self._loader.batches(epoch, within):
                yield batch
                step += 1

    def _skip(self, count: int) -> None:
        """Advance by this many steps, or a few more to the start of a block."""
        total = self._cadence.steps
        self._step += count
        while not self._cadence.ends_block(self._step % total or total):
            self._step += 1

    def _one_batch(self) -> Iterator[HostBatch]:
        """Yield the training's first batch again and again, from its own memory; compared trials get the same one."""
        if self._same is None:
            batch = next(self._batches(0))
            self._same = {name: self._setup.engine.allocate(a.shape, a.dtype) for name, a in batch.arrays.items()}
            for name, array in batch.arrays.items():
                self._same[name][...] = array
            batch.release()
        count = len(next(iter(self._same.values())))
        while True:
            yield HostBatch(self._same, count, lambda: None)

    def _settle(self) -> list[float]:
        """Wait for the device; return the losses of the steps since the last call."""
        losses = self._trainer.losses()
        self._trainer.read_log()
        return losses

    def _cache_mode(self) -> str:
        setup, records = self._setup, self._data.records
        mode = setup.config.cache.mode
        return setup.cache(records).plan(RecordPipeline.of(setup), records).mode if mode == "auto" else mode

    def _samples_per_epoch(self) -> int:
        """Return the number of samples if an epoch is one pass, else a huge number."""
        whole = self._setup.config.train.steps_per_epoch is None
        return len(self._data.samples["train"]) if whole else sys.maxsize


def prepared(base: Mapping[str, Json], settings: Mapping[str, Json], folder: str, say: Say) -> tuple[None, Json]:
    """Build the cache of these settings if it is missing."""
    open_data(TrainingSpec.from_json(base).setup(settings), say).store.close()
    return None, None


def profiled(base: Mapping[str, Json], settings: Mapping[str, Json], seconds: float, folder: str) -> Json:
    """Return the results of a short profile, and the remedies that it suggests."""
    from runner_core.tools.measure.profiling import profile_run, remedies

    setup, place = TrainingSpec.from_json(base).setup(settings), Path(folder)
    report = profile_run(setup, open_data(setup, lambda text: None), steps=_PROFILED, seconds=seconds, folder=place)
    return {"report": report, "fixes": [asdict(remedy) for remedy in remedies(setup, report)]}


def gradients(base: Mapping[str, Json], settings: Mapping[str, Json], folder: str) -> Json:
    """Compare the kernels of these settings with plain operations; return the facts of a `Doubt`, None if all agree."""
    setup = TrainingSpec.from_json(base).setup(settings)
    if not options(setup):
        return None
    data = open_data(setup, lambda text: None)
    found = remembered(setup, data) or verify(setup, data)
    return {"kind": found.status, "text": found.text} if found.status in ("wrong", "unchecked") else None


def _lead(samples: Any, config: RunConfig, block: int) -> int:
    """Return how many steps may have batches ready when a turn starts."""
    train = config.train
    if isinstance(samples, StreamedSamples) and samples.streaming and config.cache.ahead:
        return block + max(train.prefetch, samples.ahead // train.batch_size)
    return block + 1 + train.prefetch if train.workers else 1


def _threads(versions: Mapping[str, str]) -> int | None:
    count_text = next((text for name, text in versions.items() if name.endswith(" threads")), "")
    return int(count_text) if count_text.isdigit() else None


def _set_bytes(store: Store) -> int:
    if is_streamed(store):
        return 0
    return sum(math.prod(shape) * array.dtype.itemsize for array in store.arrays.values() for shape in array.shapes)


def _parameters(trainer: Any) -> int | None:
    """Return the number of the network's parameters, or None if the engine's trainer does not show it."""
    network: Any = getattr(trainer, "network", None)
    if network is None:
        return None
    if hasattr(network, "count_params"):
        return int(network.count_params())
    return sum(parameter.numel() for parameter in network.parameters())
