"""Muon for the matrices of hidden layers, AdamW for all other weights: `train.optimizer muon`.

Muon (Jordan et al. 2024) takes a step in the direction of the orthogonalised momentum. It is PyTorch's, with the step's
length that lets it share learning rate and weight decay with AdamW (Liu et al. 2025, arXiv:2502.16982).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from runner_core.base.errors import BadInput
from runner_core.config import TrainConfig


class MuonWithAdamW(torch.optim.Optimizer):
    """One optimizer of groups with `hidden` true (Muon) and all others (AdamW); its state is that of both."""

    def __init__(self, groups: Sequence[dict[str, Any]], lr: float = 1e-3, weight_decay: float = 0.0) -> None:
        common = {"lr": lr, "weight_decay": weight_decay}
        chosen = [[g for g in groups if bool(g.get("hidden")) is hidden] for hidden in (True, False)]
        muon = _muon()(chosen[0], adjust_lr_fn="match_rms_adamw", **common)
        others = [torch.optim.AdamW(chosen[1], fused=True, **common)] if chosen[1] else []
        self._parts: list[torch.optim.Optimizer] = [muon, *others]
        for optimizer in self._parts:
            for group in optimizer.param_groups:
                group["hidden"] = optimizer is muon
        super().__init__([group for optimizer in self._parts for group in optimizer.param_groups], {})
        self._share()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._share()

    def _share(self) -> None:
        """Let both optimizers use this one's groups and state."""
        for optimizer, hidden in zip(self._parts, (True, False), strict=False):
            optimizer.param_groups = [group for group in self.param_groups if group["hidden"] is hidden]
            optimizer.state = self.state

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:
        assert closure is None
        for optimizer in self._parts:
            optimizer.step()


def build_muon(project: str, groups: Sequence[Any], config: TrainConfig) -> MuonWithAdamW:
    """Return the optimizer; raise BadInput where PyTorch or the project has not what it needs."""
    hidden = [p for g in groups if isinstance(g, dict) and g.get("hidden") for p in g["params"]]
    if not hidden:
        raise BadInput(
            f"train.optimizer muon: project {project} does not say which matrices belong to hidden layers (parameter "
            'groups with "hidden": True): take adamw'
        )
    if any(hasattr(parameter, "device_mesh") for parameter in hidden):
        raise BadInput("train.optimizer muon needs whole matrices, which fsdp and hsdp divide: set train.strategy ddp")
    return MuonWithAdamW(groups, config.learning_rate, config.weight_decay)


def _muon() -> Any:
    found = getattr(torch.optim, "Muon", None)
    if found is None:
        raise BadInput(f"train.optimizer muon needs PyTorch 2.9 or later, and this is {torch.__version__}: take adamw")
    return found
