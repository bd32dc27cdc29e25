"""Rules about what the network computes: its predictions, its precision, and what a checkpoint gives back of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from runner_core.contract import Finding, HealthEvent, Precision
from runner_core.contract.run import matches


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
            text = "the trained network's decision is the same for every sample"
            return Finding(self.name, _level_at_end(event.step, self.steps), text)
        return None

    def _validation(self, facts: Mapping[str, Any], step: int) -> Finding | None:
        lowest, highest = facts.get("decision_mark_min"), facts.get("decision_mark_max")
        span = facts.get("decision_max", math.nan) - facts.get("decision_min", math.nan)
        if lowest is None or highest is None or not span > 0 or highest - lowest > self._SAME * span:
            self.in_a_row = 0
            return None
        self.in_a_row += 1
        text = "the network's decision is the same for every validation sample"
        if self.in_a_row >= self.patience and step >= self.steps:
            many = f" ({self.in_a_row} validations in a row)" if self.in_a_row > 1 else ""
            return Finding(self.name, "error", text + many)
        return Finding(self.name, "warning", text)


class PrecisionAsked:
    """Stop if mixed precision is on though not asked for, or the reverse, as seen in the forward pass.

    Facts used at first_step: `precision_asked` (dtype), `precision_seen` ({dtype: number of layers}). A note says so if
    it cannot be seen.
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


class SavedAsValidated:
    """Stop if a checkpoint gives back another network than the validated one: the scores would be another's.

    Facts used, of a checkpoint: `refused` (why it cannot be read at all); `weights_differ` (names of parameters and
    buffers) and `prediction_differs` (the largest difference on a few validation samples, as a share of the
    prediction's range).
    """

    name = "saved is not validated"
    SAME = 0.02
    """Half precision, and kernels that a GPU chooses anew, differ by less if the weights are equal."""

    def observe(self, event: HealthEvent) -> Finding | None:
        if event.moment != "checkpoint":
            return None
        refused = event.facts.get("refused")
        names, apart = event.facts.get("weights_differ", ()), event.facts.get("prediction_differs", 0.0)
        if refused is not None:
            return Finding(self.name, "error", f"the checkpoint of step {event.step} cannot be used: {refused}")
        if names:
            shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            why = f"{shown} {'is' if len(names) == 1 else 'are'} not what the network had when it was validated"
        elif not apart <= self.SAME:
            why = (
                f"with the same weights its predictions differ by up to {apart:.0%} of what they span: part of its "
                "state is in no checkpoint (an attribute that is not a buffer, a statistic)"
            )
        else:
            return None
        return Finding(self.name, "error", f"the checkpoint of step {event.step} restores a different network: {why}")
