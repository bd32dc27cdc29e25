"""Health rules: a loss that no step computed, and a share of surface unlike the labels'."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from runner_core import Arrays, Finding, HealthEvent, HealthRule, Tensors, added

from runner_vesuvius.config import ScrollConfig

RATIO = "surface_ratio"
"""Metric: number of predicted surface voxels per true one."""
WILD = 4.0
"""Factor, up or down, beyond which the prediction no longer detects the labelled surface."""
IN_A_ROW, STEPS = 3, 100
"""Validations in a row, and optimizer steps before them, after which the finding is reported."""


class SurfaceRatio:
    """The metric `surface_ratio` over all annotated voxels of the validation; NaN if none is surface.

    Voxels with a logit above `cut` are predicted.
    """

    def __init__(self, cut: float) -> None:
        self._cut = cut
        self.reset()

    def reset(self) -> None:
        self._found: Any = 0
        self._true: Any = 0

    def update(self, prediction: Any, batch: Tensors) -> None:
        self._found = self._found + ((prediction > self._cut) & batch["known"]).sum()
        self._true = self._true + (batch["surface"] > 0).sum()

    def compute(self) -> dict[str, float]:
        true = int(self._true)
        return {RATIO: int(self._found) / true if true else math.nan}

    def state(self) -> Arrays:
        return {"found": np.array(int(self._found)), "true": np.array(int(self._true))}

    def merge(self, states: Sequence[Arrays]) -> None:
        total = added(states)
        self._found, self._true = total["found"], total["true"]


def rules(config: ScrollConfig) -> Sequence[HealthRule]:
    """Return new health rules for a run."""
    return [NeverComputed(config), WildShare()]


class NeverComputed:
    """Warn at the end of a loss that is switched on and that no step of the training computed.

    It depends on the settings and the number of steps alone.
    """

    name = "loss never computed"

    def __init__(self, config: ScrollConfig) -> None:
        self._config = config

    def observe(self, event: HealthEvent) -> Finding | None:
        if event.moment != "end" or event.step == 0:
            return None
        epochs = self._config.train.epochs
        steps = event.step // event.epoch * epochs if event.epoch else event.step  # planned: patience may have ended it
        missed = [text for name in self._config.loss.terms() if (text := self._missed(name, event.step, steps))]
        return Finding(self.name, "warning", "; ".join(missed)) if missed else None

    def _missed(self, name: str, done: int, steps: int) -> str | None:
        """Return why none of the first `done` of `steps` steps computed a loss that is on; None if one did."""
        loss = self._config.loss
        term, every = loss.terms()[name], loss.topology_every if name == "topology" else 1
        last = done // every * every  # weights never fall: if this step did not, none did
        if term.weight == 0 or (last and term.weight_at((last - 1) / steps) > 0):
            return None
        text = f"the loss {name} has the weight {term.weight:g} and was in no step: "
        if not last:
            return text + f"loss.topology_every is {every}, and there were {done} steps; lower it, or train longer"
        ended = f"the last of {done} steps" if last == done else f"step {last}, the last at which it is looked at,"
        share = f"loss.{name}.begin is {term.begin:g}, and {ended} came after {(last - 1) / steps:.3g} of the training"
        return text + share + f"; lower loss.{name}.begin" + (" or loss.topology_every" if last < done else "")


class WildShare:
    """Warn, once per episode, if the network finds several times as much surface as was labelled, or far less.

    It uses the fact `surface_ratio` of validations.
    """

    name = "share of surface"

    def __init__(self) -> None:
        self.in_a_row = 0
        self.told = False

    def observe(self, event: HealthEvent) -> Finding | None:
        if event.moment != "validation":
            return None
        ratio = float(event.facts.get(RATIO, math.nan))
        if not math.isfinite(ratio) or 1 / WILD <= ratio <= WILD:
            self.in_a_row, self.told = 0, False
            return None
        self.in_a_row += 1
        if self.told or self.in_a_row < IN_A_ROW or event.step < STEPS:
            return None
        self.told = True
        return Finding(self.name, "warning", self._message(ratio))

    def _message(self, ratio: float) -> str:
        much = f"{ratio:.3g} times as much surface as" if ratio > 1 else f"{ratio:.1%} of the surface that"
        remedy = "lower loss.positive" if ratio > 1 else "raise loss.positive or data.surface_share"
        return (
            f"for {self.in_a_row} validations the network has found {much} the labels have (in labelled voxels). "
            f"Look at the pictures of `runner vesuvius evaluate`; {remedy}, or move predict.threshold"
        )
