"""A network under training in plain PyTorch: what `runner_core.loop` drives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn

from runner_core import metrics, watched
from runner_core._errors import Unhealthy
from runner_core._nonfinite import not_finite, weight_not_finite
from runner_core._random import stream_seed
from runner_core.engines.memory import ValidationParts, no_room
from runner_core.engines.returned import detached, refuse_no_step
from runner_core.engines.steplog import GRADIENT_NORM, StepLog
from runner_core.engines.torch import precision
from runner_core.engines.torch.costs import Costs
from runner_core.engines.torch.ema import Average, averaged
from runner_core.engines.torch.gather import DeviceRows
from runner_core.engines.torch.inference import evaluating
from runner_core.engines.torch.oom import MicroBatches, Rewind, free, part
from runner_core.engines.torch.optim import (
    LearningRate,
    build_optimizer,
    clip,
    quick_step,
    same_layout,
    trained_parameters,
)
from runner_core.engines.torch.placement import place, wanted
from runner_core.engines.torch.state import flatten, read_generators, seed_generators, unflatten, write_generators
from runner_core.engines.torch.steplog import Weights, read
from runner_core.engines.torch.transfer import feed
from runner_core.engines.torch.validation import Totals
from runner_core.project import overrides
from runner_core.protocols import Arrays, HostBatch, Progress, State, Step, Tensors
from runner_core.setup import Data, Setup


class TorchTrainer:
    """`protocols.Trainer`. `rank` is this process's number among those that train together."""

    block = 1

    def __init__(self, setup: Setup, data: Data, steps: int, device: torch.device, rank: int = 0) -> None:
        project, config = setup.project, setup.config.train
        self.project, self.config = project, config
        self.statistics = project.statistics = data.statistics
        self.device, self.rank, self.steps = device, rank, steps
        self._per_epoch = max(1, steps // config.epochs)
        seed_generators(config.seed)
        self.network: nn.Module = place(project.model(setup.precision), project, device)
        self._kept = precision.keep_float32(self.network, setup.precision, device)
        self._compile = wanted("compile", project, device)
        self._cast = precision.autocast(setup.precision, device)
        self._scaler = precision.grad_scaler(setup.precision, device)
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
        self._log = StepLog(read)
        self._costs = Costs(project)
        self._seen: Counter[str] | None = None
        self._notes: list[str] = []
        self._micro = MicroBatches(
            project, config, self.network, device, self._backward, self._forget_gradients, self._notes.append
        )
        self._validated = ValidationParts(
            self._compute, torch.OutOfMemoryError, partial(free, device), self._notes.append
        )
        self._unproven = True
        self._queued = torch.cuda.Event() if device.type == "cuda" else None

    # ------------------------------------------------------------ one step

    def train_step(self, batch: HostBatch, step: int) -> None:
        """One optimizer step; releases the batch. Raises BadInput when memory does not suffice."""
        doing = "bringing the batch to the device"
        try:
            tensors = self._taken(batch)
            if self._rng is not None:
                doing = "on_device"
                self._rng.manual_seed(stream_seed(self.config.seed, step, self.rank))
                tensors = self.project.on_device(tensors, self.statistics, self._rng)
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
        self._feed.done(batch)

    def _taken(self, batch: HostBatch) -> Tensors:
        tensors = self._feed.take(batch)
        return tensors if self._gather is None else self._gather(tensors)

    def _first(self, tensors: Tensors, count: int, progress: Progress) -> dict[str, Any]:
        """The first step, with an eye on the precision that layers compute in.

        A compiled network cannot be observed: it is run once before it is compiled, which leaves no trace.
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
            self.project.step(self.network, few, progress)
        rewind.back()
        self.network.compile()
        return self._micro.gradients(tensors, count, progress)

    def _backward(self, tensors: Tensors, progress: Progress, share: float) -> dict[str, Any]:
        """Add `share` times the gradients; loss and terms (times `share`), without their graph."""
        loss, terms, _, costs = self._step(tensors, progress)
        if costs:
            self._costs.keep(costs)
        scaled = loss if share == 1.0 else loss * share
        (scaled if self._scaler is None else self._scaler.scale(scaled)).backward()
        values = {"loss": scaled.detach()}
        if terms:
            for name, term in terms.items():
                value = term.detach() if isinstance(term, torch.Tensor) else term
                values[name] = value if share == 1.0 else value * share
        return values

    def _step(self, tensors: Tensors, progress: Progress) -> Step:
        if self._cast is None:
            step = self.project.step(self.network, tensors, progress)
        else:
            with self._cast:
                step = self.project.step(self.network, tensors, progress)
        if self._unproven:
            self._prove(step)
        return step

    def _prove(self, step: Step) -> None:
        """Once: BadInput for a step that nothing can be learned from."""
        refuse_no_step(self.project, step)
        if torch.is_grad_enabled():
            self._unproven = False
            if not step.loss.requires_grad:
                raise detached(self.project)

    def _update(self, progress: Progress) -> None:
        """Clip, step, average; gradients are gone afterwards."""
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
        """Means since the last call. Waits for the device."""
        self._log.settle()
        bad = self._log.first_nonfinite()
        values: dict[str, Any] = {**self._log.means(), "learning_rate": self._rate.value}
        if bad is not None:
            values["nonfinite_step"], values["nonfinite_term"] = bad
        if self._seen is not None:
            values["precision_seen"] = dict(self._seen)
        if (losses := self._costs.take()) is not None:
            values["losses"] = losses
        return values

    def notes(self) -> list[str]:
        """What the user should know, since the last call."""
        told = self._notes.copy()
        self._notes.clear()
        return told

    @torch.no_grad()
    def validate(self, batches: Iterable[HostBatch]) -> dict[str, float]:
        """Means over samples, metrics, extremes of the decision; training's random streams do not notice."""
        for metric in self._metrics:
            metric.reset()
        totals = Totals(self.project)
        generators = read_generators(self.device)
        try:
            with evaluating(self.network, self._average):
                for batch in batches:
                    for tensors, step, count in self._validated(batch):
                        totals.add(step, count)
                        if step.prediction is not None:
                            for metric in self._metrics:
                                metric.update(step.prediction, tensors)
                    self._feed.done(batch)
        except torch.OutOfMemoryError:
            raise no_room("validation", self.config.batch_size) from None
        finally:
            write_generators(generators, self.device)
        return metrics.read(self._metrics if totals.predicted else (), totals.read())

    def _compute(self, batch: HostBatch) -> tuple[Tensors, Step]:
        """A validation batch on the device, and through the network."""
        tensors = self._feed.keep(batch)
        if self._gather is not None:
            tensors = self._gather(tensors)
        tensors = self.project.on_device(tensors, self.statistics, None)
        return tensors, self._step(tensors, Progress(self.steps, self.steps, self.config.epochs))

    @torch.no_grad()
    def watch(self) -> Arrays:
        """What the project watches of the network that validation saw; copies on the host."""
        with evaluating(self.network, self._average):
            return watched.watch(self.project, self.network)

    # ------------------------------------------------------------ checkpoints

    def state(self) -> State:
        """Refers to the live tensors: write it before the next step. Raises Unhealthy rather than give out NaN."""
        self._refuse_nonfinite()
        tree = {
            "model": self.network.state_dict(),
            "ema": None if self._average is None else self._average.state(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": None if self._scaler is None else self._scaler.state_dict(),
            "generators": read_generators(self.device),
            "log": self._log.state(),
            "costs": self._costs.state(),
            "micro": self._micro.size,
            "statistics": self.statistics,
        }
        values, tensors = flatten(tree)
        return State({"torch": values}, tensors)

    def load_state(self, state: State) -> None:
        saved = unflatten(state.values["torch"], state.tensors)
        self.network.load_state_dict(saved["model"])
        if self._average is not None:
            self._average.load(saved["ema"])
        self.optimizer.load_state_dict(saved["optimizer"])
        same_layout(self.optimizer)
        self._rate.restored(self.optimizer)
        if self._scaler is not None and saved["scaler"] is not None:
            self._scaler.load_state_dict(saved["scaler"])
        self._log.load(saved["log"])
        self._costs.load(saved.get("costs", {}))  # checkpoints of version 0.1 have none
        self._micro.size = saved["micro"]
        self.statistics = self.project.statistics = saved["statistics"]
        write_generators(saved["generators"], self.device)

    def _refuse_nonfinite(self) -> None:
        self._log.settle()
        bad = self._log.first_nonfinite()
        if bad is not None:
            raise Unhealthy(not_finite(*bad))
        name = self._weights.first_nonfinite()
        if name is not None:
            raise Unhealthy(weight_not_finite(name))

    # ------------------------------------------------------------ the device

    def idle(self) -> bool:
        return self._queued is None or self._queued.query()

    def peak_memory(self) -> int:
        return torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else 0
