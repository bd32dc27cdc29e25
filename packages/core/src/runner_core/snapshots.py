"""Pictures of what a network makes of a few samples, drawn again and again while it trains.

They are drawn at steps that follow from the settings, of samples that are always the same, and before the checkpoint of
their step is saved: a run that is killed and resumed has the files and log lines of one that never was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from runner_core._errors import BadInput
from runner_core.evaluation import file_name, is_picture, write_png
from runner_core.project import Project
from runner_core.protocols import Array, Arrays, Samples, Trainer


class Figures(Protocol):
    def figure(self, name: str, step: int, png: Path) -> None: ...


class Snapshots:
    """Draws into `folder`, as NAME-STEP.png with eight digits of the step, and tells `figures` of each."""

    def __init__(
        self,
        project: Project,
        samples: Mapping[str, Samples],
        seed: int,
        folder: Path,
        figures: Figures,
        say: Callable[[str], None],
    ) -> None:
        self._samples = samples.get("validation", samples["train"])
        self._count, self._seed = project.snapshot_samples, seed
        self._folder, self._figures, self._say = folder, figures, say

    @cached_property
    def _batch(self) -> Arrays:
        return first_samples(self._samples, self._count, self._seed)

    def draw(self, trainer: Trainer, step: int) -> None:
        """Raises BadInput, Unhealthy from the trainer. A disk that takes no picture does not stop training."""
        for name, picture in trainer.snapshots(self._batch).items():
            path = self._folder / f"{file_name(name)}-{step:08d}.png"
            try:
                self._folder.mkdir(exist_ok=True)
                write_png(path, picture)
            except OSError as error:
                self._say(f"WARNING: {path} cannot be written: {error.strerror or error}; training goes on")
            else:
                self._figures.figure(name, step, path)


def first_samples(samples: Samples, count: int, seed: int) -> Arrays:
    """The first `count` samples (all, where there are fewer) as a validation fills them: the same in every process."""
    first = np.arange(min(count, len(samples)), dtype=np.int64)
    arrays = {name: np.empty((len(first), *spec.shape), spec.dtype) for name, spec in samples.spec.items()}
    copy(samples).fill(first, first, seed, 0, arrays)  # training's own count what they replace
    return arrays


def snapshots(project: Project, model: Any, batch: Any) -> Mapping[str, Array]:
    """What the project draws. Raises BadInput for what are no pictures."""
    found: Any = project.snapshots(model, batch)
    where = f"project {project.name}: `snapshots` must return pictures (H, W, 3) uint8 by name"
    if not isinstance(found, Mapping):
        raise BadInput(f"{where}; it returned {type(found).__name__}")
    for name, picture in found.items():
        if not is_picture(picture):
            shape, dtype = getattr(picture, "shape", ""), getattr(picture, "dtype", type(picture).__name__)
            raise BadInput(f"{where}; {name!r} is {shape} {dtype}")
    return found
