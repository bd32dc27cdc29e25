"""One optimizer step of a PyTorch network, with everything that it changes: weights, optimizer, learning rate."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from runner_core.base.errors import BadInput
from runner_core.config import TrainConfig
from runner_core.contract import Metric, Progress, Step, Tensors
from runner_core.contract.phases import BACKWARD, LOSS, unnoticed
from runner_core.contract.project import Project
from runner_core.contract.setup import SHARDED, Setup
from runner_core.engines.returned import detached, refuse_no_step, refuse_unused_optimizer
from runner_core.engines.schedule import Schedule
from runner_core.engines.torch import precision, ranks
from runner_core.engines.torch.checkpoint import Generators, refuse_other_dtypes, seed_generators
from runner_core.engines.torch.gradient_norms import GradientNorms
from runner_core.engines.torch.memory import MicroBatches, Rewind, part
from runner_core.engines.torch.muon import build_muon
from runner_core.engines.torch.parallel import fresh, parallel, place
from runner_core.engines.torch.shards import divided, gathered
from runner_core.engines.torch.weights import Average


class Learning:
    """The network under training and its step: `gradients` of a batch, then `update`.

    Args:
        setup: The training; `project.statistics` must be set.
        metrics: Those of the validation; measuring gradient norms resets them.
        device: Where the network is placed.
        say: Gets a message when memory has run out and micro-batches shrink.
    """

    def __init__(
        self, setup: Setup, metrics: Sequence[Metric], device: torch.device, say: Callable[[str], None]
    ) -> None:
        project, config, team = setup.project, setup.config.train, setup.team
        self.project, self.config, self.device, self._team = project, config, device, team
        seed_generators(config.seed)
        self.network: nn.Module = place(fresh(project, setup.precision, setup.start), project, device)
        self._kept = precision.keep_float32(self.network, setup.precision, device)
        self.compiles = project.config.train.compile == "on"
        self._cast = precision.autocast(setup.precision, device)
        self.scaler = precision.grad_scaler(setup.precision, device)
        memory = setup.device.memory_bytes
        ranks.gather_by(project.config.exchange.features)
        hosts = [member.host for member in getattr(team, "members", ())]
        self.parallel = parallel(project, self.network, device, setup.precision, memory, team.count, self._kept, hosts)
        self._generators = Generators(team, device, config.seed)
        self.optimizer = build_optimizer(project, self.network, config)
        self._step_optimizer = quick_step(self.optimizer)
        self.parameters = trained_parameters(self.optimizer)
        self._clipped = clip_groups(project, self.network, self.parameters)
        self.rate = LearningRate(project, self.optimizer, config)
        self.average = None if config.ema is None else Average(self.network, config.ema)
        own = project.learning()
        self._splittable, self._after_step = own.splittable, own.after_step
        # fsdp and hsdp gather the weights at the network's outputs, wherever a gradient passes them
        self.norms = None if self.parallel.name in SHARDED else GradientNorms(project, metrics, team.count == 1)
        self._project_step = project.step
        if self.norms is not None and team.count > 1:
            self._project_step = self.norms.around(project.step)
        self.micro = MicroBatches(
            project, config, self.network, device, self._backward, self._forget_gradients, say,
            self.parallel.withholding,
        )  # fmt: skip
        self.seen: Counter[str] | None = None
        """Number of layers by the dtype in which they computed in the first step; None before it."""
        self.gradients: Callable[[Tensors, int, Progress], dict[str, Any]] = self._first
        """Adds the gradients of the mean loss over a batch of so many samples; returns loss and terms."""
        self._unproven = True
        self.phase: Callable[[str], None] = unnoticed

    @property
    def cast(self) -> Any:
        """Return the context in which the network computes."""
        return self._cast or nullcontext()

    # ------------------------------------------------------------ gradients

    def _first(self, tensors: Tensors, count: int, progress: Progress) -> dict[str, Any]:
        """Compute the first step's gradients, and observe the precision in which layers compute.

        A compiled network cannot be observed, so it runs once before it is compiled, which leaves no trace.
        """
        self.seen, self.gradients = Counter(), self.micro.gradients
        if not self.compiles:
            with precision.observed(self.network, self.seen, self._kept):
                found = self.micro.gradients(tensors, count, progress)
            self.parallel.settle()
            return found
        rewind = Rewind(self.network, self.device)
        rewind.mark()
        few = part(tensors, count, 0, 1) if self._splittable else tensors
        with precision.observed(self.network, self.seen, self._kept), torch.no_grad(), self.cast:
            self.parallel.evaluate(self.project.step, self.network, few, progress)
        rewind.back()
        self.network.compile()
        return self.micro.gradients(tensors, count, progress)

    def _backward(self, tensors: Tensors, progress: Progress, share: float) -> dict[str, Any]:
        """Add `share` times the gradients; return loss and terms (times `share`), without their graph."""
        step = self.step(self.parallel.train, tensors, progress)
        self.phase(LOSS)
        loss, terms, _, _ = step
        if self.norms is not None:
            self.norms.measure(progress.step, step, tensors)
        del step  # the prediction may be large
        scaled = loss if share == 1.0 else loss * share
        (scaled if self.scaler is None else self.scaler.scale(scaled)).backward()
        self.parallel.check()
        self.phase(BACKWARD)
        values = {"loss": scaled.detach()}
        if terms:
            for name, term in terms.items():
                value = term.detach() if isinstance(term, torch.Tensor) else term
                values[name] = value if share == 1.0 else value * share
        return values

    def step(self, run: Callable[..., Any], tensors: Tensors, progress: Progress) -> Step:
        """Return the result of the project's `step`, called by `run` (`parallel.train` or `parallel.evaluate`)."""
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

    # ------------------------------------------------------------ the update

    def update(self, progress: Progress) -> torch.Tensor | None:
        """Clip, step and average, and drop the gradients; return their norm if they are clipped."""
        if self.norms is not None:
            self.norms.taught(progress.step, self.network, self.parameters)
        norm = skipped = None
        if self.config.clip is not None:
            if self.scaler is not None:
                self.scaler.unscale_(self.optimizer)
            norms = [clip(parameters, self.config.clip) for parameters in self._clipped]
            norm = norms[0] if len(norms) == 1 else torch.stack(norms).norm()
        if self.scaler is None:
            self._step_optimizer()
        else:
            self.scaler.step(self.optimizer)
            skipped = precision.skipped(self.scaler, self.optimizer)
            self.scaler.update()
        self._forget_gradients()
        if self.average is not None:
            self.average.update(progress.step, skipped)
        if self._after_step is not None:
            self._after_step(self.network, progress)
        return norm

    def _forget_gradients(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    # ------------------------------------------------------------ checkpoints

    def state(self) -> dict[str, Any]:
        """Return the live tensors, and what else the next step depends on."""
        return {
            "model": self.network.state_dict(),
            "ema": None if self.average is None else self.average.state(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": None if self.scaler is None else self.scaler.state_dict(),
            **self._generators.read(),
            "gradient_norms": None if self.norms is None else self.norms.state(),
            "micro": self.micro.size * self._team.count,  # independent of the number of processes
            "unused_weights": self.parallel.unused,
        }

    def load(self, saved: Mapping[str, Any], step: int) -> None:
        """Go on from the state that was saved after `step` steps."""
        refuse_other_dtypes(saved["model"], self.network.state_dict())
        self.network.load_state_dict(divided(saved["model"], self.network.state_dict()))
        if self.average is not None:
            self.average.load(saved["ema"])
        averages = saved["optimizer"]["state"]
        for number in averages:
            averages[number] = divided(averages[number], dict.fromkeys(averages[number], self.parameters[number]))
        self.optimizer.load_state_dict(saved["optimizer"])
        same_layout(self.optimizer)
        self.rate.restored(self.optimizer)
        if self.scaler is not None and saved["scaler"] is not None:
            self.scaler.load_state_dict(saved["scaler"])
        if self.norms is not None:
            self.norms.load(saved.get("gradient_norms") or saved.get("pulls") or {})  # its name before 0.1.0
        self.micro.size = -(-saved["micro"] // self._team.count)
        if saved.get("unused_weights") is not None:
            self.parallel.settle(saved["unused_weights"])
        self._generators.write(saved, step)


# ---------------------------------------------------------------- the optimizer


def build_optimizer(project: Project, network: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """Return the project's optimizer, or that of `train.optimizer` with the kernel that updates all weights at once."""
    learning = project.learning()
    groups = None if learning.parameter_groups is None else learning.parameter_groups(network)
    groups = [p for p in network.parameters() if p.requires_grad] if groups is None else list(groups)
    if not groups:
        raise BadInput(f"project {project.name}: the network has no trainable parameters")
    optimizer = None if learning.optimizer is None else learning.optimizer(groups)
    if optimizer is not None:
        refuse_unused_optimizer(project, config)
        return optimizer
    if config.optimizer == "muon":
        return build_muon(project.name, groups, config)
    common = {"lr": config.learning_rate, "weight_decay": config.weight_decay, "fused": True}
    if config.optimizer == "sgd":
        return torch.optim.SGD(groups, momentum=config.momentum, nesterov=config.momentum > 0, **common)
    return torch.optim.AdamW(groups, **common)


class LearningRate:
    """Sets each group's learning rate to its base times the schedule's factor, a function of the step.

    The project may then adjust the groups.
    """

    def __init__(self, project: Project, optimizer: torch.optim.Optimizer, config: TrainConfig) -> None:
        self._groups = optimizer.param_groups
        self._bases = [group["lr"] for group in self._groups]
        self._schedule = Schedule(project, config)
        self._factor: float | None = None
        self._adjust = project.learning().adjust

    def set(self, progress: Progress) -> None:
        value = self._schedule(progress)
        if value != self._factor or self._adjust is not None:  # undoes earlier adjustments first
            self._factor = value
            for group, base in zip(self._groups, self._bases, strict=True):
                group["lr"] = base * value
        if self._adjust is not None:
            self._adjust(self._groups, progress)

    @property
    def logged(self) -> dict[str, float]:
        """Learning rates of the last step.

        `learning_rate` is the highest of all parameter groups. If they differ, `learning_rate_lowest` is the lowest.
        """
        rates = [float(group["lr"]) for group in self._groups]
        highest, lowest = max(rates), min(rates)
        return {"learning_rate": highest} | ({"learning_rate_lowest": lowest} if lowest < highest else {})

    def restored(self, optimizer: torch.optim.Optimizer) -> None:
        """Use the new groups of an optimizer whose state was loaded."""
        self._groups = optimizer.param_groups
        self._factor = None


def quick_step(optimizer: torch.optim.Optimizer) -> Callable[[], Any]:
    """Return `optimizer.step` without the label that PyTorch adds for its profiler.

    The label takes longer than the update of a small network. It stays if anything observes the step: a profiler, a
    hook, a wrapped `step`.
    """
    unlabelled = getattr(type(optimizer).step, "__wrapped__", None)
    if unlabelled is None or not getattr(type(optimizer).step, "hooked", False):
        return optimizer.step
    hooks = [
        getattr(owner, f"_{prefix}_{moment}_hooks", None)
        for owner, prefix in (
            (optimizer, "optimizer_step"),
            (sys.modules[torch.optim.Optimizer.__module__], "global_optimizer"),
        )
        for moment in ("pre", "post")
    ]
    profiling = getattr(torch.autograd, "_profiler_enabled", None)
    if profiling is None or None in hooks:  # an unknown PyTorch version
        return optimizer.step

    def step() -> Any:
        if profiling() or any(hooks) or "step" in optimizer.__dict__:
            return optimizer.step()
        return unlabelled(optimizer)

    return step


def trained_parameters(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def clip_groups(project: Project, network: nn.Module, trained: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Return the trained parameters by the norm that their gradients share (`Learning.clip_units`)."""
    units = project.learning().clip_units
    groups = [] if units is None else [{*unit.parameters()} for unit in units(network)]
    own = {parameter: number for number, group in reversed([*enumerate(groups)]) for parameter in group}
    found: dict[int, list[nn.Parameter]] = {}
    for parameter in trained:
        found.setdefault(own.get(parameter, -1), []).append(parameter)
    return list(found.values())


def same_layout(optimizer: torch.optim.Optimizer) -> None:
    """Give loaded optimizer state the memory layout of its parameters (channels last), as when it was saved."""
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                state[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def clip(parameters: list[nn.Parameter], norm: float) -> Any:
    """Scale gradients down to this global norm; return their norm before (a tensor on the device)."""
    return gathered(torch.nn.utils.clip_grad_norm_(parameters, norm))
