"""The rules of a run, and the effects of their findings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, replace
from typing import Any, Protocol, runtime_checkable

from runner_core.base.errors import Unhealthy
from runner_core.contract import Finding, HealthEvent, HealthRule, Json

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
