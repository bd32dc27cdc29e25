"""Results of tuning: for each remedy, and in the end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from runner_core.base.text import counted
from runner_core.contract import Json
from runner_core.tools.measure.agreement import Agreement
from runner_core.tools.measure.trial import Ready
from runner_core.tools.measure.turns import Comparison

Outcome = Literal[
    "kept", "no faster", "slower", "given up", "undecided", "learns otherwise", "failed", "too large", "not tried"
]
""""slower" means beyond the noise; "given up" means slower in each of the first rounds, too few for an amount."""


@dataclass
class Row:
    """Result of a remedy.

    Speeds are medians of samples/s; `before` is that of the best settings so far in the same rounds. Memory is the peak
    of its trial.
    """

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
    """True if both did not fit into memory together, so that each was started anew for every turn."""
    output: str = ""
    """The last output of a failed trial."""


@dataclass
class Found:
    """Result of tuning; `settings` are by dotted name, over the initial ones, and empty if they are not faster."""

    settings: dict[str, Json]
    rows: list[Row]
    ready: Ready
    """Results of the initial settings."""
    wait_share: float
    final: Comparison | None = None
    """The kept remedies against the initial settings; None if nothing was kept or there was no time."""
    speeds: tuple[float, float] | None = None
    """Samples/s before and after, in the last comparison."""
    turns: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))
    """Seconds per sample in its rounds."""
    dropped: dict[str, Json] = field(default_factory=dict)
    """Settings that were kept but were not faster in the last comparison, or were not compared."""
    seconds: float = 0.0
    given: float = 0.0
    """Seconds that it was given."""
    wanted: float = 0.0
    """Additional seconds for everything not tried for lack of time; 0 if nothing was left out for that."""
    interrupted: bool = False
    """True if the user stopped it before its last comparison."""


def verdict(row: Row) -> str:
    """Return the message for a decided remedy."""
    text: str = row.outcome
    if row.comparison is not None and row.comparison.rounds:
        text = f"{interval(row.comparison)}: {row.outcome}"
    return f"  {row.name}: {text}{f' ({row.reason})' if row.reason and row.outcome != 'kept' else ''}"


def interval(comparison: Comparison) -> str:
    """Return the speed-up with its limits, or with the number of rounds if they are too few for limits."""
    known = f"{comparison.low:.2f}…{comparison.high:.2f}" if comparison.low > 0 else ""
    return f"{comparison.ratio:.2f} × ({known or counted(comparison.rounds, 'round')})"
