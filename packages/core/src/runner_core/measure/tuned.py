"""What tuning finds: of each remedy, and in the end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from runner_core._text import counted
from runner_core.measure.agreement import Agreement
from runner_core.measure.trial import Ready
from runner_core.measure.turns import Comparison
from runner_core.protocols import Json

Outcome = Literal[
    "kept", "no faster", "slower", "given up", "undecided", "learns otherwise", "failed", "too large", "not tried"
]
"""slower: beyond the noise; given up: slower in each of the first rounds, too few to know how much."""


@dataclass
class Row:
    """What became of a remedy. Speeds are medians of samples/s, `before` those of the best settings so far in the same
    rounds; memory is the most that its trial took."""

    name: str
    settings: dict[str, Json]
    why: str
    outcome: Outcome
    reason: str = ""
    comparison: Comparison | None = None
    samples_per_second: float | None = None
    before: float | None = None
    host_bytes: int | None = None
    device_bytes: int | None = None
    agreement: Agreement | None = None
    apart: bool = False
    """Did both not fit into memory together, and each was started anew for every turn?"""
    output: str = ""
    """What a trial that failed printed last."""


@dataclass
class Found:
    """What tuning came to. `settings`: by dotted name, over those it began with; none: they are not faster."""

    settings: dict[str, Json]
    rows: list[Row]
    ready: Ready
    """Of the settings that it began with."""
    wait_share: float
    final: Comparison | None = None
    """Of what stayed against the settings that it began with; None: nothing stayed, or there was no time for it."""
    speeds: tuple[float, float] | None = None
    """Samples/s before and after, in the last comparison."""
    turns: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))
    """Seconds per sample of its rounds."""
    dropped: dict[str, Json] = field(default_factory=dict)
    """What had stayed and was not faster in the last comparison, or was not compared."""
    seconds: float = 0.0
    given: float = 0.0
    """Seconds that it was given."""
    wanted: float = 0.0
    """Seconds that all that was not tried for lack of time would have needed besides; 0: nothing was left out so."""
    interrupted: bool = False
    """Did somebody end it before its last comparison?"""


def said(row: Row) -> str:
    """What is said of a remedy when it is decided."""
    told: str = row.outcome
    if row.comparison is not None and row.comparison.rounds:
        told = f"{interval(row.comparison)}: {row.outcome}"
    return f"  {row.name}: {told}{f' ({row.reason})' if row.reason and row.outcome != 'kept' else ''}"


def interval(comparison: Comparison) -> str:
    """Times as fast, with its limits; with the rounds instead, where they are too few for limits."""
    known = f"{comparison.low:.2f}…{comparison.high:.2f}" if comparison.low > 0 else ""
    return f"{comparison.ratio:.2f} × ({known or counted(comparison.rounds, 'round')})"
