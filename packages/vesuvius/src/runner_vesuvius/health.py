"""Rules that say when a run only looks healthy: a loss that pulls at nothing, a prediction of another size than the
labels'."""

from __future__ import annotations

import math

from runner_core.protocols import Finding, HealthEvent

RATIO = "surface_ratio"
"""Metric: voxels predicted to be surface for each that is."""
WILD = 4.0
"""How many times too much, or too little, is no detection of the labelled surface."""
IN_A_ROW, STEPS = 3, 100
"""Validations in a row, and optimizer steps before them, after which it is said."""


class WildShare:
    """The network finds several times as much surface as was labelled, or a small part of it.

    Facts used: `surface_ratio` of validations. A warning, once for as long as it lasts.
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
