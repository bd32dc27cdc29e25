"""Rules that watch a run, so that one that looks healthy is healthy; and what their findings do.

A rule sees events (`protocols.HealthEvent`) and answers with findings. A rule that counts validations needs no more:
when a run is resumed, its past validations are replayed to it, the answers thrown away. One that counts anything else
(log lines) keeps it in its `memory`, which is in every checkpoint.

predictions  decisions that are all the same, and validations that are not finite
learning     a learning rate of 0, weights and losses that do not move, steps of one length
losses       terms that pull at nothing or are below what they can be, losses and metrics that look at ignored voxels
precision    layers that compute in another dtype than was asked for
saved        checkpoints that give back another network than was validated
reads        splits that read each other's records
speed        data and GPUs that keep training waiting: by the clock
run          the rules of a run together
"""

from __future__ import annotations

from runner_core.config import RunConfig
from runner_core.health.learning import AlwaysClipped, RateZero, StillPredictions, StillWeights, Uninformed, Unmoved
from runner_core.health.losses import BelowLeast, PullsAtIgnored, PullsAtNothing, WithoutGradient
from runner_core.health.precision import PrecisionAsked
from runner_core.health.predictions import ConstantPrediction, FiniteValidation, InputIgnored
from runner_core.health.reads import SplitsApart
from runner_core.health.run import Health, Log, announce
from runner_core.health.saved import SavedAsValidated
from runner_core.health.speed import Idle, Starved
from runner_core.project import Project
from runner_core.protocols import HealthRule

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
    """The core's rules."""
    patience = config.health.constant_after, config.health.constant_steps
    return [
        ConstantPrediction(*patience),
        InputIgnored(*patience),
        FiniteValidation(project.monitor[0]),
        PrecisionAsked(),
        SplitsApart(),
        PullsAtIgnored(),
        PullsAtNothing(),
        BelowLeast(project.least),
        WithoutGradient(),
        RateZero(),
        StillWeights(),
        StillPredictions(),
        AlwaysClipped(config.train.clip),
        Uninformed(project.uninformed),
        Unmoved(),
        SavedAsValidated(),
        Starved(),
        Idle(),
    ]
