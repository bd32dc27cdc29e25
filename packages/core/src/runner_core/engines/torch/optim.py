"""The optimizer, the course of its learning rate, and the clipping of gradients."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from runner_core._errors import BadInput
from runner_core.config import TrainConfig
from runner_core.engines.schedule import Schedule
from runner_core.engines.torch.parallel import gathered
from runner_core.project import Project, overrides
from runner_core.protocols import Progress


def build_optimizer(project: Project, network: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """The project's optimizer, or AdamW with the kernel that updates all weights at once."""
    groups = project.parameter_groups(network)
    groups = [p for p in network.parameters() if p.requires_grad] if groups is None else list(groups)
    if not groups:
        raise BadInput(f"project {project.name}: the network has no trainable parameters")
    optimizer = project.optimizer(groups)
    if optimizer is not None:
        return optimizer
    return torch.optim.AdamW(groups, lr=config.learning_rate, weight_decay=config.weight_decay, fused=True)


class LearningRate:
    """Sets the learning rate of every group to its own base times the schedule's factor: a function of the step. Then
    the project adjusts what it likes of the groups."""

    def __init__(self, project: Project, optimizer: torch.optim.Optimizer, config: TrainConfig) -> None:
        self._groups = optimizer.param_groups
        self._bases = [group["lr"] for group in self._groups]
        self._schedule = Schedule(project, config)
        self._factor: float | None = None
        self._adjust = project.adjust if overrides(project, "adjust") else None

    def set(self, progress: Progress) -> None:
        value = self._schedule(progress)
        if value != self._factor or self._adjust is not None:  # what was adjusted is set back first
            self._factor = value
            for group, base in zip(self._groups, self._bases, strict=True):
                group["lr"] = base * value
        if self._adjust is not None:
            self._adjust(self._groups, progress)

    @property
    def value(self) -> float:
        """Learning rate of the first group in the last step."""
        return float(self._groups[0]["lr"])

    @property
    def highest(self) -> float:
        """The largest of all groups in the last step."""
        return max(float(group["lr"]) for group in self._groups)

    def restored(self, optimizer: torch.optim.Optimizer) -> None:
        """The optimizer's state was loaded: it has new groups."""
        self._groups = optimizer.param_groups
        self._factor = None


def quick_step(optimizer: torch.optim.Optimizer) -> Callable[[], Any]:
    """`optimizer.step` without the label that PyTorch puts around it for its profiler, which takes longer than the
    update of a small network. With the label whenever somebody looks: a profiler, a hook, a wrapped `step`."""
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
    if profiling is None or None in hooks:  # another PyTorch than those this was written for
        return optimizer.step

    def step() -> Any:
        if profiling() or any(hooks) or "step" in optimizer.__dict__:
            return optimizer.step()
        return unlabelled(optimizer)

    return step


def trained_parameters(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def same_layout(optimizer: torch.optim.Optimizer) -> None:
    """Give loaded optimizer state the memory layout of its parameters (channels last), as it had when saved."""
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                state[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def clip(parameters: list[nn.Parameter], norm: float) -> Any:
    """Scale gradients down to this global norm; the norm they had (a tensor on the device)."""
    return gathered(torch.nn.utils.clip_grad_norm_(parameters, norm))
