"""Rules about the predictions of a validation: whether they vary, depend on the input, and are finite."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from runner_core.contract import Finding, HealthEvent


class ConstantPrediction:
    """Stop if the decision (class, mask, dose) is the same everywhere: the network learned nothing, or forgot it.

    Facts used: `decision_min`, `decision_max` over the whole validation split. A warning before optimizer step `steps`
    (few images make short epochs). From then on an error after `patience` validations in a row, and at the end of a run
    whose last validation was constant.
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
            level = _level_at_end(event.step, self.steps)
            return Finding(self.name, level, f"the trained network decides {self._shown()} everywhere")
        return None

    def _validation(self, facts: Mapping[str, Any], step: int) -> Finding | None:
        lowest, highest = facts.get("decision_min"), facts.get("decision_max")
        if lowest is None or lowest != highest:
            if lowest is None or math.isfinite(lowest - highest):  # NaN allows no conclusion
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


def _level_at_end(step: int, steps: int) -> Literal["warning", "error"]:
    """Return the level of a finding at a run's end: a trial run of fewer than `steps` steps has not failed."""
    return "error" if step >= steps else "warning"


class FiniteValidation:
    """Stop if loss, monitored metric or decision of a validation is NaN or infinite: they can choose nothing."""

    name = "finite validation"

    def __init__(self, monitored: str) -> None:
        self.watched = ("loss", monitored, "decision_min", "decision_max")

    def observe(self, event: HealthEvent) -> Finding | None:
        if event.moment != "validation":
            return None
        values = {name: event.facts[name] for name in self.watched if event.facts.get(name) is not None}
        bad = [f"{name} is {value}" for name, value in values.items() if not math.isfinite(value)]
        return Finding(self.name, "error", f"in the validation {', '.join(bad)}") if bad else None


class InputIgnored:
    """Stop if the decision varies within a sample but is the same for every sample: the input is ignored.

    Facts used: `decision_min` and `decision_max`; `decision_mark_min` and `decision_mark_max`, the extremes of one
    number per validation sample, which is equal only if its whole decision is. A warning at first, an error as for a
    constant prediction.
    """

    name = "input ignored"
    _SAME = 1e-6
    """Share of the decision's range below which marks count as equal: only the order of their sum differs."""

    def __init__(self, patience: int = 3, steps: int = 100) -> None:
        self.patience, self.steps = patience, steps
        self.in_a_row = 0

    def observe(self, event: HealthEvent) -> Finding | None:
        if event.moment == "validation":
            return self._validation(event.facts, event.step)
        if event.moment == "end" and self.in_a_row:
            text = "the trained network decides the same for every sample, whatever is in it"
            return Finding(self.name, _level_at_end(event.step, self.steps), text)
        return None

    def _validation(self, facts: Mapping[str, Any], step: int) -> Finding | None:
        lowest, highest = facts.get("decision_mark_min"), facts.get("decision_mark_max")
        span = facts.get("decision_max", math.nan) - facts.get("decision_min", math.nan)
        if lowest is None or highest is None or not span > 0 or highest - lowest > self._SAME * span:
            self.in_a_row = 0
            return None
        self.in_a_row += 1
        text = "the network decides the same for every validation sample, whatever is in it"
        if self.in_a_row >= self.patience and step >= self.steps:
            many = f" ({self.in_a_row} validations in a row)" if self.in_a_row > 1 else ""
            return Finding(self.name, "error", text + many)
        return Finding(self.name, "warning", text)
