"""A project with its settings, capabilities and data, as engines and commands get it, and what an engine must do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from runner_core.base.location import Location
from runner_core.config import RunConfig
from runner_core.contract.data import Cache, CachePlan, Cropper, Samples, Store
from runner_core.contract.footprint import Footprint
from runner_core.contract.kernels import Observed, Updated, Way
from runner_core.contract.phases import Phases
from runner_core.contract.project import Project
from runner_core.contract.records import AnyRecord, Statistics
from runner_core.contract.run import CheckpointFormat, Device, Finding, HealthRule, Metric, Precision, Sink, State
from runner_core.contract.start import StartWeights
from runner_core.contract.team import ALONE, Place, Team
from runner_core.contract.values import Array, Arrays, HostBatch, Infer, Json, Tensors

SHARDED = ("fsdp", "hsdp")
"""Strategies (`Trainer.strategy`) with which a process holds only a part of each weight."""


class Hooks(Protocol):
    """The loaded plugins; a hook is called by its name, with all its arguments in hooks.py."""

    @property
    def versions(self) -> dict[str, str]:
        """Distribution and version of each plugin, by its label."""
        ...

    @property
    def names(self) -> list[str]:
        """Labels of the plugins, the weakest first."""
        ...

    def provides(self) -> dict[str, list[str]]:
        """Return the hooks that each plugin implements, by its label."""
        ...

    def first(self, hook: str, **arguments: Any) -> Any:
        """Return the strongest plugin's answer to the hook."""
        ...

    def all(self, hook: str, **arguments: Any) -> list[Any]:
        """Return the answers of all plugins in one list."""
        ...


@dataclass
class Setup:
    """A project, its settings and its capabilities.

    The hooks make each capability on first use, so that `config` and `check` never import a framework.
    """

    project: Project
    config: RunConfig
    preset: str
    source: Location | None
    """The user's data; None means the built-in phantom."""
    plugins: Hooks
    team: Team = ALONE
    """The processes that train together; a team of one in every other command."""
    start: StartWeights | None = None
    """Weights that the training starts from; None: the network's initial ones."""

    @property
    def name(self) -> str:
        return self.project.name

    @cached_property
    def engine(self) -> Engine:
        return self.plugins.first("runner_engine", project=self.project, config=self.config)

    @cached_property
    def device(self) -> Device:
        return self.engine.device()

    @cached_property
    def precision(self) -> Precision:
        return self.plugins.first("runner_precision", project=self.project, config=self.config, device=self.device)

    @cached_property
    def cropper(self) -> Cropper:
        return self.plugins.first("runner_crop", project=self.project, config=self.config)

    def cache(self, records: Sequence[AnyRecord]) -> Cache:
        """Return the cache that suits these records."""
        return self.plugins.first("runner_cache", project=self.project, config=self.config, records=records)

    @cached_property
    def checkpoint_format(self) -> CheckpointFormat:
        return self.plugins.first("runner_checkpoint", project=self.project, config=self.config)

    def metrics(self) -> list[Metric]:
        return self.plugins.all("runner_metrics", project=self.project, config=self.config)

    def health_rules(self) -> list[HealthRule]:
        return self.plugins.all("runner_health", project=self.project, config=self.config)

    def sinks(self, folder: Path) -> list[Sink]:
        return self.plugins.all("runner_sinks", project=self.project, config=self.config, folder=folder)


@dataclass
class Data:
    """Records, their split and their prepared arrays.

    `splits` maps train, validation and test to record numbers in the store. `statistics` is the result of the project's
    `fit` on the training records.
    """

    records: Sequence[AnyRecord]
    splits: Mapping[str, Sequence[int]]
    store: Store
    statistics: Statistics = field(default_factory=dict)
    samples: dict[str, Samples] = field(default_factory=dict)
    """Samples of each split, made by `training.assembly` before the engine's trainer."""
    plan: CachePlan | None = None
    """Size of the records' cache; None if it was not planned."""
    sketched: bool = False
    """True if one record in `store` stands for all (`training.memory.sketch`)."""
    validated: Sequence[int] | None = None
    """The validation records that validations and the final scoring use (`validate.records`); None means all."""

    groups: Mapping[str, int] = field(default_factory=dict)
    """Number of groups of each split, where they were counted."""

    def used(self, split: str) -> Sequence[int]:
        """Return the record numbers of a split that training, validation and final scoring use."""
        if split == "validation" and self.validated is not None:
            return self.validated
        return self.splits.get(split, [])

    def described_split(self) -> dict[str, dict[str, Json]]:
        """Return how many records and groups each split has, its share of all, and how many of them are used."""
        return {
            split: {
                "records": len(numbers),
                "groups": self.groups.get(split) or len({self.records[n].group for n in numbers}),
                "share": len(numbers) / len(self.records),
                "used": len(self.used(split)),
            }
            for split, numbers in self.splits.items()
            if numbers
        }


class Trainer(Protocol):
    """A model under training, which the core's loop calls; all that is specific to a framework is behind it."""

    block: int
    """Number of steps that go to the device at once; 1 if each goes alone."""
    strategy: str
    """single, or the way in which several devices share a network: ddp, fsdp, hsdp; mirrored with Keras."""
    undivided: Sequence[str]
    """Metrics whose parts cannot be joined: because of them, each of several processes validates the whole split."""
    first_validates: bool
    """True if the first of several processes validates alone; the others go through the same batches beside it."""
    faults: Sequence[Finding]
    """Known faults of the installed framework and libraries that this training meets."""

    @property
    def exchange(self) -> Mapping[str, str]:
        """The form in which processes exchange tensors in a step, by the deciding setting; {} if there is none."""
        ...

    def train_step(self, batch: HostBatch, step: int) -> None:
        """Run one optimizer step (all its micro-batches) and release the batch. Does not wait for the device."""
        ...

    def read_log(self) -> dict[str, Any]:
        """Return the values of a train line; waits for the device.

        They are the mean loss and terms since the last call, learning rate, gradient norm, `precision_seen`, and the
        `facts` that only health rules read (`HealthEvent`, log). `nonfinite_step` and `nonfinite_term` are present when
        a loss was NaN or infinite, and `left_out` is a note about weights that some process left out of a step.
        """
        ...

    def losses(self) -> list[float]:
        """Return the loss of each step since the last `read_log`; waits for the device.

        With several processes, all must call it.
        """
        ...

    def notes(self) -> list[str]:
        """Return the engine's messages to the user since the last call (out of memory, for example)."""
        ...

    def checksum(self) -> int | None:
        """Return a number that changes with any bit of the trained weights; waits for the device.

        Returns None while every learning rate is 0.
        """
        ...

    def validate(self, batches: Iterable[HostBatch]) -> dict[str, float]:
        """Return metrics and mean loss over the split, with EMA weights if the run keeps them."""
        ...

    def watch(self) -> Arrays:
        """Return the arrays of `Pictures.watch`, with EMA weights if the run keeps them; copies on the host."""
        return {}

    def snapshots(self, arrays: Arrays) -> Mapping[str, Array]:
        """Return the pictures that `Pictures.snapshots` draws of these host arrays (a batch of samples).

        Uses EMA weights if the run keeps them, and runs in the first of several processes. It changes nothing that
        affects training. Raises BadInput if the results are no pictures, Unhealthy when a loss or a weight is not
        finite.
        """
        return {}

    def state(self) -> State:
        """Return everything needed to continue training exactly.

        Raises Unhealthy when a loss or a weight is not finite: no checkpoint ever holds NaN.
        """
        ...

    def hold(self, divided: bool) -> State:
        """Return `state()` as copies in host memory, which stay as they are until the next call.

        A thread writes them while training goes on. With `divided`, tensors of which each process has a part are not
        gathered (`State.divided`). An engine without this method waits while its checkpoints are written.
        """
        ...

    def load_state(self, state: State) -> None:
        """Continue from a checkpoint as if training had never stopped."""
        ...

    def recalled(self, setup: Setup, state: State, arrays: Arrays) -> dict[str, Any] | None:
        """Compare the network that `Engine.load` makes of `state` with the one that validation saw.

        Returns `HealthEvent`'s facts of a checkpoint, on these samples; None if memory does not suffice for both
        networks. `setup` has a project of its own. Training is not affected.
        """
        ...

    def idle(self) -> bool:
        """Return True when the device has nothing queued, so that waiting for a batch costs time (always on a CPU)."""
        ...

    def footprint(self, arrays: Arrays) -> Footprint:
        """Return the memory that training takes, found out before the first step.

        `arrays` are a few samples in host memory, which an engine may try. It changes nothing that affects training.
        """
        ...

    def observe(self, arrays: Arrays, way: Way) -> Observed:
        """Return what the first step computes of these samples (a micro-batch in host memory), to compare it.

        Each call starts from the weights that the network began with, moved a little (`engines.kernels.jitter`). Other
        weights and state stay behind: the trainer is made for this.
        """
        ...

    def update(self, gradients: Arrays, before: Arrays | None = None) -> Updated:
        """Return the weights after two updates with these gradients, to compare them; call `observe` first.

        With `before`, the updates begin with these weights, and are computed by plain operations.
        """
        ...

    def peak_memory(self) -> int:
        """Return the peak device memory in bytes; 0 if the host is the device."""
        ...


class Trained(NamedTuple):
    """The network of a checkpoint, with the `statistics` that the project's `fit` learned from its training records."""

    network: Any
    infer: Infer
    statistics: dict[str, Any]


class Engine(Protocol):
    """A framework: makes trainers and predictors of a project's network.

    Before it calls the project's `model` it sets `Project.statistics`: in a training to the statistics of the training
    data, otherwise to the statistics in the checkpoint.
    """

    name: str
    """torch or keras, for messages and summaries."""

    def device(self) -> Device:
        """Return the device that `train.device` names. Raises BadInput if it does not exist."""
        ...

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return host memory that copies to the device fast (page-locked on CUDA)."""
        ...

    def join(self, place: Place) -> Team:
        """Meet the other processes of a training; each calls this first and waits for all.

        Raises BadInput if there is no device for each.
        """
        ...

    def pin(self, memory: Array) -> None:
        """Page-lock existing memory (uint8, shared with worker processes) if that makes copies faster."""
        ...

    def trainer(self, setup: Setup, data: Data, steps: int) -> Trainer:
        """Return a fresh model and optimizer for `steps` optimizer steps, on the device, under `setup.precision`.

        The model has the weights of `setup.start` as far as they fit, and `setup.start.fit` says how they do.
        """
        ...

    def read_weights(self, file: Path) -> Tensors:
        """Return the weights in a file, by name, in host memory. Raises BadInput if it holds none."""
        ...

    def phases(self, trainer: Any) -> Phases | None:
        """Return the object that times the parts of this trainer's steps, for `profile` and `ablate`; None if none can.

        `trainer` is one of this engine's own.
        """
        return None

    def load(self, setup: Setup, state: State) -> Trained:
        """Return the network of a checkpoint (with EMA weights if there are any), ready to predict."""
        ...

    def untrained(self, setup: Setup, state: State) -> Trained:
        """Return the network before the first step of this checkpoint's run, made anew from its seed and start."""
        ...

    def export(self, setup: Setup, state: State, folder: Path) -> Sequence[Path]:
        """Write the network of a checkpoint for use without runner, and return the files written.

        Calls the project's own `Project.export`, or else writes the engine's format (weights and a JSON description).
        """
        ...

    def versions(self) -> dict[str, str]:
        """Return versions of the framework and of the libraries it computes with, for summaries and checkpoints."""
        ...
