"""Pictures of a network while it trains: what it makes of a few samples, and the arrays that a project watches in it.

The settings decide the steps, the samples are always the same, and pictures are drawn before the checkpoint of their
step is saved. So a killed and resumed run has the files and log lines of an uninterrupted one. Watched arrays are kept
only in log.jsonl (event "watch"), which a resumed run cuts back and continues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from functools import cached_property
from pathlib import Path

import numpy as np

from runner_core.contract import Array, Arrays, Json, Samples, Trainer
from runner_core.contract.project import Project
from runner_core.engines.memory import NoRoom
from runner_core.output.pictures import file_name, write_pictures, write_png
from runner_core.output.sinks import Sinks


class Snapshots:
    """Draws into `folder` as NAME-STEP.png, with eight digits of the step, and passes each picture to `figures`."""

    def __init__(
        self,
        project: Project,
        samples: Mapping[str, Samples],
        seed: int,
        folder: Path,
        figures: Sinks,
        say: Callable[[str], None],
        alone: bool = True,
    ) -> None:
        self._samples = samples.get("validation", samples["train"])
        self._count, self._seed = project.pictures().snapshot_samples, seed
        self._folder, self._figures, self._say, self._alone = folder, figures, say, alone
        self._given_up = False
        self.unwritten: list[Path] = []
        """Pictures that could not be written to the disk."""

    @cached_property
    def _batch(self) -> Arrays:
        return spread_samples(self._samples, self._count, self._seed)

    def draw(self, trainer: Trainer, step: int) -> None:
        """Draw the pictures of this step.

        Raises BadInput and Unhealthy from the trainer. A failed write to the disk does not stop training, nor does a
        lack of device memory in the only process; then it draws no more.
        """
        for name, picture in self._drawn(trainer).items():
            path = self._folder / f"{file_name(name)}-{step:08d}.png"
            try:
                self._folder.mkdir(exist_ok=True)
                write_png(path, picture)
            except OSError as error:
                self.unwritten.append(path)
                self._say(f"WARNING: {path} cannot be written: {error.strerror or error}; training goes on")
            else:
                self._figures.figure(name, step, path)

    def _drawn(self, trainer: Trainer) -> Mapping[str, Array]:
        if self._given_up:
            return {}
        try:
            return trainer.snapshots(self._batch)
        except NoRoom:
            if not self._alone:  # the others would wait for this process
                raise
            self._given_up = True
            self._say("WARNING: no device memory is left to draw samples; training goes on without pictures")
            return {}


def first_samples(samples: Samples, count: int, seed: int) -> Arrays:
    """Return the first `count` samples (or all) as a validation fills them: the same in every process."""
    return _filled(samples, np.arange(min(count, len(samples)), dtype=np.int64), seed)


def spread_samples(samples: Samples, count: int, seed: int) -> Arrays:
    """Return `count` samples (or all) at even distances, filled like `first_samples`."""
    count = min(count, len(samples))
    middles = (2 * np.arange(count, dtype=np.int64) + 1) * len(samples) // (2 * count)
    return _filled(samples, middles, seed)


def _filled(samples: Samples, chosen: Array, seed: int) -> Arrays:
    arrays = {name: np.empty((len(chosen), *spec.shape), spec.dtype) for name, spec in samples.spec.items()}
    copy(samples).fill(chosen, chosen, seed, 0, arrays)  # a copy, because training's samples count what they replace
    return arrays


Watched = list[tuple[int, Arrays]]
"""(optimizer step, arrays) of the beginning and of each validation, in order."""


def read_watched(events: Iterable[Mapping[str, Json]]) -> Watched:
    """Return the watched arrays in the lines of log.jsonl: float64, NaN for values that were not finite."""
    return [
        (event["step"], {name: np.array(values, np.float64) for name, values in event["arrays"].items()})
        for event in events
        if event.get("event") == "watch"
    ]


def draw_watched(project: Project, watched: Sequence[tuple[int, Arrays]], folder: Path) -> list[Path]:
    """Write the project's pictures as folder/NAME.png; none if nothing was watched."""
    draw_watched = project.pictures().draw_watched
    return write_pictures(draw_watched(watched) if watched and draw_watched is not None else {}, folder)
