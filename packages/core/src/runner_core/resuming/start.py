"""The settings under which resuming is proved: the project's own, for a training that is short and repeatable."""

from __future__ import annotations

from collections.abc import Sequence

from runner_core._errors import BadInput
from runner_core.cli.options import VerifyResumeOptions
from runner_core.cli.start import Started, start_new

SHORT = {
    "train": {"epochs": 2, "steps_per_epoch": 12, "deterministic": True},
    # Checkpoints within an epoch and within a line of the log; all six are kept.
    "checkpoint": {"every": 1, "every_steps": 5, "keep": 6},
    "validate": {"every": 1},
    "log": {"every": 2, "snapshots_every": 4, "tensorboard": False, "wandb": "off", "mlflow": None},
    "health": {"mode": "warn"},  # so short a training need not get anywhere
}
"""Over the preset and a settings file, under the flags."""


def start(name: str, arguments: Sequence[str]) -> Started[VerifyResumeOptions]:
    """`runner verify-resume NAME ARGUMENT…`. Raises BadInput for settings under which no two runs are equal."""
    started = start_new(
        name, "verify-resume", VerifyResumeOptions, arguments, prog=f"runner verify-resume {name}", over=SHORT
    )
    train = started.setup.config.train
    if not train.deterministic:
        raise BadInput("runs are compared bit for bit, which train.deterministic promises: leave it on")
    if train.devices > 1:
        raise BadInput("resuming is proved on one device: leave --train.devices out")
    return started
