"""Shared parts of the benchmarks of a step's cost: the samples, and runner's own loop around a tiny project."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from runner_core import Device, Precision, Project, RunConfig, SampleSpec
from runner_core.contract.setup import Data
from runner_core.contract.team import ALONE
from runner_core.data.loader import Loader
from runner_core.health import Health, default_rules
from runner_core.output.display import Display
from runner_core.training.assembly import Loaders, Parts
from runner_core.training.cadence import Cadence
from runner_core.training.keeping import LoopState
from runner_core.training.loop import Loop
from runner_core.training.signals import Signals
from runner_core.training.timing import Timing

BATCH, FEATURES, ROWS, LOG_EVERY = 16, 32, 4096, 50
INPUTS = np.random.default_rng(0).standard_normal((ROWS, FEATURES), dtype=np.float32)
TARGETS = INPUTS.sum(1, keepdims=True)

Seconds = Callable[[int], float]
"""Trains some steps; the seconds they took."""


class Rows:
    """Samples gathered from the arrays above."""

    spec: ClassVar = {
        "x": SampleSpec((FEATURES,), np.dtype(np.float32)),
        "y": SampleSpec((1,), np.dtype(np.float32)),
    }

    def __len__(self) -> int:
        return ROWS

    def fill(self, indices: Any, positions: Any, seed: int, epoch: int, out: Any) -> None:
        np.take(INPUTS, indices, axis=0, out=out["x"], mode="clip")
        np.take(TARGETS, indices, axis=0, out=out["y"], mode="clip")


class Silent:
    """Stands for the keeper of checkpoints and the sinks."""

    recalls = False

    def save(self, *_: Any) -> None: ...

    def event(self, kind: str, step: int, values: Any) -> None: ...


class TinySetup:
    team = ALONE
    device = Device("cpu")
    precision = Precision("float32")
    start = None

    def __init__(self, project: Project) -> None:
        self.project, self.config = project, project.config

    def metrics(self) -> list[Any]:
        return []


class NoStore:
    device = False
    identity = ""


def runner(project: type[Project], engine: Callable[[Project, RunConfig], Any], block: int = 1) -> Seconds:
    """runner's loop and loader around a trainer that is made once."""
    config = RunConfig()
    config.train.epochs, config.train.batch_size, config.train.device = 1000, BATCH, "cpu"
    config.train.steps_per_execution = block
    setup: Any = TinySetup(project(config))
    trainer: Any = None
    done = 0

    def run(steps: int) -> float:
        nonlocal trainer, done
        data: Any = Data([], {}, NoStore())  # type: ignore[arg-type]
        if trainer is None:
            trainer = engine(setup.project, config).trainer(setup, data, 1000 * steps)
        loader = Loader(Rows(), batch_size=BATCH, seed=0, shuffle=True, steps_per_epoch=steps, block=block)
        silent: Any = Silent()
        cadence = Cadence(steps, done + 1, LOG_EVERY, block=block)
        parts = Parts(setup, data, cadence, trainer, None, Loaders(loader, None))
        health = Health(default_rules(setup.project, config), "stop", lambda *_: None)
        display = Display(silent=True)
        display.start(steps, 0, "tiny")
        loop = Loop(parts, silent, health, None, silent, display, Signals())
        loop.restore(LoopState(step=done * steps), Timing())
        done += 1
        begun = time.perf_counter()
        loop.run()
        return time.perf_counter() - begun

    return run
