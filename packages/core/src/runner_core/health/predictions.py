"""What a validation says of the network: does it decide anything, does it look at what it is given, is it finite?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from runner_core.protocols import Finding, HealthEvent


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


class InputIgnored:
    """The decision varies within a sample, and is the same for every sample: the network does not look at its input.

    Facts used: `decision_min` and `decision_max`; `decision_mark_min` and `decision_mark_max`, the extremes of a number
    for each validation sample, which is the same only where all that was decided of them is. A warning at first, an
    error as for a constant prediction.
    """

    name = "input ignored"
    _SAME = 1e-6
    """Of what the decision spans: marks that differ by less are the same, summed in another order."""

    def __init__(self, patience: int = 3, steps: int = 100) -> None:
        self.patience, self.steps = patience, steps
        self.in_a_row = 0

    def observe(self, event: HealthEvent) -> Finding | None:
        if event.moment == "validation":
            return self._validation(event.facts, event.step)
        if event.moment == "end" and self.in_a_row:
            text = "the trained network decides the same for every sample, whatever is in it"
            return Finding(self.name, "error", text)
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
