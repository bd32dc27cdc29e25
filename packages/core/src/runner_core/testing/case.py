"""The project under test: preset demo on its own phantom, prepared once and shared by the checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from runner_core import discovery
from runner_core.checkpoint import Checkpoints
from runner_core.phantoms import write_phantom
from runner_core.plugins import Plugins
from runner_core.project import Project, Record
from runner_core.protocols import Metric, State, Trained
from runner_core.runfolder import RunFolder
from runner_core.setup import Data, Setup
from runner_core.splits import split

STEPS = 2


class WatchedSetup(Setup):
    """A setup that remembers the metrics it made, and adds `extra` ones."""

    made: Sequence[Metric] = ()
    extra: Sequence[Metric] = ()

    def metrics(self) -> list[Metric]:
        self.made = super().metrics()
        return [*self.made, *self.extra]


class Case:
    """The installed project `name`, without extensions; what is made of it lies in `folder`, empty at first."""

    def __init__(self, name: str, folder: Path) -> None:
        self.folder = folder
        self.plugins = Plugins.load(name, without=tuple(discovery.extensions()))
        self.kind: type[Project] = self.plugins.project()
        assert self.kind.name == name, f"the class is named {self.kind.name!r}, its entry point {name!r}"

    @cached_property
    def setup(self) -> WatchedSetup:
        config = self.kind.presets["demo"]()
        config.cache.dir = self.folder / "cache"
        config.train.epochs, config.train.steps_per_epoch = 1, STEPS
        config.train.device, config.train.deterministic = "cpu", True
        config.train.warmup = 0.0  # else two steps might train at a learning rate of 0
        config.health.mode = "warn"  # two steps need not get anywhere
        return WatchedSetup(self.kind(config), config, "demo", self.folder / "phantom", self.plugins)

    @property
    def project(self) -> Project:
        return self.setup.project

    @cached_property
    def phantom(self) -> Path:
        """The folder of the phantom, which is written where it is not there yet."""
        folder = self.folder / "phantom"
        return folder if folder.exists() else write_phantom(self.project, folder)

    @cached_property
    def records(self) -> Sequence[Record]:
        return self.project.records(self.phantom)

    @cached_property
    def data(self) -> Data:
        """Prepared, split, with what `fit` learned and the samples of both sides."""
        setup, project = self.setup, self.project
        sides = split(self.records, setup.config.data, setup.config.train.seed)
        assert sides["train"], "the phantom under preset demo leaves nothing to train on"
        assert sides["validation"], "the phantom under preset demo leaves nothing to validate on"
        store = setup.cache.open(setup.pipeline, self.records, _silent)
        data = Data(self.records, sides, store, project.fit(store, sides["train"]))
        data.samples = {side: project.samples(store, sides[side], side) for side in ("train", "validation")}
        return data

    @cached_property
    def trained(self) -> tuple[dict[str, Any], State]:
        """Summary and newest checkpoint of a run of two steps."""
        from runner_core.training import train

        run = RunFolder.create(None, self.kind.name, self.folder / "run")
        summary = train(self.setup, self.data, run, Nobody(), Nobody(), False)
        return summary, self.newest(run.checkpoints)

    @cached_property
    def network(self) -> Trained:
        """What that run trained."""
        self.project.pipeline = self.setup.pipeline  # predictions share the crop
        return self.setup.engine.load(self.setup, self.trained[1])

    def newest(self, folder: Path) -> State:
        """The state of the newest checkpoint in `folder`."""
        checkpoints = Checkpoints(folder, self.setup.checkpoint_format, project=self.kind.name)
        found = checkpoints.latest()
        assert found is not None, f"no checkpoint was saved in {folder}"
        return checkpoints.load(found[0])

    @property
    def validation_record(self) -> Record:
        return self.records[self.data.splits["validation"][0]]


def _silent(text: str) -> None:
    return None


class Nobody:
    """Neither a tracker nor a display."""

    def event(self, kind: str, step: int, values: Mapping[str, Any]) -> None: ...

    def figure(self, name: str, step: int, png: Path) -> None: ...

    def start(self, total_steps: int, first_step: int, title: str) -> None: ...

    def update(self, step: int, epoch: int, values: Mapping[str, Any]) -> None: ...

    def say(self, text: str) -> None: ...

    def stop(self) -> None: ...
