"""Rules that detect a run that only looks healthy, and the effects of their findings.

A rule sees events (`HealthEvent`) and answers with findings. A rule that counts validations needs no more: a resumed
run replays its past validations to it and discards the answers. A rule that counts anything else (log lines) keeps it
in its `memory`, which every checkpoint saves. `Health` holds the rules of a run.

learning     a learning rate of 0, weights and losses that do not move; loss terms without gradient or below their
             bound; losses and metrics that look at ignored voxels
predictions  decisions that are all the same, validations that are not finite, layers in another precision, checkpoints
             that give back another network than the validated one
reads        splits that read each other's records
speed        data and GPUs that keep training waiting, by the clock
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, replace
from typing import Any, Protocol, runtime_checkable

from runner_core.base.errors import Unhealthy
from runner_core.config import RunConfig
from runner_core.contract import Finding, HealthEvent, HealthRule, Json
from runner_core.contract.project import Project
from runner_core.health.learning import (
    AlwaysClipped,
    BelowLeast,
    IgnoredIsLearned,
    RateZero,
    StillPredictions,
    StillWeights,
    TermWithoutGradient,
    Uninformed,
    Unmoved,
    WithoutGradient,
)
from runner_core.health.predictions import (
    ConstantPrediction,
    FiniteValidation,
    InputIgnored,
    PrecisionAsked,
    SavedAsValidated,
)
from runner_core.health.reads import SplitsApart
from runner_core.health.speed import Idle, Starved

__all__ = [
    "AlwaysClipped",
    "BelowLeast",
    "ConstantPrediction",
    "FiniteValidation",
    "Health",
    "Idle",
    "IgnoredIsLearned",
    "InputIgnored",
    "Log",
    "PrecisionAsked",
    "RateZero",
    "SavedAsValidated",
    "SplitsApart",
    "Starved",
    "StillPredictions",
    "StillWeights",
    "TermWithoutGradient",
    "Uninformed",
    "Unmoved",
    "WithoutGradient",
    "announce",
    "default_rules",
]


def default_rules(project: Project, config: RunConfig) -> list[HealthRule]:
    """Return the core's rules."""
    own = project.health()
    patience = config.health.constant_after, config.health.constant_steps
    return [
        ConstantPrediction(*patience),
        InputIgnored(*patience),
        FiniteValidation(project.monitor[0]),
        PrecisionAsked(),
        SplitsApart(),
        IgnoredIsLearned(),
        TermWithoutGradient(),
        BelowLeast(own.lower_bounds),
        WithoutGradient(),
        RateZero(),
        StillWeights(),
        StillPredictions(),
        AlwaysClipped(config.train.clip),
        Uninformed(own.chance_losses or dict),
        Unmoved(),
        SavedAsValidated(),
        Starved(),
        Idle(),
    ]


Log = Callable[[str, int, Mapping[str, Any]], None]
"""The `event` method of a tracker."""


def announce(finding: Finding, step: int, epoch: int, say: Callable[[str], None], log: Log) -> None:
    """Show a finding and log it; a finding that follows from the clock goes under `timing`."""
    say(f"{finding.level.upper()}: {finding.rule}: {finding.message}")
    if finding.timed:
        fields = {"rule": finding.rule, "level": finding.level, "message": finding.message}
        log("speed", step, {"epoch": epoch, "timing": fields})
    else:
        log("health", step, {"epoch": epoch, **asdict(finding)})


class Health:
    """The rules of a run and their effects: `report` shows and logs each finding, and errors stop the run.

    `mode` is `health.mode`: stop; warn (errors become warnings); off (no rule is asked).
    """

    def __init__(self, rules: Sequence[HealthRule], mode: str, report: Callable[[Finding, int, int], None]) -> None:
        self.rules = [] if mode == "off" else list(rules)
        self.stops = mode == "stop"
        self.report = report
        self.findings: list[Finding] = []
        """Findings that a run of the same settings repeats."""
        self.timed: list[Finding] = []
        """Findings that follow from the clock, since this start."""

    def observe(self, event: HealthEvent) -> Unhealthy | None:
        """Ask every rule, and return the error to raise once the caller has saved everything, or None.

        Rules with a memory do not see checkpoint events, which happen once in each start of a run: their memory must
        not depend on how often the run was resumed.
        """
        errors = []
        for rule in self.rules:
            if event.moment == "checkpoint" and isinstance(rule, _Remembers):
                continue
            finding = rule.observe(event)
            if finding is None:
                continue
            if finding.level == "error" and not self.stops:
                finding = replace(finding, level="warning")
            self.tell(finding, event.step, event.epoch)
            if finding.level == "error":
                errors.append(f"{finding.rule}: {finding.message}")
        return Unhealthy("\n".join(errors) + "\n(health.mode: warn goes on all the same)") if errors else None

    def tell(self, finding: Finding, step: int, epoch: int) -> None:
        """Show and log a finding, and keep it for the summary (once)."""
        kept = self.timed if finding.timed else self.findings
        if finding not in kept:
            kept.append(finding)
        self.report(finding, step, epoch)

    def memories(self) -> dict[str, dict[str, Json]]:
        """Return copies of the rules' `memory`, by rule."""
        return {rule.name: deepcopy(rule.memory) for rule in self.rules if isinstance(rule, _Remembers)}

    def restore(self, memories: Mapping[str, dict[str, Json]], validations: Sequence[HealthEvent]) -> None:
        """Restore the rules' state from their memory, or by replaying the run's validations."""
        for rule in self.rules:
            if isinstance(rule, _Remembers) and rule.name in memories:
                rule.memory = deepcopy(memories[rule.name])
                continue
            for event in validations:
                rule.observe(event)


@runtime_checkable
class _Remembers(Protocol):
    """A rule that is restored from its memory."""

    name: str
    memory: dict[str, Json]
