"""A framework behind the training loop: steps, trainers, engines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from runner_core.contract.run import Device, State
from runner_core.contract.values import Array, Arrays, HostBatch

if TYPE_CHECKING:
    from runner_core.contract.footprint import Footprint
    from runner_core.contract.phases import Phases
    from runner_core.contract.setup import Data, Setup
    from runner_core.contract.team import Place, Team


# ---------------------------------------------------------------- engines


class Progress(NamedTuple):
    """Position in the training: `step` of `steps` optimizer steps are done, in `epoch` (0-based).

    In a compiled step (Keras) `step` and `epoch` are 0-d float32 tensors: compute with them, do not branch on them.
    """

    step: int
    steps: int
    epoch: int

    @property
    def fraction(self) -> float:
        return self.step / max(1, self.steps)


class Step(NamedTuple):
    """Result of a project's `step`: the loss, its named terms (unweighted), and the prediction that metrics read.

    `prediction` is None if the project does not score batches.

    In torch `outputs` may name the tensors that the terms are computed from (one, or several in a mapping or sequence),
    where the prediction is not all of them: the terms' gradient norms are measured there. Keras measures them at all
    outputs of the network, and ignores it.
    """

    loss: Any
    terms: Mapping[str, Any] = {}
    prediction: Any = None
    outputs: Any = None


Infer = Callable[[Arrays], Arrays]
"""Runs the trained network on host arrays of any batch length: `on_device`, then `Project.infer`, in evaluation
mode, under the run's precision. Returns host arrays (float32 if the network computed in a smaller type)."""


class Trainer(Protocol):
    """A model under training, which the core's loop calls; all that is specific to a framework is behind it."""

    block: int
    """Number of steps that go to the device at once; 1 if each goes alone."""
    strategy: str
    """single, or the way in which several processes share a network: ddp, fsdp."""

    def train_step(self, batch: HostBatch, step: int) -> None:
        """Run one optimizer step (all its micro-batches) and release the batch. Does not wait for the device."""
        ...

    def read_log(self) -> dict[str, Any]:
        """Return the values of a train line; waits for the device.

        They are the mean loss and terms since the last call, learning rate, gradient norm, `precision_seen`, and the
        `facts` that only health rules read (`HealthEvent`, log). `nonfinite_step` and `nonfinite_term` are present when
        a loss was NaN or infinite.
        """
        ...

    def losses(self) -> list[float]:
        """Return the loss of each step since the last `read_log`, for the screen; waits for the device."""
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
        """Return a fresh model and optimizer for `steps` optimizer steps, on the device, under `setup.precision`."""
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
        """Return the network before the first step of this checkpoint's run, made anew from its seed."""
        ...

    def export(self, setup: Setup, state: State, folder: Path) -> Sequence[Path]:
        """Write the network of a checkpoint for use without runner, and return the files written.

        Calls the project's own `Project.export`, or else writes the engine's format (weights and a JSON description).
        """
        ...

    def versions(self) -> dict[str, str]:
        """Return versions of the framework and of the libraries it computes with, for summaries and checkpoints."""
        ...
