"""A network under training in plain PyTorch, driven by `runner_core.training.loop`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from runner_core.contract import Array, Arrays, Divisible, Finding, HostBatch, Progress, State, Step, Tensors
from runner_core.contract.footprint import Footprint
from runner_core.contract.kernels import Observed, Updated, Way
from runner_core.contract.phases import AUGMENT, MOVE, OPTIMIZER, WAIT, unnoticed
from runner_core.contract.project import Project, overrides
from runner_core.contract.setup import SHARDED, Data, Setup
from runner_core.data.sampling import stream_seed
from runner_core.engines import returned
from runner_core.engines.memory import NoRoom, no_room
from runner_core.engines.returned import snapshots
from runner_core.engines.steplog import GRADIENT_NORM, Notes, refuse_nonfinite
from runner_core.engines.torch import accelerator, precision, ranks
from runner_core.engines.torch.checkpoint import Held, flatten, read_generators, unflatten, write_generators
from runner_core.engines.torch.faults import faults
from runner_core.engines.torch.kernels.step import observe, update
from runner_core.engines.torch.learning import Learning
from runner_core.engines.torch.lossalone import Replay
from runner_core.engines.torch.memory import Never, footprint, part
from runner_core.engines.torch.steplog import Means, TensorLog, Totals, read
from runner_core.engines.torch.transfer import DeviceRows, feed
from runner_core.engines.torch.weights import Weights, averaged, checksum, compared, other_weights
from runner_core.engines.validation import Validation
from runner_core.engines.weights import distance


class TorchTrainer:
    """`Trainer` for PyTorch, one of `setup.team`; all must call the same methods in the same order."""

    block = 1

    def __init__(self, setup: Setup, data: Data, steps: int, device: torch.device) -> None:
        project, config, team = setup.project, setup.config.train, setup.team
        self.project, self.config, self._team = project, config, team
        self.statistics = project.statistics = data.statistics
        self.device, self.steps, self._policy = device, steps, setup.precision
        self._per_epoch = max(1, steps // config.epochs)
        self.notes = Notes()
        metrics = setup.metrics()
        self.learning = learning = Learning(setup, metrics, device, self.notes.add)
        self.network, self.optimizer = learning.network, learning.optimizer
        self.strategy = learning.parallel.name
        last = self.config.channels_last == "on"
        kernels = config.kernels == "check" and team.count == 1
        self.faults: Sequence[Finding] = list(
            faults(self.network, setup.precision, learning.compiles, device, last, kernels)
        )
        self._weights = Weights(averaged(self.network))
        self._feed = feed(device)
        self._gather = DeviceRows(data.samples["train"], device) if data.store.device else None
        self._rng = torch.Generator(device) if overrides(project, "on_device") else None
        self._log = TensorLog(read if team.count == 1 else Means(project, team))
        run_out = torch.OutOfMemoryError if team.count == 1 else Never
        self.first_validates = False
        self.undivided: Sequence[str] = tuple(type(m).__name__ for m in metrics if not isinstance(m, Divisible))
        exchange = team.every_arrays if team.count > 1 and not self.undivided else None
        free = partial(accelerator.free, device)
        self._validation = Validation(metrics, self._compute, run_out, free, self.notes.add, exchange)
        self._held = Held()
        self.phase: Callable[[str], None] = unnoticed
        self._queued = torch.Event(device) if device.type != "cpu" else None

    @property
    def exchange(self) -> Mapping[str, str]:
        """The form in which processes exchange tensors, by the setting that decides it; known after the first step."""
        features = ranks.gathered_by()
        return {**self.learning.parallel.exchange, **({} if features is None else {"exchange.features": features})}

    # ------------------------------------------------------------ one step

    def train_step(self, batch: HostBatch, step: int) -> None:
        """Take one optimizer step and release the batch; raise BadInput if memory does not suffice."""
        self.phase(WAIT)
        learning, doing = self.learning, "bringing the batch to the device"
        try:
            tensors = self._taken(batch)
            self.phase(MOVE)
            if self._rng is not None:
                doing = "on_device"
                self._rng.manual_seed(stream_seed(self.config.seed, step, self._team.number))
                tensors = self.project.on_device(tensors, self.statistics, self._rng)
            self.phase(AUGMENT)
            progress = Progress(step, self.steps, step // self._per_epoch)
            learning.rate.set(progress)
            doing = "the network"
            self._log.add(step, learning.gradients(tensors, batch.count, progress))
            doing = "the optimizer's step"
            norm = learning.update(progress)
            if norm is not None:
                self._log.add(step, {GRADIENT_NORM: norm})
        except torch.OutOfMemoryError:
            raise no_room(doing, self.config.batch_size) from None
        if self._queued is not None:
            self._queued.record()
        self.phase(OPTIMIZER)
        self._feed.done(batch)

    def _taken(self, batch: HostBatch) -> Tensors:
        tensors = self._feed.take(batch)
        return tensors if self._gather is None else self._gather(tensors)

    # ------------------------------------------------------------ numbers and validation

    def read_log(self) -> dict[str, Any]:
        """Return means since the last call; waits for the device."""
        self._log.settle()
        left_out = self.learning.parallel.agree()
        bad = self._log.first_nonfinite()
        facts = self._facts()
        values: dict[str, Any] = {**self._log.means(), **self.learning.rate.logged, "facts": facts}
        if bad is not None:
            values["nonfinite_step"], values["nonfinite_term"] = bad
        if self.learning.seen is not None:
            values["precision_seen"] = dict(self.learning.seen)
        if left_out is not None:
            values["left_out"] = left_out
        shared: dict[str, Any] = self._team.share(values)
        return shared

    def _facts(self) -> dict[str, Any]:
        """Return facts for health rules since the last call."""
        facts: dict[str, Any] = {}
        if self.config.clip is not None:
            facts["clipped"] = self._log.share_above(GRADIENT_NORM, self.config.clip)
        return facts if self.learning.norms is None else {**facts, **self.learning.norms.take(self._log.every())}

    def checksum(self) -> int | None:
        """Return a number that changes with any bit of the trained weights, or None while all learning rates are 0.

        Waits for the device.
        """
        trained = [p for group in self.optimizer.param_groups if group["lr"] for p in group["params"]]
        shared: int | None = self._team.share(checksum(trained))
        return shared

    def losses(self) -> list[float]:
        """Return the loss of each step since the last `read_log`; waits for the device."""
        self._log.settle()
        return self._log.of("loss")

    def replay(self, batch: HostBatch, step: int) -> tuple[Replay, int]:
        """Return the loss of the first micro-batch, ready to be computed without the network, and their number."""
        count, size = batch.count, self.learning.micro.size
        tensors = self._taken(batch)
        if self._rng is not None:
            tensors = self.project.on_device(tensors, self.statistics, self._rng)
        few = part(tensors, count, 0, size) if size < count else tensors
        progress = Progress(step, self.steps, step // self._per_epoch)
        return Replay(self.project, self.network, few, progress, self.learning.cast), -(-count // size)

    def validate(self, batches: Iterable[HostBatch]) -> dict[str, float]:
        """Return means over samples, metrics, and extremes of the decision; training's random streams are restored."""
        try:
            with self._undisturbed():
                found = self._validation(batches, Totals(self.project), self._feed.done)
        except torch.OutOfMemoryError:
            raise no_room("validation", self.config.batch_size) from None
        shared: dict[str, float] = self._team.share(found)
        return shared

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Use evaluation mode, and averaged weights if the run keeps them; restore each module's mode afterwards."""
        modes = [(module, module.training) for module in self.network.modules()]
        average = self.learning.average
        self.network.eval()
        try:
            with nullcontext() if average is None else average.in_place():
                yield
        finally:
            for module, mode in modes:
                module.training = mode

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """Evaluate without gradients and with each process alone; restore all random generators afterwards."""
        generators = read_generators(self.device)
        try:
            with torch.no_grad(), ranks.apart(), self._evaluating():
                yield
        finally:
            write_generators(generators, self.device)

    def _compute(self, batch: HostBatch) -> tuple[Tensors, Step]:
        """Bring a validation batch to the device and run it through the network."""
        tensors = self._as_validated(self._feed.keep(batch))
        over = Progress(self.steps, self.steps, self.config.epochs)
        return tensors, self.learning.step(self.learning.parallel.evaluate, tensors, over)

    def _as_validated(self, tensors: Tensors) -> Tensors:
        if self._gather is not None:
            tensors = self._gather(tensors)
        return self.project.on_device(tensors, self.statistics, None)

    @torch.no_grad()
    def watch(self) -> Arrays:
        """Return what the project watches in the network that validation saw, as copies on the host."""
        with self._evaluating():
            return self.learning.parallel.read(returned.watch, self.project, self.network)

    def snapshots(self, arrays: Arrays) -> Mapping[str, Array]:
        """Return the project's pictures of these samples.

        Raises Unhealthy instead of drawing NaN, and BadInput if memory does not suffice. Nothing is compiled for this,
        because compiling would take longer than drawing.
        """
        self._refuse_nonfinite()
        try:
            with (
                torch.compiler.set_stance("force_eager") if self.learning.compiles else nullcontext(),
                self._undisturbed(),
            ):
                tensors = {name: torch.from_numpy(array).to(self.device) for name, array in arrays.items()}
                tensors = self._as_validated(tensors)
                with self.learning.cast:
                    drawn = self.learning.parallel.evaluate(snapshots, self.project, self.network, tensors)
            return drawn if self._team.first else {}
        except torch.OutOfMemoryError:
            raise no_room("drawing samples", self.config.batch_size) from None

    # ------------------------------------------------------------ checkpoints

    def recalled(self, setup: Setup, state: State, arrays: Arrays) -> dict[str, Any] | None:
        """Return how the network from `state` differs from the validated one on these samples: facts for health rules.

        Returns None if there is no memory for both. Training is not affected.
        """
        over = Progress(self.steps, self.steps, self.config.epochs)

        def step(project: Project, network: nn.Module) -> Step:
            tensors = {name: torch.from_numpy(array).to(self.device) for name, array in arrays.items()}
            tensors = tensors if self._gather is None else self._gather(tensors)
            with self.learning.cast:
                return project.step(network, project.on_device(tensors, project.statistics, None), over)

        eager = torch.compiler.set_stance("force_eager") if self.learning.compiles else nullcontext()
        try:
            with eager, self._undisturbed():
                network = setup.engine.load(setup, state).network
                apart = distance(compared(step(self.project, self.network)), compared(step(setup.project, network)))
                return {"weights_differ": other_weights(self.network, network), "prediction_differs": apart}
        except (torch.OutOfMemoryError, NoRoom):
            return None

    def state(self) -> State:
        """Return the live tensors; write them before the next step. Raise Unhealthy instead of returning NaN."""
        values, tensors = flatten(self._tree())
        return State({"torch": values}, tensors)

    def hold(self, divided: bool) -> State:
        """Return copies in host memory. Raise Unhealthy instead of returning NaN."""
        values, tensors = flatten(self._tree(), gathers=False)
        held, shapes, parts = self._held(tensors, divided)
        return State({"torch": values}, held, shapes, parts)

    def _tree(self) -> dict[str, Any]:
        self._refuse_nonfinite()
        return {**self.learning.state(), "log": self._log.state(), "statistics": self.statistics}

    def load_state(self, state: State) -> None:
        saved = unflatten(state.values["torch"], state.tensors)
        self._log.load(saved["log"])
        self.statistics = self.project.statistics = saved["statistics"]
        self.learning.load(saved, state.values.get("loop", {}).get("step", 0))

    def _refuse_nonfinite(self) -> None:
        refuse_nonfinite(self._log, self._bad_weight)

    def _bad_weight(self) -> str | None:
        """Return the first weight of any process that was finite at the start and is not any more, or None."""
        return next(filter(None, self._team.every(self._weights.first_nonfinite())), None)

    # ------------------------------------------------------------ the device

    def footprint(self, arrays: Arrays) -> Footprint:
        """Return the memory that training takes, from a forward and backward pass of a few of these samples.

        With fsdp and hsdp no step is measured, because every process would have to wait for the others.
        """
        loss = None if self.strategy in SHARDED else partial(self._loss_of, arrays)
        learning = self.learning
        held = self.network, self.optimizer, learning.parameters, learning.average
        found = footprint(*held, self.device, learning.micro.size, loss)
        if self.strategy in SHARDED and self.config.accumulate > 1 and self.exchange["exchange.gradients"] == "step":
            whole = sum(p.numel() * p.element_size() for p in learning.parameters if p.requires_grad)
            return replace(found, gradients=whole)  # those that wait for the last micro-batch are not divided
        return found

    def _loss_of(self, arrays: Arrays, count: int) -> torch.Tensor:
        """Return the loss of the first samples at the end of training, when all terms of the loss are active."""
        project, rng = copy(self.project), None if self._rng is None else torch.Generator(self.device)
        tensors = {name: torch.from_numpy(array[:count]).to(self.device) for name, array in arrays.items()}
        tensors = tensors if self._gather is None else self._gather(tensors)
        tensors = project.on_device(tensors, self.statistics, rng)
        with self.learning.cast:
            loss: torch.Tensor = project.step(self.network, tensors, Progress(self.steps, self.steps, 0)).loss
        return loss

    def observe(self, arrays: Arrays, way: Way) -> Observed:
        """Return what the first step computes of these samples, for a comparison; this trainer trains no more then.

        Raises BadInput if memory does not suffice.
        """
        precision.set_backends(self._policy)
        progress = Progress(0, self.steps, 0)
        try:
            tensors = {name: torch.from_numpy(array).to(self.device) for name, array in arrays.items()}
            tensors = tensors if self._gather is None else self._gather(tensors)
            if self._rng is not None:
                self._rng.manual_seed(stream_seed(self.config.seed, 0, self._team.number))
                tensors = self.project.on_device(tensors, self.statistics, self._rng)
            return observe(self.learning, tensors, progress, way, self._policy.compute, self.config.seed % (1 << 63))
        except torch.OutOfMemoryError:
            raise no_room("comparing kernels", self.config.batch_size) from None

    def update(self, gradients: Arrays, before: Arrays | None = None) -> Updated:
        """Return the weights after two updates with these gradients, for a comparison; see `observe`.

        With `before`, the updates begin with these weights, and each weight is updated by plain operations.
        """
        return update(self.learning, gradients, before)

    def idle(self) -> bool:
        return self._queued is None or self._queued.query()

    def peak_memory(self) -> int:
        return accelerator.peak(self.device)
