"""Put the parts of a training together: settings and data, samples, cadence, trainer, memory plan and loaders.

Everything that takes training steps is made by `assemble`: trainings, trials, profiles and the contract test.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from runner_core.base.errors import BadInput, RunnerError
from runner_core.base.location import location
from runner_core.config import TrainConfig
from runner_core.config.values import overlay, overlay_named
from runner_core.contract import Json, Trainer, is_streamed
from runner_core.contract.project import Project, views_of
from runner_core.contract.setup import Data, Setup
from runner_core.data.loader import Loader, epoch_length
from runner_core.data.samples import refuse_differing_fields
from runner_core.plugins.manager import Plugins
from runner_core.plugins.settings import from_preset, refuse_secret_settings
from runner_core.training.cadence import Cadence
from runner_core.training.memory import MemoryPlan, plan


@dataclass(frozen=True)
class TrainingSpec:
    """A project, its data and its settings.

    Attributes:
        source: The data; None is the built-in phantom.
        settings: The resolved settings, by section.
        extensions: Extensions chosen where several provide a capability.
        without: Extensions that are switched off.
    """

    project: str
    preset: str
    source: str | None
    settings: Mapping[str, Json]
    extensions: tuple[str, ...] = ()
    without: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> TrainingSpec:
        """Make a spec from the JSON of `asdict`."""
        return cls(**{**value, "extensions": tuple(value["extensions"]), "without": tuple(value["without"])})

    @classmethod
    def loads(cls, text: str) -> TrainingSpec:
        """Read what `dumps` wrote."""
        return cls.from_json(json.loads(text))

    def dumps(self) -> str:
        """Return the spec as JSON text."""
        return json.dumps(asdict(self))

    def setup(self, settings: Mapping[str, Json] | None = None) -> Setup:
        """Load the project with these settings, and `settings` (by dotted name) over them. Raises BadInput."""
        plugins = Plugins.load(self.project, self.extensions, self.without)
        project = plugins.project()
        config = overlay(from_preset(project, self.preset, plugins.sections(project)), self.settings, "the settings")
        config = overlay_named(config, settings or {}, "the settings that are tried")
        refuse_secret_settings(config)
        source = None if self.source is None else location(self.source)
        return Setup(project(config), config, self.preset, source, plugins)


Say = Callable[[str], None]


@dataclass
class Loaders:
    training: Loader
    validation: Loader | None

    def close(self) -> None:
        self.training.close()
        if self.validation is not None:
            self.validation.close()


@dataclass
class Parts:
    """The assembled parts of a training, which take its steps.

    Attributes:
        setup: The project and its capabilities.
        data: Its data, with their samples.
        cadence: Steps at which something happens.
        trainer: The network under training.
        memory: What the training will take; None if it was not planned.
        loaders: Give the batches; closed by whoever called `assemble`.
    """

    setup: Setup
    data: Data
    cadence: Cadence
    trainer: Trainer
    memory: MemoryPlan | None
    loaders: Loaders


def assemble(setup: Setup, data: Data, folder: Path, say: Say, *, validates: bool = True, plans: bool = True) -> Parts:
    """Make everything that takes the steps of a training on `data`, in the order in which each part needs the others.

    `folder` receives what streaming and checkpoints write. Without `validates` there are training samples only. With
    `plans`, the memory plan is said, and refused if it does not fit, unless `health.memory` is off.

    Raises BadInput if settings and data do not fit each other, and OutOfSpace.
    """
    if is_streamed(data.store):
        data.store.begin(folder)
    data.samples = samples(setup.project, data, validates)
    cadence = Cadence.of(setup.config, steps_per_epoch(setup.config.train, data, _devices(setup)))
    trainer = setup.engine.trainer(setup, data, cadence.steps)
    views_of(setup.project)  # refuses unknown ones before the first step
    drawn, snapshots = setup.project.pictures().snapshot_samples, None
    if drawn:
        default = cadence.snapshot_period(drawn, setup.config.train.batch_size * _devices(setup))
        snapshots = setup.config.log.snapshots_every or default
    cadence = replace(cadence, block=trainer.block, snapshots_every=snapshots)
    if setup.team.devices > 1:
        say(f"{setup.team.devices} devices train together: {trainer.strategy}; the first one validates")
    if setup.team.count > 1:
        alone = "; the first one validates" if trainer.first_validates else ""
        say(f"{setup.team.count} processes train together: {trainer.strategy}{alone}")
        if setup.config.train.strategy == "auto":
            for text in setup.config.exchanges_without_effect(trainer.strategy):
                say(f"note: {text}")
        if trainer.undivided and "validation" in data.samples:
            say(
                f"each of them validates all {len(data.samples['validation'])} samples, which takes "
                f"{setup.team.count} times as long as a share, because the parts of {', '.join(trainer.undivided)} "
                "cannot be joined (`state` and `merge` of a metric)"
            )
    memory = None  # planned before there are loaders, which only check their own memory
    if plans and setup.config.health.memory != "off":
        memory = plan(setup, data, trainer=trainer, folder=folder)
        if setup.config.health.memory == "refuse":
            memory.refuse(setup.team)
        for text in (memory.line(), *memory.remarks()):
            say(text)
    return Parts(setup, data, cadence, trainer, memory, loaders(setup, data, trainer))


def samples(project: Project, data: Data, validates: bool = True) -> dict[str, Any]:
    """Return samples of the training split and, if it `validates` and has records, of the validation split."""
    splits = ("train", "validation") if validates else ("train",)
    wanted = [split for split in splits if data.splits.get(split)]
    if "train" not in wanted:
        raise BadInput("there are no records to train on; see data.split")
    found = {split: project.samples(data.store, data.used(split), split) for split in wanted}
    if data.store.device:
        refuse_differing_fields(found)
    return found


def _devices(setup: Setup) -> int:
    """Return the number of devices of all processes."""
    return setup.team.count * setup.team.devices


def steps_per_epoch(train: TrainConfig, data: Data, ranks: int) -> int:
    length = len(data.samples["train"])
    return epoch_length(length, train.batch_size, ranks, train.steps_per_epoch, _drop_last(train, data, ranks))[0]


def _drop_last(train: TrainConfig, data: Data, ranks: int) -> bool:
    """Return True if an incomplete last batch is dropped.

    With several devices it would not have the same weight in each, so it is refused even as the only batch.
    """
    return ranks > 1 or len(data.samples["train"]) >= train.batch_size


def loaders(setup: Setup, data: Data, trainer: Trainer) -> Loaders:
    """Return the loaders of `data.samples`, for this process."""
    config, project, team = setup.config, setup.project, setup.team
    common: dict[str, Any] = {
        "seed": config.train.seed,
        "block": trainer.block,
        "pin": setup.engine.pin,
        "prefetch": config.train.prefetch,
        "allocate": setup.engine.allocate,
    }
    augment = project.learning().augment
    if augment is not None and data.store.device:
        raise BadInput(
            f"{setup.name} augments samples on the host, where cache.mode device has none: set cache.mode memmap"
        )
    training = Loader(
        data.samples["train"],
        batch_size=config.train.batch_size * team.devices,
        steps_per_epoch=config.train.steps_per_epoch,
        shuffle=True,
        drop_last=_drop_last(config.train, data, _devices(setup)),
        epochs=config.train.epochs,
        rank=team.number,
        ranks=team.count,
        workers=config.train.workers,
        augment=augment,
        **common,
    )
    if "validation" not in data.samples:
        return Loaders(training, None)
    try:
        workers = min(1, config.train.workers)  # it is not augmented, and a second full set would cost memory
        size = config.validate.batch_size or config.train.batch_size
        common |= {"setting": "validate.batch_size"} if config.validate.batch_size else {}
        common |= {} if trainer.undivided or trainer.first_validates else {"rank": team.number, "ranks": team.count}
        validation = Loader(data.samples["validation"], batch_size=size, shuffle=False, workers=workers, **common)
        return Loaders(training, validation)
    except RunnerError:
        training.close()
        raise
