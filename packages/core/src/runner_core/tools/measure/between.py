"""Measure what a run does between its steps, one by one: the log, validation, checkpoints, pictures."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

from runner_core.base.errors import RunnerError
from runner_core.contract.phases import CHECKPOINT, LOGGING, METRICS, PICTURES
from runner_core.data.loader import Loader
from runner_core.output.sinks import JsonlSink, Sinks, TextSink
from runner_core.training.assembly import Parts
from runner_core.training.checkpoints import Checkpoints
from runner_core.training.snapshots import Snapshots
from runner_core.training.timing import Timing

_VALIDATION_SECONDS = 5.0


@dataclass(frozen=True)
class Event:
    """An event that takes `seconds`, every `every` steps; `setting` decides how often."""

    seconds: float
    every: float
    setting: str
    size: int = 0
    """Bytes that it writes."""

    @property
    def per_step(self) -> float:
        return self.seconds / self.every


class Between:
    """Measures with a trainer that has taken some steps; its files in `folder` are removed again."""

    def __init__(self, parts: Parts, folder: Path) -> None:
        self._setup, self._data, self._trainer, self._cadence = parts.setup, parts.data, parts.trainer, parts.cadence
        self._loaders, self._folder = parts.loaders, folder

    def measure(self, settle: Callable[[], None], say: Callable[[str], None]) -> dict[str, Event]:
        """Return an event for each part that the run has; `settle` waits for the device."""
        found: dict[str, Event] = {}
        for name, event in (
            (LOGGING, self._logging),
            (METRICS, self._validation),
            (CHECKPOINT, self._checkpoint),
            (PICTURES, self._pictures),
        ):
            settle()
            try:
                measured = event()
            except (RunnerError, OSError) as error:
                say(f"note: {name} could not be measured: {error}")
                continue
            if measured is not None:
                found[name] = measured
        return found

    def _logging(self) -> Event:
        """Measure reading the numbers, once the device is done, and writing them; external trackers run in parallel."""
        paths = self._folder / "log.jsonl", self._folder / "train.log"
        sinks: list[JsonlSink | TextSink] = [JsonlSink(paths[0]), TextSink(paths[1])]
        begun = perf_counter()
        values = self._trainer.read_log()
        for sink in sinks:
            sink.event("train", 0, {"epoch": 0, **values, "timing": Timing().shown()})
        seconds = perf_counter() - begun
        for sink, path in zip(sinks, paths, strict=True):
            sink.close()
            path.unlink()
        return Event(seconds, self._cadence.log_every, "log.every")

    def _validation(self) -> Event | None:
        """Measure some batches (the first calls compile), and scale them to the whole split."""
        loader = self._loaders.validation
        if loader is None:
            return None
        self._validate(loader, 1)
        once = self._validate(loader, 1)
        batches = loader.steps_per_epoch
        some = min(batches, max(1, int(_VALIDATION_SECONDS / max(once, 1e-6))))
        if 1 < some == batches:  # the last one has fewer samples and compiles too
            self._validate(loader, some)
        seconds = self._validate(loader, some) * batches / some
        return Event(seconds, self._cadence.steps_per_epoch * self._cadence.validate_every, "validate.every")

    def _validate(self, loader: Loader, count: int) -> float:
        begun = perf_counter()
        batches: Any = loader.batches(0)
        try:
            self._trainer.validate(islice(batches, count))
        finally:
            batches.close()
        self._trainer.watch()
        return perf_counter() - begun

    def _checkpoint(self) -> Event:
        """Measure how long training waits for a checkpoint: until it is written, or only copied if a thread writes."""
        setup, cadence, place = self._setup, self._cadence, self._folder / "checkpoints"
        checkpoints = Checkpoints(place, setup.checkpoint_format, project=setup.name, keep=1)
        try:
            if background := setup.config.checkpoint.background and hasattr(self._trainer, "hold"):
                self._trainer.hold(False)  # allocates memory, once
            begun = perf_counter()
            state = self._trainer.hold(False) if background else self._trainer.state()
            copied = perf_counter() - begun
            path = checkpoints.save(state, 1, 0, None, False)
            seconds = copied if background else perf_counter() - begun
            size = sum(file.stat().st_size for file in path.iterdir())
        finally:
            shutil.rmtree(place, ignore_errors=True)
        often = 1 / (cadence.steps_per_epoch * cadence.save_every)
        often += 1 / cadence.save_every_steps if cadence.save_every_steps else 0.0
        return Event(seconds, 1 / often, "checkpoint.every", size)

    def _pictures(self) -> Event | None:
        setup = self._setup
        if not setup.project.pictures().snapshot_samples:
            return None
        place = self._folder / "pictures"
        seed = setup.config.train.seed
        snapshots = Snapshots(setup.project, self._data.samples, seed, place, Sinks([]), lambda text: None)
        seconds = 0.0
        try:
            for step in range(2):  # the first may compile
                begun = perf_counter()
                snapshots.draw(self._trainer, step)
                seconds = perf_counter() - begun
        finally:
            shutil.rmtree(place, ignore_errors=True)
        return Event(seconds, self._cadence.snapshots_every or 1, "log.snapshots_every")
