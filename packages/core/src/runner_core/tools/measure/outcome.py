"""The result of comparing two trials: what differed, what became of it, times and memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from runner_core.contract import Json
from runner_core.tools.measure.agreement import Agreement
from runner_core.tools.measure.paired import SAMPLE, STEP
from runner_core.tools.measure.process import TrialFailed
from runner_core.tools.measure.times import Comparison, Times, spread


@dataclass(frozen=True)
class Case:
    """The difference between rival and base: a remedy, or the optimisations that are switched off together."""

    name: str
    settings: Mapping[str, Json]
    """Settings by dotted name, over those of the base."""
    why: str = ""
    same: bool = True
    """True if both should learn the same."""
    parts: tuple[str, ...] = ()
    """The parts that it makes faster or slower, if they are known: data, network, loss."""


Outcome = Literal[
    "",
    "kept",
    "no faster",
    "slower",
    "given up",
    "undecided",
    "learns otherwise",
    "wrong gradients",
    "unchecked gradients",
    "failed",
    "too large",
    "not tried",
]
""""slower" means beyond the noise; "given up" means slower in each of the first rounds, too few for an amount."""


@dataclass
class Result:
    """Result of one comparison: a rival with the settings of `case` against its base. Memory is the rival's peak."""

    case: Case
    outcome: Outcome = ""
    reason: str = ""
    """Why it has this outcome, or why it could not be measured."""
    times: dict[str, Times] = field(default_factory=dict)
    agreement: Agreement | None = None
    host_bytes: int = 0
    device_bytes: int = 0
    apart: bool = False
    """True if both did not fit into memory together."""
    output: str = ""
    """The last output of a failed trial."""
    steps_per_epoch: tuple[int, int] = (1, 1)
    """Steps per epoch of both."""
    repeated: float = 0.0
    """Seconds of the rounds after the first."""

    @property
    def name(self) -> str:
        return self.case.name

    @property
    def failed(self) -> bool:
        return self.outcome in ("failed", "too large")

    @property
    def comparison(self) -> Comparison | None:
        """Return the rival's relative speed per sample, or None if that was not measured."""
        return self.times[SAMPLE].faster if SAMPLE in self.times else None

    @property
    def speeds(self) -> tuple[float, float] | None:
        """Median samples/s of both, in the same rounds."""
        times = self.times.get(SAMPLE)
        return None if times is None else (1 / spread(times.base).median, 1 / spread(times.rival).median)

    @property
    def epoch(self) -> Times:
        """Seconds of an epoch: those of paired steps, times the steps per epoch."""
        times, (base, rival) = self.times[STEP], self.steps_per_epoch
        return Times([base * seconds for seconds in times.base], [rival * s for s in times.rival], times.paired)

    def fail(self, error: TrialFailed) -> None:
        """Record why the rival could not be measured."""
        self.outcome = "too large" if error.memory else "failed"
        self.reason, self.output = error.reason, error.output
