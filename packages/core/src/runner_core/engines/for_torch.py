"""Settings of the training that PyTorch alone has."""

from __future__ import annotations

from dataclasses import asdict

from runner_core.base.errors import BadInput
from runner_core.config import ExchangeConfig, TrainConfig
from runner_core.contract.project import Project


def refuse_for_keras(project: Project, train: TrainConfig) -> None:
    """Raise BadInput for the first setting that the Keras engine does not have; imports no framework."""
    if train.strategy != "auto":
        raise BadInput(
            f"train.strategy {train.strategy} is for PyTorch; in Keras each device has the whole network: leave it out"
        )
    if train.channels_last == "on":
        raise BadInput("train.channels_last is for PyTorch; in Keras convolutions have channels last: leave it out")
    for name, value in asdict(project.config.exchange).items() - asdict(ExchangeConfig()).items():
        raise BadInput(f"exchange.{name} {value} is for PyTorch: leave it out")
    if train.optimizer == "muon":
        raise BadInput(f"train.optimizer muon is for PyTorch, and project {project.name} uses Keras: take adamw")
