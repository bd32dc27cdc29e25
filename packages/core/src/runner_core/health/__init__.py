"""Rules that detect a run that only looks healthy, and the effects of their findings.

A rule sees events (`HealthEvent`) and answers with findings. A rule that counts validations needs no more: a resumed
run replays its past validations to it and discards the answers. A rule that counts anything else (log lines) keeps it
in its `memory`, which every checkpoint saves.

predictions  decisions that are all the same, and validations that are not finite
learning     a learning rate of 0, weights and losses that do not move, steps of constant length
losses       terms without gradient or below their bound, losses and metrics that look at ignored voxels
precision    layers that compute in another dtype than the settings ask for
saved        checkpoints that give back another network than the validated one
reads        splits that read each other's records
speed        data and GPUs that keep training waiting, by the clock
run          the rules of a run together
"""

from __future__ import annotations

from runner_core.config import RunConfig
from runner_core.contract import HealthRule
from runner_core.contract.project import Project
from runner_core.health.learning import AlwaysClipped, RateZero, StillPredictions, StillWeights, Uninformed, Unmoved
from runner_core.health.losses import BelowLeast, PullsAtIgnored, PullsAtNothing, WithoutGradient
from runner_core.health.precision import PrecisionAsked
from runner_core.health.predictions import ConstantPrediction, FiniteValidation, InputIgnored
from runner_core.health.reads import SplitsApart
from runner_core.health.run import Health, Log, announce
from runner_core.health.saved import SavedAsValidated
from runner_core.health.speed import Idle, Starved

__all__ = [
    "AlwaysClipped",
    "BelowLeast",
    "ConstantPrediction",
    "FiniteValidation",
    "Health",
    "Idle",
    "InputIgnored",
    "Log",
    "PrecisionAsked",
    "PullsAtIgnored",
    "PullsAtNothing",
    "RateZero",
    "SavedAsValidated",
    "SplitsApart",
    "Starved",
    "StillPredictions",
    "StillWeights",
    "Uninformed",
    "Unmoved",
    "WithoutGradient",
    "announce",
    "default_rules",
]


def default_rules(project: Project, config: RunConfig) -> list[HealthRule]:
    """Return the core's rules."""
    patience = config.health.constant_after, config.health.constant_steps
    return [
        ConstantPrediction(*patience),
        InputIgnored(*patience),
        FiniteValidation(project.monitor[0]),
        PrecisionAsked(),
        SplitsApart(),
        PullsAtIgnored(),
        PullsAtNothing(),
        BelowLeast(project.lower_bounds),
        WithoutGradient(),
        RateZero(),
        StillWeights(),
        StillPredictions(),
        AlwaysClipped(config.train.clip),
        Uninformed(project.chance_losses),
        Unmoved(),
        SavedAsValidated(),
        Starved(),
        Idle(),
    ]
