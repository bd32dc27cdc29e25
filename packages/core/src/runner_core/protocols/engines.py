"""A framework behind the loop: steps, trainers, engines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from runner_core.protocols.run import Device, State
from runner_core.protocols.values import Array, Arrays

if TYPE_CHECKING:
    from runner_core.engines.phases import Phases
    from runner_core.memory.footprint import Footprint
    from runner_core.setup import Data, Setup
    from runner_core.team import Place, Team


# ---------------------------------------------------------------- engines


class Progress(NamedTuple):
    """Where training stands: `step` optimizer steps done of `steps`, in `epoch` (0-based).

    In a compiled step (keras) `step` and `epoch` are 0-d float32 tensors: compute with them, do not branch on them.
    """

    step: int
    steps: int
    epoch: int

    @property
    def fraction(self) -> float:
        return self.step / max(1, self.steps)


class Cost(NamedTuple):
    """What one term of the loss costs, and how hard it pulls."""

    gradient: Any
    """Norm of its weighted gradient with respect to the prediction: a number or a 0-d tensor."""
    seconds: Any
    """For the term and that gradient, the device's work included: a number or a 0-d tensor."""


class Step(NamedTuple):
    """What a project's `step` returns: the loss, its named terms (unweighted), and, where the project scores
    batches, the prediction that its metrics read.

    `costs`: what each term costs (seconds) and the norm of its weighted gradient with respect to the prediction, at
    the steps at which the project measures them; else empty. In torch `runner_core.engines.torch.costs.measured`
    measures a term. The newest since the last train line are logged, of accumulated micro-batches those of the last;
    in validation, and in Keras, they are not looked at.
    """

    loss: Any
    terms: Mapping[str, Any] = {}
    prediction: Any = None
    costs: Mapping[str, Cost] = {}


class HostBatch(NamedTuple):
    """A batch in a buffer of the ring. `release()` tells the ring that the buffer may be refilled."""

    arrays: Arrays
    count: int  # type: ignore[assignment]  # a tuple has a method of this name
    release: Callable[[], None]


Infer = Callable[[Arrays], Arrays]
"""Runs the trained network on host arrays of any batch length: `on_device`, then `Project.infer`, in evaluation
mode, under the run's precision; returns host arrays (float32 where the network computed in less)."""


class Trainer(Protocol):
    """A model under training. The core's loop calls it; everything framework-specific is behind it."""

    block: int
    """Steps that go to the device at once: 1 where each goes by itself."""
    strategy: str
    """single, or how several processes share a network: ddp, fsdp."""

    def train_step(self, batch: HostBatch, step: int) -> None:
        """One optimizer step (all its micro-batches); releases the batch. Does not wait for the device."""
        ...

    def read_log(self) -> dict[str, Any]:
        """Mean loss and terms since the last call, learning rate, gradient norm, `precision_seen`, and the `facts` that
        only health rules want to know (`HealthEvent`, log); waits for the device. `nonfinite_step` and `nonfinite_term`
        are there when a loss was NaN or infinite, `losses` (the values of that event) when the project's `step`
        returned costs."""
        ...

    def losses(self) -> list[float]:
        """The loss of each step since the last `read_log`; waits for the device. Only measuring asks for it."""
        ...

    def notes(self) -> list[str]:
        """What the engine has to tell the user since the last call (memory that ran out, say)."""
        ...

    def checksum(self) -> int | None:
        """Another number once any bit of the weights that are trained is another; None while the learning rate of all
        is 0. Waits for the device."""
        ...

    def validate(self, batches: Iterable[HostBatch]) -> dict[str, float]:
        """Metrics and mean loss over the split, with EMA weights where the run keeps them."""
        ...

    def watch(self) -> Arrays:
        """What `Project.watch` gives, with EMA weights where the run keeps them; copies on the host."""
        return {}

    def snapshots(self, arrays: Arrays) -> Mapping[str, Array]:
        """What `Project.snapshots` draws of these host arrays (a batch of samples), with EMA weights where the run
        keeps them, in the first of several processes; nothing that training goes by changes. Raises BadInput for what
        are no pictures, Unhealthy when a loss or a weight is not finite."""
        return {}

    def state(self) -> State:
        """All that continues training exactly. Raises Unhealthy when a loss or a weight is not finite: no
        checkpoint ever holds NaN."""
        ...

    def load_state(self, state: State) -> None:
        """Go on from a checkpoint, as if it had never been left."""
        ...

    def recalled(self, setup: Setup, state: State, arrays: Arrays) -> dict[str, Any] | None:
        """`HealthEvent`'s facts of a checkpoint: the network that `Engine.load` makes of `state` beside the one that
        validation saw, on these samples. `setup` has a project of its own. None where memory does not suffice for both;
        training does not notice."""
        ...

    def phases(self) -> Phases | None:
        """What takes this trainer's steps apart, for `runner P profile`; None: nothing can."""
        return None

    def idle(self) -> bool:
        """True when the device has nothing queued, so that waiting for a batch now costs time (always on a CPU)."""
        ...

    def footprint(self, arrays: Arrays) -> Footprint:
        """What training takes of memory, found out before the first step. `arrays`: a few samples in host memory, which
        an engine may try. Nothing that training goes by changes."""
        ...

    def peak_memory(self) -> int:
        """Bytes of device memory that were in use at most; 0 where the host is the device."""
        ...


class Trained(NamedTuple):
    """The network of a checkpoint. `statistics`: what the project's `fit` learned from its training records."""

    network: Any
    infer: Infer
    statistics: dict[str, Any]


class Engine(Protocol):
    """A framework: makes trainers and predictors of a project's network.

    Before it calls the project's `model` it sets `Project.statistics`: to those of the data that are trained on, or to
    those that the checkpoint holds.
    """

    name: str
    """torch, keras: for messages and summaries."""

    def device(self) -> Device:
        """Where `train.device` says to compute; BadInput when that is not there."""
        ...

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Host memory that copies to the device fast (page-locked on CUDA)."""
        ...

    def join(self, place: Place) -> Team:
        """Meet the other processes of a training, each of which calls this first; waits for all. BadInput where there
        is no device for each."""
        ...

    def pin(self, memory: Array) -> None:
        """Page-lock memory that is there already (uint8, shared with worker processes) where copies gain by it."""
        ...

    def trainer(self, setup: Setup, data: Data, steps: int) -> Trainer:
        """A fresh model and optimizer for `steps` optimizer steps, on the device, under `setup.precision`."""
        ...

    def load(self, setup: Setup, state: State) -> Trained:
        """The network of a checkpoint (EMA weights where there are some), ready to predict."""
        ...

    def untrained(self, setup: Setup, state: State) -> Trained:
        """The network as it was before the first step of the run whose checkpoint this is, made anew from its seed."""
        ...

    def export(self, setup: Setup, state: State, folder: Path) -> Sequence[Path]:
        """Write the network of a checkpoint for use without runner: as `Project.export` does, else the engine's
        own format (weights and a JSON description); the files written."""
        ...

    def versions(self) -> dict[str, str]:
        """Versions of the framework and of what it computes with, for summaries and checkpoints."""
        ...
