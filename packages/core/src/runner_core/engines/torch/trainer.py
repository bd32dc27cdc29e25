"""A network under training in plain PyTorch: what `runner_core.loop` drives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn

from runner_core import metrics
from runner_core._errors import Unhealthy
from runner_core._random import stream_seed
from runner_core.engines.torch import precision
from runner_core.engines.torch.ema import Average, averaged
from runner_core.engines.torch.gather import DeviceRows
from runner_core.engines.torch.inference import evaluating, make_infer
from runner_core.engines.torch.oom import Rewind, too_large
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
from runner_core.engines.torch.steplog import GRADIENT_NORM, StepLog, Weights
from runner_core.engines.torch.transfer import feed
from runner_core.engines.torch.validation import Totals
from runner_core.loop import not_finite
from runner_core.project import Project
from runner_core.protocols import HostBatch, Infer, Progress, State, Step, Tensors
from runner_core.setup import Data, Setup


class TorchTrainer:
    """`protocols.Trainer`. `rank` is this process's number among those that train together."""

    def __init__(self, setup: Setup, data: Data, steps: int, device: torch.device, rank: int = 0) -> None:
        project, config = setup.project, setup.config.train
        self.project, self.config, self.statistics = project, config, data.statistics
        self.device, self.rank, self.steps = device, rank, steps
        self._per_epoch = max(1, steps // config.epochs)
        seed_generators(config.seed)
        self.network: nn.Module = place(project.model(setup.precision), project, device)
        precision.keep_float32(self.network, setup.precision, device)
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
        own = partial(_overrides, project)
        self._rng = torch.Generator(device) if own("on_device") else None
        self._after_step = project.after_step if own("after_step") else None
        self._metrics = setup.metrics()
        self._log = StepLog()
        self._seen: Counter[str] = Counter()
        self._micro = -(-config.batch_size // max(1, config.accumulate))
        self._rewind = Rewind(self.network, device) if project.splittable else None
        self._notes: list[str] = []
        self._queued = torch.cuda.Event() if device.type == "cuda" else None

    # ------------------------------------------------------------ one step

    def train_step(self, batch: HostBatch, step: int) -> None:
        """One optimizer step; releases the batch. Raises BadInput when memory does not suffice."""
        tensors = self._feed.take(batch)
        if self._gather is not None:
            tensors = self._gather(tensors)
        if self._rng is not None:
            self._rng.manual_seed(stream_seed(self.config.seed, step, self.rank))
            tensors = self.project.on_device(tensors, self.statistics, self._rng)
        progress = Progress(step, self.steps, step // self._per_epoch)
        self._rate.set(progress)
        if not self._seen:
            self._first(tensors, batch.count, progress)
        else:
            self._gradients(tensors, batch.count, progress)
        self._update(progress)
        if self._queued is not None:
            self._queued.record()
        self._feed.done(batch)

    def _first(self, tensors: Tensors, count: int, progress: Progress) -> None:
        """The first step, with an eye on the precision that layers compute in.

        A compiled network cannot be observed: it is run once before it is compiled, which leaves no trace.
        """
        if not self._compile:
            with precision.observed(self.network, self._seen):
                self._gradients(tensors, count, progress)
        else:
            rewind = Rewind(self.network, self.device)
            rewind.mark()
            with precision.observed(self.network, self._seen), torch.no_grad(), self._cast or nullcontext():
                self.project.step(self.network, _part(tensors, count, 0, min(count, self._micro)), progress)
            rewind.back()
            self.network.compile()
            self._gradients(tensors, count, progress)
        self._seen.setdefault("none observed", 0)

    def _gradients(self, tensors: Tensors, count: int, progress: Progress) -> None:
        """Gradients of the mean loss over the batch, in micro-batches; smaller ones when the memory runs out."""
        while True:
            if self._rewind is not None:
                self._rewind.mark()
            try:
                if count <= self._micro:
                    values = self._backward(tensors, progress, 1.0)
                else:
                    values = self._in_parts(tensors, count, progress)
            except torch.OutOfMemoryError:
                pass  # retried outside this block: the exception keeps the failed step's memory alive
            else:
                self._log.add(progress.step, values)
                return
            self._shrink(tensors, count, progress)

    def _backward(self, tensors: Tensors, progress: Progress, share: float) -> dict[str, Any]:
        """Add `share` times the gradients; loss and terms (times `share`), without their graph."""
        loss, terms, _ = self._step(tensors, progress)
        scaled = loss if share == 1.0 else loss * share
        (scaled if self._scaler is None else self._scaler.scale(scaled)).backward()
        values = {"loss": scaled.detach()}
        if terms:
            for name, term in terms.items():
                value = term.detach() if isinstance(term, torch.Tensor) else term
                values[name] = value if share == 1.0 else value * share
        return values

    def _in_parts(self, tensors: Tensors, count: int, progress: Progress) -> dict[str, Any]:
        """Micro-batches, each weighing as much as it has samples (the last may have fewer)."""
        total: dict[str, Any] = {}
        for begin in range(0, count, self._micro):
            end = min(count, begin + self._micro)
            values = self._backward(_part(tensors, count, begin, end), progress, (end - begin) / count)
            total = {name: total.get(name, 0.0) + value for name, value in values.items()}
        return total

    def _step(self, tensors: Tensors, progress: Progress) -> Step:
        if self._cast is None:
            return self.project.step(self.network, tensors, progress)
        with self._cast:
            return self.project.step(self.network, tensors, progress)

    def _update(self, progress: Progress) -> None:
        """Clip, step, average; gradients are gone afterwards."""
        if self.config.clip is not None:
            if self._scaler is not None:
                self._scaler.unscale_(self.optimizer)
            self._log.add(progress.step, {GRADIENT_NORM: clip(self._parameters, self.config.clip)})
        if self._scaler is None:
            self._step_optimizer()
        else:
            self._scaler.step(self.optimizer)
            self._scaler.update()
        self._forget_gradients()
        if self._average is not None:
            self._average.update(progress.step)
        if self._after_step is not None:
            self._after_step(self.network, progress)

    def _forget_gradients(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    # ------------------------------------------------------------ out of memory

    def _shrink(self, tensors: Tensors, count: int, progress: Progress) -> None:
        """Halve the micro-batch and undo what the failed step did; BadInput where that is not possible."""
        self._free()
        tried = min(self._micro, count)
        if self._rewind is None or tried == 1:
            raise too_large(count, self._largest(tensors, count, tried // 2, progress))
        self._rewind.back()
        self._micro = (tried + 1) // 2
        self._notes.append(
            f"out of device memory with {tried} samples at once in step {progress.step + 1}; from here on each step "
            f"goes in micro-batches of {self._micro}, which learn the same"
        )

    def _largest(self, tensors: Tensors, count: int, size: int, progress: Progress) -> int:
        """The largest of size, size / 2, … samples that a step has memory for; 0 when none."""
        while size:
            try:
                self._backward(_part(tensors, count, 0, size), progress, 1.0)
                return size
            except torch.OutOfMemoryError:
                size //= 2
            except (ValueError, RuntimeError):  # BatchNorm needs two samples, say
                return 0
            self._free()
        return 0

    def _free(self) -> None:
        self._forget_gradients()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    # ------------------------------------------------------------ numbers and validation

    def read_log(self) -> dict[str, Any]:
        """Means since the last call. Waits for the device."""
        self._log.settle()
        bad = self._log.first_nonfinite()
        values: dict[str, Any] = {**self._log.means(), "learning_rate": self._rate.value}
        if bad is not None:
            values["nonfinite_step"], values["nonfinite_term"] = bad
        values["precision_seen"] = {dtype: n for dtype, n in self._seen.items() if n}
        values["notes"], self._notes = self._notes, []
        return values

    @torch.no_grad()
    def validate(self, batches: Iterable[HostBatch]) -> dict[str, float]:
        """Means over samples, metrics, extremes of the decision; training's random streams do not notice."""
        for metric in self._metrics:
            metric.reset()
        totals = Totals(self.project)
        progress = Progress(self.steps, self.steps, self.config.epochs)
        generators = read_generators(self.device)
        try:
            with evaluating(self.network, self._average):
                for batch in batches:
                    tensors = self._feed.keep(batch)
                    self._feed.done(batch)
                    if self._gather is not None:
                        tensors = self._gather(tensors)
                    tensors = self.project.on_device(tensors, self.statistics, None)
                    step = self._step(tensors, progress)
                    totals.add(step, batch.count)
                    if step.prediction is not None:
                        for metric in self._metrics:
                            metric.update(step.prediction, tensors)
        finally:
            write_generators(generators, self.device)
        return metrics.read(self._metrics if totals.predicted else (), totals.read())

    def infer(self) -> Infer:
        mode = partial(evaluating, self.network, self._average)
        return make_infer(self.project, self.network, self.statistics, device=self.device, cast=self._cast, mode=mode)

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
            "micro": self._micro,
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
        self._micro = saved["micro"]
        self.statistics = saved["statistics"]
        write_generators(saved["generators"], self.device)

    def _refuse_nonfinite(self) -> None:
        self._log.settle()
        bad = self._log.first_nonfinite()
        if bad is not None:
            raise Unhealthy(not_finite(*bad))
        name = self._weights.first_nonfinite()
        if name is not None:
            raise Unhealthy(
                f"{name} (a weight) became NaN or infinite while the loss was finite: a gradient overflowed. No "
                "checkpoint holds such weights; set train.clip or a lower train.learning_rate"
            )

    # ------------------------------------------------------------ the device

    def idle(self) -> bool:
        return self._queued is None or self._queued.query()

    def peak_memory(self) -> int:
        return torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else 0

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def _overrides(project: Project, method: str) -> bool:
    """Does the project have its own `method`? (The default ones do nothing: they need not be called every step.)"""
    return getattr(type(project), method) is not getattr(Project, method)


def _part(tensors: Tensors, count: int, begin: int, end: int) -> Tensors:
    """Samples begin…end of a batch of `count`; what does not go by sample stays whole."""
    return {
        name: t[begin:end] if isinstance(t, torch.Tensor) and t.ndim and len(t) == count else t
        for name, t in tensors.items()
    }
