"""The optimizer, its learning rate, and gradient clipping."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from runner_core.base.errors import BadInput
from runner_core.config import TrainConfig
from runner_core.contract import Progress
from runner_core.contract.project import Project
from runner_core.engines.schedule import Schedule
from runner_core.engines.torch.parallel import gathered


def build_optimizer(project: Project, network: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """Return the project's optimizer, or AdamW with the kernel that updates all weights at once."""
    learning = project.learning()
    groups = None if learning.parameter_groups is None else learning.parameter_groups(network)
    groups = [p for p in network.parameters() if p.requires_grad] if groups is None else list(groups)
    if not groups:
        raise BadInput(f"project {project.name}: the network has no trainable parameters")
    optimizer = None if learning.optimizer is None else learning.optimizer(groups)
    if optimizer is not None:
        return optimizer
    return torch.optim.AdamW(groups, lr=config.learning_rate, weight_decay=config.weight_decay, fused=True)


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


def same_layout(optimizer: torch.optim.Optimizer) -> None:
    """Give loaded optimizer state the memory layout of its parameters (channels last), as when it was saved."""
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                state[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def clip(parameters: list[nn.Parameter], norm: float) -> Any:
    """Scale gradients down to this global norm; return their norm before (a tensor on the device)."""
    return gathered(torch.nn.utils.clip_grad_norm_(parameters, norm))
