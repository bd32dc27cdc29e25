"""Rules that watch a run, so that one that looks healthy is healthy; and what their findings do.

A rule sees events (`protocols.HealthEvent`) and answers with findings. A rule that counts validations needs no more:
when a run is resumed, its past validations are replayed to it, the answers thrown away. One that counts anything else
(log lines) keeps it in its `memory`, which is in every checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict
from typing import Any, Protocol, runtime_checkable

from runner_core._errors import Unhealthy
from runner_core.config import RunConfig
from runner_core.precision import matches
from runner_core.project import Project
from runner_core.protocols import Finding, HealthEvent, HealthRule, Json, Precision


class ConstantPrediction:
    """The decision (class, mask, dose) is the same everywhere: the network has learned nothing, or forgot it.

    Facts used: `decision_min`, `decision_max` over the whole validation split. A warning at first, an error after
    `patience` validations in a row if `steps` optimizer steps are done by then (few images make short epochs), and at
    the end of a run whose last validation was constant.
    """

    name = "constant prediction"

    def __init__(self, patience: int = 3, steps: int = 100) -> None:
        self.patience, self.steps = patience, steps
        self.in_a_row = 0
        self.value: float | None = None

    def observe(self, event: HealthEvent) -> Finding | None:
        if event.moment == "validation":
            return self._validation(event.facts, event.step)
        if event.moment == "end" and self.in_a_row:
            return Finding(self.name, "error", f"the trained network decides {self._shown()} everywhere")
        return None

    def _validation(self, facts: Mapping[str, Any], step: int) -> Finding | None:
        lowest, highest = facts.get("decision_min"), facts.get("decision_max")
        if lowest is None or lowest != highest:
            if lowest is None or math.isfinite(lowest - highest):  # of NaN nothing can be said
                self.in_a_row = 0
            return None
        self.in_a_row += 1
        self.value = lowest
        if self.in_a_row >= self.patience and step >= self.steps:
            many = f"in {self.in_a_row} validations in a row" if self.in_a_row > 1 else "in this validation"
            return Finding(self.name, "error", f"the network decided {self._shown()} everywhere {many}")
        return Finding(self.name, "warning", f"the network decides {self._shown()} everywhere in the validation set")

    def _shown(self) -> str:
        return "the same" if self.value is None else f"{self.value:g}"


class FiniteValidation:
    """Loss, monitored metric or decision of a validation is NaN or infinite: nothing can be chosen by it."""

    name = "finite validation"

    def __init__(self, monitored: str) -> None:
        self.watched = ("loss", monitored, "decision_min", "decision_max")

    def observe(self, event: HealthEvent) -> Finding | None:
        if event.moment != "validation":
            return None
        values = {name: event.facts[name] for name in self.watched if event.facts.get(name) is not None}
        bad = [f"{name} is {value}" for name, value in values.items() if not math.isfinite(value)]
        return Finding(self.name, "error", f"in the validation {', '.join(bad)}") if bad else None


class PrecisionAsked:
    """Mixed precision that is asked for and not on (or the other way round), seen in the forward pass.

    Facts used at first_step: `precision_asked` (dtype), `precision_seen` ({dtype: number of layers}). What cannot be
    seen is noted.
    """

    name = "precision"

    def observe(self, event: HealthEvent) -> Finding | None:
        seen = event.facts.get("precision_seen")
        if event.moment != "first_step" or seen is None:
            return None
        asked = event.facts["precision_asked"]
        if not seen:
            why = "the network has no layer of a kind that can be observed"
            return Finding(
                self.name, "note", f"{asked} was asked for; whether layers compute in it was not seen: {why}"
            )
        if matches(Precision(asked), seen):
            unseen = "tf32 was asked for; whether layers compute in it cannot be seen: they return float32 either way"
            return Finding(self.name, "note", unseen) if asked == "tf32" else None
        layers = ", ".join(f"{count} in {dtype.rpartition('.')[2]}" for dtype, count in seen.items())
        return Finding(self.name, "error", f"{asked} was asked for, but layers compute otherwise: {layers}")


def default_rules(project: Project, config: RunConfig) -> list[HealthRule]:
    """The core's rules."""
    constant = ConstantPrediction(config.health.constant_after, config.health.constant_steps)
    return [constant, FiniteValidation(project.monitor[0]), PrecisionAsked()]


Log = Callable[[str, int, Mapping[str, Any]], None]
"""A tracker's `event`."""


def announce(finding: Finding, step: int, epoch: int, say: Callable[[str], None], log: Log) -> None:
    """Show a finding and log it."""
    say(f"{finding.level.upper()}: {finding.rule}: {finding.message}")
    log("health", step, {"epoch": epoch, **asdict(finding)})


class Health:
    """The rules of a run and what their findings do: `report` shows and logs each; errors stop the run.

    `mode` is `health.mode`: stop; warn (errors become warnings); off (no rule is asked).
    """

    def __init__(self, rules: Sequence[HealthRule], mode: str, report: Callable[[Finding, int, int], None]) -> None:
        self.rules = [] if mode == "off" else list(rules)
        self.stops = mode == "stop"
        self.report = report
        self.findings: list[Finding] = []

    def observe(self, event: HealthEvent) -> Unhealthy | None:
        """Ask every rule. The error to raise, once the caller has saved what is to be saved, or None."""
        errors = []
        for rule in self.rules:
            finding = rule.observe(event)
            if finding is None:
                continue
            if finding.level == "error" and not self.stops:
                finding = Finding(finding.rule, "warning", finding.message)
            self.tell(finding, event.step, event.epoch)
            if finding.level == "error":
                errors.append(f"{finding.rule}: {finding.message}")
        return Unhealthy("\n".join(errors) + "\n(health.mode: warn goes on all the same)") if errors else None

    def tell(self, finding: Finding, step: int, epoch: int) -> None:
        """Show and log a finding, and keep it for the summary (once)."""
        if finding not in self.findings:
            self.findings.append(finding)
        self.report(finding, step, epoch)

    def memories(self) -> dict[str, dict[str, Json]]:
        """Copies of what rules keep in their `memory`, by rule."""
        return {rule.name: deepcopy(rule.memory) for rule in self.rules if isinstance(rule, _Remembers)}

    def restore(self, memories: Mapping[str, dict[str, Json]], validations: Sequence[HealthEvent]) -> None:
        """Bring rules to where they stood: by their memory, or by replaying the run's validations."""
        for rule in self.rules:
            if isinstance(rule, _Remembers) and rule.name in memories:
                rule.memory = deepcopy(memories[rule.name])
                continue
            for event in validations:
                rule.observe(event)


@runtime_checkable
class _Remembers(Protocol):
    """A rule that is brought back by what it kept."""

    name: str
    memory: dict[str, Json]
