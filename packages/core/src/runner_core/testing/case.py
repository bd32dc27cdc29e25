"""The project under test, preset demo on its own phantom, which the checks share; and how they compare."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import fields, is_dataclass
from functools import cached_property
from io import StringIO
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np

from runner_core.base.errors import BadInput
from runner_core.contract import (
    Array,
    Arrays,
    Cropped,
    Metric,
    Samples,
    SampleSpec,
    State,
    StreamedSamples,
    Tensors,
    Trained,
)
from runner_core.contract.project import Project
from runner_core.contract.records import Record
from runner_core.contract.setup import Data, Setup
from runner_core.contract.values import as_array
from runner_core.data.loader import Loader
from runner_core.data.phantoms import write_phantom
from runner_core.data.pipeline import CroppedRecord, RecordPipeline
from runner_core.data.splits import split
from runner_core.output.display import Display
from runner_core.output.runfolder import RunFolder
from runner_core.output.sinks import Sinks
from runner_core.plugins import discovery
from runner_core.plugins.manager import Plugins
from runner_core.training.checkpoints import Checkpoints


def assert_equal(one: Any, other: Any, what: str) -> None:
    """Assert that every array, number and text inside is equal, and that there is at least one."""
    assert _compared(one, other, what), f"{what}: {type(one).__name__} holds nothing that can be compared"


def assert_bad_input(call: Callable[[], Any], file: Path) -> None:
    """Assert that `call` raises BadInput that names `file`."""
    outcome: Exception | None = None
    try:
        call()
    except Exception as error:
        outcome = error
    assert outcome is not None, f"{file} is broken or missing, and was accepted"
    kind = type(outcome).__name__
    assert isinstance(outcome, BadInput), f"{file} must be refused as BadInput, not {kind}: {outcome}"
    assert file.name in str(outcome), f"the message does not name {file.name}: {outcome}"


def sent(thing: Any) -> Any:
    """Return `thing` as another process would receive it."""
    return ForkingPickler.loads(ForkingPickler.dumps(thing))


def _compared(one: Any, other: Any, what: str) -> int:
    """Assert that all values are equal, and return how many there were."""
    assert type(one) is type(other), f"{what}: {type(one).__name__} and {type(other).__name__}"
    parts, others = _parts(one), _parts(other)
    if parts is not None and others is not None:
        assert parts.keys() == others.keys(), f"{what}: {list(parts)} and {list(others)}"
        return sum(_compared(parts[name], others[name], f"{what}: {name!r}") for name in parts)
    if isinstance(one, (str, bytes, Path)):
        assert one == other, f"{what} differs: {one!r} and {other!r}"
        return 1
    array, second = np.asarray(one), np.asarray(other)
    if array.dtype == object:  # None, or a type that only the project knows
        return 0
    assert array.dtype == second.dtype, f"{what}: {array.dtype} and {second.dtype}"
    assert np.array_equal(array, second, equal_nan=array.dtype.kind in "fc"), f"{what} differs"
    return array.size


def _parts(value: Any) -> Mapping[Any, Any] | None:
    """Return the content of a container, or None for a single value."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, (list, tuple)):
        return dict(enumerate(value))
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    plain = not hasattr(value, "__array__") and not isinstance(value, Path)
    return vars(value) if plain and hasattr(value, "__dict__") else None


STEPS = 2
_MOST = 96
"""Validation samples from which on only some are validated: metrics of more show nothing else."""


class _Few:
    """Samples of a split at even distances, in its order."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples
        self._numbers = np.linspace(0, len(samples) - 1, _MOST).astype(np.int64)

    @property
    def spec(self) -> Mapping[str, SampleSpec]:
        return self._samples.spec

    def __len__(self) -> int:
        return len(self._numbers)

    def fill(self, indices: Array, positions: Array, seed: int, epoch: int, out: Arrays) -> None:
        self._samples.fill(self._numbers[indices], positions, seed, epoch, out)


def _few(samples: Samples) -> Samples:
    """Return the samples, or some of them if they are many; streamed ones announce all of theirs."""
    streamed = isinstance(samples, StreamedSamples) and samples.streaming
    return samples if streamed or len(samples) <= _MOST else _Few(samples)


class Watcher:
    """A metric that keeps the input of all metrics as NumPy arrays."""

    def reset(self) -> None:
        self.predictions: list[Any] = []
        self.batches: list[Any] = []

    def update(self, prediction: Any, batch: Tensors) -> None:
        self.predictions.append(_copied(prediction))
        self.batches.append(_copied(batch))

    def compute(self) -> dict[str, float]:
        return {}


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _copied(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_copied(part) for part in value]
    return as_array(value).copy()


class WatchedSetup(Setup):
    """A setup that remembers the metrics it made, and adds `extra` ones."""

    metrics_made: Sequence[Metric] = ()
    extra: Sequence[Metric] = ()

    def metrics(self) -> list[Metric]:
        self.metrics_made = super().metrics()
        return [*self.metrics_made, *self.extra]


class Case:
    """The installed project `name`, without extensions; its files lie in `folder`, which is empty at first."""

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
        config.train.warmup = 0.0  # otherwise two steps might train at a learning rate of 0
        config.health.mode = "warn"  # two steps need not make progress
        return WatchedSetup(self.kind(config), config, "demo", self.folder / "phantom", self.plugins)

    @property
    def project(self) -> Project:
        return self.setup.project

    @cached_property
    def phantom(self) -> Path:
        """The folder of the phantom, which is written on first use."""
        folder = self.folder / "phantom"
        return folder if folder.exists() else write_phantom(self.project, folder)

    @cached_property
    def records(self) -> Sequence[Record]:
        return self.project.records(self.phantom)

    @cached_property
    def pipeline(self) -> RecordPipeline:
        return RecordPipeline.of(self.setup)

    @cached_property
    def data(self) -> Data:
        """Prepared and split data, with the statistics from `fit` and the samples of both splits."""
        setup, project = self.setup, self.project
        splits = split(self.records, setup.config.data, setup.config.train.seed)
        assert splits["train"], "the phantom under preset demo leaves nothing to train on"
        assert splits["validation"], "the phantom under preset demo leaves nothing to validate on"
        store = setup.cache(self.records).open(self.pipeline, self.records, _silent)
        data = Data(self.records, splits, store, project.fit(store, splits["train"]))
        data.samples = {
            split_name: project.samples(store, splits[split_name], split_name) for split_name in ("train", "validation")
        }
        data.samples["validation"] = _few(data.samples["validation"])
        return data

    @cached_property
    def trained(self) -> tuple[dict[str, Any], State]:
        """Summary and newest checkpoint of a run of two steps."""
        from runner_core.training.run import train

        run = RunFolder.create(None, self.kind.name, self.folder / "run")
        summary = train(self.setup, self.data, run, Sinks([]), Display(stream=StringIO()), False)
        return summary, self.newest(run.checkpoints)

    @cached_property
    def network(self) -> Trained:
        """The network that this run trained."""
        return self.setup.engine.load(self.setup, self.trained[1])

    def newest(self, folder: Path) -> State:
        """Return the state of the newest checkpoint in `folder`."""
        checkpoints = Checkpoints(folder, self.setup.checkpoint_format, project=self.kind.name)
        found = checkpoints.latest()
        assert found is not None, f"no checkpoint was saved in {folder}"
        return checkpoints.load(found[0])

    def validate(self, batch_size: int, rank: int = 0, ranks: int = 1) -> tuple[Mapping[str, float], Sequence[str]]:
        """Return the values of a validation of the untrained network, and the names of those that metrics gave.

        Only the share of process `rank` of `ranks` is validated.
        """
        trainer = self.setup.engine.trainer(self.setup, self.data, STEPS)
        samples = self.data.samples["validation"]
        loader = Loader(samples, batch_size=batch_size, seed=0, shuffle=False, rank=rank, ranks=ranks)
        values = trainer.validate(loader.batches(0))
        loader.close()
        return values, [name for metric in self.setup.metrics_made for name in metric.compute()]

    @cached_property
    def watched(self) -> tuple[Mapping[str, float], Sequence[str], Watcher]:
        """The validation in batches of four, and what the metrics were given."""
        watcher = Watcher()
        self.setup.extra = [watcher]
        try:
            return *self.validate(4), watcher
        finally:
            self.setup.extra = []

    @property
    def validation_record(self) -> Record:
        return self.records[self.data.splits["validation"][0]]

    def predict(self, cropped: Cropped) -> Any:
        """Return the trained network's prediction of `cropped`."""
        return self.project.predict(cropped, self.network.infer)

    @property
    def prediction(self) -> Any:
        """The prediction of the validation record: made once, copied so that no check sees what another did to it."""
        return deepcopy(self.predicted[1])

    @cached_property
    def predicted(self) -> tuple[CroppedRecord, Any]:
        """What the validation record's prediction was made from, and the prediction."""
        cropped = self.cropped()
        return cropped, self.predict(cropped)

    def cropped(self) -> CroppedRecord:
        """Return the validation record as `predict` gets it."""
        return CroppedRecord(self.pipeline, self.validation_record)


def _silent(text: str) -> None:
    return None
