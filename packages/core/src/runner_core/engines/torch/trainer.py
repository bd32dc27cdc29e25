"""A network under training in plain PyTorch, driven by `runner_core.training.loop`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from copy import copy
from functools import partial
from typing import Any

import torch
from torch import nn

from runner_core.base.errors import Unhealthy
from runner_core.contract import Array, Arrays, HostBatch, Progress, State, Step, Tensors
from runner_core.contract.footprint import Footprint
from runner_core.contract.phases import AUGMENT, BACKWARD, LOSS, MOVE, OPTIMIZER, WAIT, unnoticed
from runner_core.contract.project import Project, overrides
from runner_core.contract.setup import Data, Setup
from runner_core.data.sampling import stream_seed
from runner_core.engines import returned
from runner_core.engines.memory import NoRoom, ValidationParts, no_room
from runner_core.engines.returned import detached, refuse_no_step, snapshots
from runner_core.engines.steplog import GRADIENT_NORM, StepLog, not_finite, weight_not_finite
from runner_core.engines.torch import precision
from runner_core.engines.torch.checkpoint import Generators, flatten, refuse_other_dtypes, seed_generators, unflatten
from runner_core.engines.torch.gradient_norms import GradientNorms
from runner_core.engines.torch.inference import evaluating, undisturbed
from runner_core.engines.torch.lossalone import Replay
from runner_core.engines.torch.memory import MicroBatches, Never, Rewind, footprint, free, part
from runner_core.engines.torch.optim import (
    LearningRate,
    build_optimizer,
    clip,
    quick_step,
    same_layout,
    trained_parameters,
)
from runner_core.engines.torch.parallel import divided, fresh, parallel, place
from runner_core.engines.torch.steplog import Means, Totals, Weights, read
from runner_core.engines.torch.transfer import DeviceRows, feed
from runner_core.engines.torch.weights import Average, averaged, checksum, distance, other_weights
from runner_core.engines.validation import read_metrics


class TorchTrainer:
    """`Trainer` for PyTorch, one of `setup.team`; all must call the same methods in the same order."""

    block = 1

    def __init__(self, setup: Setup, data: Data, steps: int, device: torch.device) -> None:
        project, config, team = setup.project, setup.config.train, setup.team
        self.project, self.config, self._team = project, config, team
        self.statistics = project.statistics = data.statistics
        self.device, self.steps = device, steps
        self._per_epoch = max(1, steps // config.epochs)
        seed_generators(config.seed)
        self.network: nn.Module = place(fresh(project, setup.precision), project, device)
        self._kept = precision.keep_float32(self.network, setup.precision, device)
        self._compile = project.config.train.compile == "on"
        self._cast = precision.autocast(setup.precision, device)
        self._scaler = precision.grad_scaler(setup.precision, device)
        memory = setup.device.memory_bytes
        self._parallel = parallel(project, self.network, device, setup.precision, memory, team.count)
        self.strategy = self._parallel.name
        self._generators = Generators(team, device, config.seed)
        self.optimizer = build_optimizer(project, self.network, config)
        self._step_optimizer = quick_step(self.optimizer)
        self._parameters = trained_parameters(self.optimizer)
        self._rate = LearningRate(project, self.optimizer, config)
        self._average = None if config.ema is None else Average(self.network, config.ema)
        self._weights = Weights(averaged(self.network))
        self._feed = feed(device)
        self._gather = DeviceRows(data.samples["train"], device) if data.store.device else None
        own = partial(overrides, project)
        self._rng = torch.Generator(device) if own("on_device") else None
        self._after_step = project.after_step if own("after_step") else None
        self._metrics = setup.metrics()
        self._log = StepLog(read if team.count == 1 else Means(project, team))
        # fsdp gathers the weights at the network's outputs, wherever a gradient passes them
        self._norms = None if self.strategy == "fsdp" else GradientNorms(project, self._metrics, team.count == 1)
        self._project_step = (
            project.step if team.count == 1 or self._norms is None else self._norms.around(project.step)
        )
        self._seen: Counter[str] | None = None
        self._notes: list[str] = []
        self._micro = MicroBatches(
            project, config, self.network, device, self._backward, self._forget_gradients, self._notes.append
        )
        run_out = torch.OutOfMemoryError if team.count == 1 else Never
        self._validated = ValidationParts(self._compute, run_out, partial(free, device), self._notes.append)
        self._unproven = True
        self.phase: Callable[[str], None] = unnoticed
        self._queued = torch.cuda.Event() if device.type == "cuda" else None

    # ------------------------------------------------------------ one step

    def train_step(self, batch: HostBatch, step: int) -> None:
        """Take one optimizer step and release the batch; raise BadInput if memory does not suffice."""
        self.phase(WAIT)
        doing = "bringing the batch to the device"
        try:
            tensors = self._taken(batch)
            self.phase(MOVE)
            if self._rng is not None:
                doing = "on_device"
                self._rng.manual_seed(stream_seed(self.config.seed, step, self._team.number))
                tensors = self.project.on_device(tensors, self.statistics, self._rng)
            self.phase(AUGMENT)
            progress = Progress(step, self.steps, step // self._per_epoch)
            self._rate.set(progress)
            doing = "the network"
            if self._seen is None:
                values = self._first(tensors, batch.count, progress)
            else:
                values = self._micro.gradients(tensors, batch.count, progress)
            self._log.add(step, values)
            doing = "the optimizer's step"
            self._update(progress)
        except torch.OutOfMemoryError:
            raise no_room(doing, self.config.batch_size) from None
        if self._queued is not None:
            self._queued.record()
        self.phase(OPTIMIZER)
        self._feed.done(batch)

    def _taken(self, batch: HostBatch) -> Tensors:
        tensors = self._feed.take(batch)
        return tensors if self._gather is None else self._gather(tensors)

    def _first(self, tensors: Tensors, count: int, progress: Progress) -> dict[str, Any]:
        """Take the first step, and observe the precision in which layers compute.

        A compiled network cannot be observed, so it runs once before it is compiled, which leaves no trace.
        """
        self._seen = Counter()
        if not self._compile:
            with precision.observed(self.network, self._seen, self._kept):
                return self._micro.gradients(tensors, count, progress)
        rewind = Rewind(self.network, self.device)
        rewind.mark()
        few = part(tensors, count, 0, 1) if self.project.splittable else tensors
        observed = precision.observed(self.network, self._seen, self._kept)
        with observed, torch.no_grad(), self._cast or nullcontext():
            self._parallel.evaluate(self.project.step, self.network, few, progress)
        rewind.back()
        self.network.compile()
        return self._micro.gradients(tensors, count, progress)

    def _backward(self, tensors: Tensors, progress: Progress, share: float) -> dict[str, Any]:
        """Add `share` times the gradients; return loss and terms (times `share`), without their graph."""
        step = self._step(self._parallel.train, tensors, progress)
        self.phase(LOSS)
        loss, terms, _, _ = step
        if self._norms is not None:
            self._norms.measure(progress.step, step, tensors)
        del step  # the prediction may be large
        scaled = loss if share == 1.0 else loss * share
        (scaled if self._scaler is None else self._scaler.scale(scaled)).backward()
        self.phase(BACKWARD)
        values = {"loss": scaled.detach()}
        if terms:
            for name, term in terms.items():
                value = term.detach() if isinstance(term, torch.Tensor) else term
                values[name] = value if share == 1.0 else value * share
        return values

    def _step(self, run: Callable[..., Any], tensors: Tensors, progress: Progress) -> Step:
        if self._cast is None:
            step = run(self._project_step, self.network, tensors, progress)
        else:
            with self._cast:
                step = run(self._project_step, self.network, tensors, progress)
        if self._unproven:
            self._prove(step)
        return step

    def _prove(self, step: Step) -> None:
        """Raise BadInput, once, if nothing can be learned from the step."""
        refuse_no_step(self.project, step)
        if torch.is_grad_enabled():
            self._unproven = False
            if not step.loss.requires_grad:
                raise detached(self.project)

    def _update(self, progress: Progress) -> None:
        """Clip, step and average; drop the gradients afterwards."""
        if self._norms is not None:
            self._norms.taught(progress.step, self.network, self._parameters)
        if self.config.clip is not None:
            if self._scaler is not None:
                self._scaler.unscale_(self.optimizer)
            self._log.add(progress.step, {GRADIENT_NORM: clip(self._parameters, self.config.clip)})
        skipped = None
        if self._scaler is None:
            self._step_optimizer()
        else:
            self._scaler.step(self.optimizer)
            skipped = precision.skipped(self._scaler, self.optimizer)
            self._scaler.update()
        self._forget_gradients()
        if self._average is not None:
            self._average.update(progress.step, skipped)
        if self._after_step is not None:
            self._after_step(self.network, progress)

    def _forget_gradients(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    # ------------------------------------------------------------ numbers and validation

    def read_log(self) -> dict[str, Any]:
        """Return means since the last call; waits for the device."""
        self._log.settle()
        bad = self._log.first_nonfinite()
        facts = self._facts()
        values: dict[str, Any] = {**self._log.means(), **self._rate.logged, "facts": facts}
        if bad is not None:
            values["nonfinite_step"], values["nonfinite_term"] = bad
        if self._seen is not None:
            values["precision_seen"] = dict(self._seen)
        shared: dict[str, Any] = self._team.share(values)
        return shared

    def _facts(self) -> dict[str, Any]:
        """Return facts for health rules since the last call."""
        facts: dict[str, Any] = {}
        if self.config.clip is not None:
            facts["clipped"] = self._log.share_above(GRADIENT_NORM, self.config.clip)
        return facts if self._norms is None else {**facts, **self._norms.take(self._log.every())}

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
        count, size = batch.count, self._micro.size
        tensors = self._taken(batch)
        if self._rng is not None:
            tensors = self.project.on_device(tensors, self.statistics, self._rng)
        few = part(tensors, count, 0, size) if size < count else tensors
        progress = Progress(step, self.steps, step // self._per_epoch)
        return Replay(self.project, self.network, few, progress, self._cast or nullcontext()), -(-count // size)

    def notes(self) -> list[str]:
        """Return messages for the user since the last call."""
        told = self._notes.copy()
        self._notes.clear()
        return told

    def validate(self, batches: Iterable[HostBatch]) -> dict[str, float]:
        """Return means over samples, metrics, and extremes of the decision; training's random streams are restored."""
        for metric in self._metrics:
            metric.reset()
        totals = Totals(self.project)
        try:
            with undisturbed(self.network, self._average, self.device):
                for batch in batches:
                    for tensors, step, count in self._validated(batch):
                        totals.add(step, count)
                        if step.prediction is not None:
                            for metric in self._metrics:
                                metric.update(step.prediction, tensors)
                    self._feed.done(batch)
        except torch.OutOfMemoryError:
            raise no_room("validation", self.config.batch_size) from None
        found = read_metrics(self._metrics if totals.predicted else (), totals.read())
        shared: dict[str, float] = self._team.share(found)
        return shared

    def _compute(self, batch: HostBatch) -> tuple[Tensors, Step]:
        """Bring a validation batch to the device and run it through the network."""
        tensors = self._as_validated(self._feed.keep(batch))
        over = Progress(self.steps, self.steps, self.config.epochs)
        return tensors, self._step(self._parallel.evaluate, tensors, over)

    def _as_validated(self, tensors: Tensors) -> Tensors:
        if self._gather is not None:
            tensors = self._gather(tensors)
        return self.project.on_device(tensors, self.statistics, None)

    @torch.no_grad()
    def watch(self) -> Arrays:
        """Return what the project watches in the network that validation saw, as copies on the host."""
        with evaluating(self.network, self._average):
            return self._parallel.read(returned.watch, self.project, self.network)

    def snapshots(self, arrays: Arrays) -> Mapping[str, Array]:
        """Return the project's pictures of these samples.

        Raises Unhealthy instead of drawing NaN, and BadInput if memory does not suffice. Nothing is compiled for this,
        because compiling would take longer than drawing.
        """
        self._refuse_nonfinite()
        try:
            with (
                torch.compiler.set_stance("force_eager") if self._compile else nullcontext(),
                undisturbed(self.network, self._average, self.device),
            ):
                tensors = {name: torch.from_numpy(array).to(self.device) for name, array in arrays.items()}
                tensors = self._as_validated(tensors)
                with self._cast or nullcontext():
                    drawn = self._parallel.evaluate(snapshots, self.project, self.network, tensors)
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
            with self._cast or nullcontext():
                return project.step(network, project.on_device(tensors, project.statistics, None), over)

        eager = torch.compiler.set_stance("force_eager") if self._compile else nullcontext()
        try:
            with eager, undisturbed(self.network, self._average, self.device):
                network = setup.engine.load(setup, state).network
                apart = distance(step(self.project, self.network), step(setup.project, network))
                return {"weights_differ": other_weights(self.network, network), "prediction_differs": apart}
        except (torch.OutOfMemoryError, NoRoom):
            return None

    def state(self) -> State:
        """Return the live tensors; write them before the next step. Raise Unhealthy instead of returning NaN."""
        self._refuse_nonfinite()
        tree = {
            "model": self.network.state_dict(),
            "ema": None if self._average is None else self._average.state(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": None if self._scaler is None else self._scaler.state_dict(),
            **self._generators.read(),
            "log": self._log.state(),
            "gradient_norms": None if self._norms is None else self._norms.state(),
            "micro": self._micro.size * self._team.count,  # independent of the number of processes
            "statistics": self.statistics,
        }
        values, tensors = flatten(tree)
        return State({"torch": values}, tensors)

    def load_state(self, state: State) -> None:
        saved = unflatten(state.values["torch"], state.tensors)
        refuse_other_dtypes(saved["model"], self.network.state_dict())
        self.network.load_state_dict(divided(saved["model"], self.network.state_dict()))
        if self._average is not None:
            self._average.load(saved["ema"])
        averages = saved["optimizer"]["state"]
        for number in averages:
            averages[number] = divided(averages[number], dict.fromkeys(averages[number], self._parameters[number]))
        self.optimizer.load_state_dict(saved["optimizer"])
        same_layout(self.optimizer)
        self._rate.restored(self.optimizer)
        if self._scaler is not None and saved["scaler"] is not None:
            self._scaler.load_state_dict(saved["scaler"])
        self._log.load(saved["log"])
        if self._norms is not None:
            self._norms.load(saved.get("gradient_norms") or saved.get("pulls") or {})  # its name before 0.1.0
        self._micro.size = -(-saved["micro"] // self._team.count)
        self.statistics = self.project.statistics = saved["statistics"]
        self._generators.write(saved, state.values.get("loop", {}).get("step", 0))

    def _refuse_nonfinite(self) -> None:
        self._log.settle()
        bad = self._log.first_nonfinite()
        if bad is not None:
            raise Unhealthy(not_finite(*bad))
        for name in filter(None, self._team.every(self._weights.first_nonfinite())):
            raise Unhealthy(weight_not_finite(name))

    # ------------------------------------------------------------ the device

    def footprint(self, arrays: Arrays) -> Footprint:
        """Return the memory that training takes, from a forward and backward pass of a few of these samples.

        With fsdp no step is measured, because every process would have to wait for the others.
        """
        loss = None if self.strategy == "fsdp" else partial(self._loss_of, arrays)
        return footprint(
            *(self.network, self.optimizer, self._parameters, self._average, self.device, self._micro.size, loss)
        )

    def _loss_of(self, arrays: Arrays, count: int) -> torch.Tensor:
        """Return the loss of the first samples at the end of training, when all terms of the loss are active."""
        project, rng = copy(self.project), None if self._rng is None else torch.Generator(self.device)
        tensors = {name: torch.from_numpy(array[:count]).to(self.device) for name, array in arrays.items()}
        tensors = tensors if self._gather is None else self._gather(tensors)
        tensors = project.on_device(tensors, self.statistics, rng)
        with self._cast or nullcontext():
            loss: torch.Tensor = project.step(self.network, tensors, Progress(self.steps, self.steps, 0)).loss
        return loss

    def idle(self) -> bool:
        return self._queued is None or self._queued.query()

    def peak_memory(self) -> int:
        return torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else 0
