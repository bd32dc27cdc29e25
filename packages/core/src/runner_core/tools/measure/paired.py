"""Compare two trials, a base and a rival, in paired rounds: speed, its uncertainty, and whether both learn the same.

A shared machine varies in speed over seconds or minutes. So the trials run in rounds, a turn each, and only times of
the same round are compared. The first one alternates from round to round, so that a turn's effect on the next one does
not always burden the same trial. `tune` compares remedies with the best settings so far, `ablate` a training without
an optimisation with one that has it.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from runner_core.contract import Json
from runner_core.tools.measure.times import LEAST, Comparison, Times, spread
from runner_core.tools.measure.trial import Ready, Trial, TrialFailed, Turn

SAMPLE, STEP, DATA, NETWORK, LOSS = "sample", "step", "data", "network", "loss"
"""Measured quantities: a sample and a step with their loader; the loader, the network, the loss alone."""
SECONDS = 1.5
"""Seconds of a turn: long against a scheduler's time slices, short against a machine's ups and downs."""
COMPARED = 20
"""Number of first steps whose losses `Contender.begin` keeps."""

_STEPS = 50
"""Number of first steps to compare; trainings with different rounding diverge with every step."""
_ALIKE = 0.02
"""Allowed share of the mean loss for rounding and another order of sums."""
_EXACT = 0.01
"""Allowed share of the loss for an optimisation that should change only rounding."""
_AT_MOST = 0.1
"""Largest allowed share of the mean loss, however noisy the losses are (dropout with other numbers)."""
_AS_MUCH = 0.9
"""Share of the fall in loss that the other must reach."""
_VISIBLE = 0.01
"""Share of the loss that a fall must have to be visible."""

# ---------------------------------------------------------------- rounds


class Contender:
    """A trial among others: the number of steps in its turns, and its results since it was last started."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.count = 0
        """Steps of a turn; 0 if not known yet."""
        self.warmed = False
        """True if it was warmed since the start."""
        self.losses: list[float] = []
        """Losses of every step since the start, including the first."""
        self.first_losses: list[float] = []
        """Losses of the first steps, from `begin`."""
        self.evaluated = math.nan
        """Loss of one batch after the first step, in evaluation mode, from `begin`."""
        self.notes: list[str] = []
        self.turns: list[Turn] = []
        self._settled: float | None = None
        """Seconds of a step from `begin` that no turn has counted yet."""
        self._counts: dict[str, int] = {}

    @property
    def name(self) -> str:
        return self.trial.name

    @property
    def ready(self) -> Ready:
        assert self.trial.ready is not None
        return self.trial.ready

    @property
    def samples(self) -> int:
        """Samples that it has learned from since the start."""
        ready = self.trial.ready
        return 0 if ready is None else len(self.losses) * ready.batch

    def start(self) -> Ready:
        """Start anew; forget losses and notes, but not turns. Raises TrialFailed."""
        ready = self.trial.start()
        self.warmed = False
        self.losses, self.notes = [ready.loss], list(ready.notes)
        return ready

    def begin(self, seconds: float) -> None:
        """Start, evaluate, and take the steps whose losses are compared; a turn will take about `seconds`."""
        self.count = 0
        self.start()
        self.evaluated = self.trial.evaluate(self.ready.batch).get("loss", math.nan)
        until = time.monotonic() + 5 * seconds
        first = self.take(1)
        if first.per_step > seconds / 2:  # a slow one takes only the necessary steps
            self.count = max(1, round(seconds / first.per_step))
            self._settled = first.per_step if self.count == 1 else None
            self.warmed = True
        else:
            self.warm(seconds)
        while len(self.losses) < COMPARED and time.monotonic() < until:
            self.take(self.count)
        self.first_losses = self.losses[:COMPARED]

    def warm(self, seconds: float) -> None:
        """Take a few steps that do not count, and find how many make a turn of about `seconds`."""
        turn = self.take(1)
        if turn.per_step < seconds / 2:  # several short ones give better times, and settle in
            turn = self.take(max(2, min(20, round(0.3 * seconds / turn.per_step))))
        self.count = self.count or max(1, round(seconds / turn.per_step))
        self.warmed = True

    def take(self, count: int) -> Turn:
        """Take steps outside any round."""
        turn = self.trial.steps(count)
        self.losses += turn.losses
        self.notes += turn.notes
        return turn

    def turn(self) -> Turn:
        self.turns.append(self.take(self.count))
        return self.turns[-1]

    def seconds(self, quantity: str, turn: float) -> float | None:
        """Return the seconds of a quantity over about `turn` seconds, or None if it cannot be separated."""
        if quantity in (SAMPLE, STEP):
            return self._step_seconds(quantity, turn)
        if quantity == DATA:
            return 1 / self.trial.data(turn)
        ask = self.trial.network if quantity == NETWORK else self.trial.loss
        taken = ask(self._counts.get(quantity, 1))
        if taken is not None and quantity not in self._counts:  # the first one loads and compiles
            taken = ask(1)
            self._counts[quantity] = max(1, min(100, round(turn / max(taken or 0.0, 1e-6))))
            taken = ask(self._counts[quantity])
        return taken

    def _step_seconds(self, quantity: str, turn: float) -> float:
        settled, self._settled = self._settled, None
        if settled and quantity == STEP:
            return settled
        if not self.warmed:
            self.warm(turn)
        taken = self.turn()
        return taken.per_step if quantity == STEP else taken.per_sample

    @property
    def per_sample(self) -> list[float]:
        """Seconds per sample, turn by turn."""
        return [turn.per_sample for turn in self.turns]

    @property
    def wait_share(self) -> float:
        """Share of all turns' time spent waiting for data."""
        return sum(t.wait_seconds for t in self.turns) / max(1e-9, sum(t.seconds for t in self.turns))


class Rounds:
    """Rounds of turns of two trials, which must have been started; all methods raise TrialFailed.

    A failure ends only the trial that failed.

    Args:
        base: The first trial.
        rival: The second trial.
        quantities: What a turn measures.
        seconds: Approximate seconds of a turn.
        apart: The two do not fit into memory together: each is started for every turn, which takes time.
        usual: The base's seconds by quantity from earlier: the base takes no turns.
    """

    def __init__(
        self,
        base: Contender,
        rival: Contender,
        quantities: Sequence[str] = (SAMPLE,),
        seconds: float = SECONDS,
        *,
        apart: bool = False,
        usual: Mapping[str, float] | None = None,
    ) -> None:
        self.base, self.rival, self.seconds = base, rival, seconds
        self.quantities = [quantity for quantity in quantities if usual is None or quantity in usual]
        self.apart, self._usual = apart, usual
        self.times: dict[str, Times] = {}
        """Times of whole rounds, by quantity; without quantities that cannot be separated."""
        self.done = 0
        self.longest = 0.0
        """Longest time of a round, in seconds."""
        self.repeated = 0.0
        """Seconds of the rounds after the first."""

    def round(self) -> None:
        """Take a turn of each; if one fails, the round is dropped for both."""
        begun = time.monotonic()
        taken = {quantity: self._pair(quantity) for quantity in self.quantities}
        for quantity, (base, rival) in taken.items():
            if base is not None and rival is not None:
                times = self.times.setdefault(quantity, Times(paired=self._usual is None))
                times.base.append(base)
                times.rival.append(rival)
        seconds = time.monotonic() - begun
        self.repeated += seconds if self.done else 0.0
        self.done += 1
        self.longest = max(self.longest, seconds)

    def until(self, deadline: float, least: int = LEAST, most: int = 1000) -> None:
        """Run at least `least` rounds, and more while the next one would end before `deadline` (monotonic clock)."""
        while self.done < most and (self.done < least or time.monotonic() + self.longest < deadline):
            self.round()

    def _pair(self, quantity: str) -> tuple[float | None, float | None]:
        if self._usual is not None:
            return self._usual[quantity], self.rival.seconds(quantity, self.seconds)
        order = [self.base, self.rival][:: 1 if self.done % 2 == 0 else -1]
        taken = {contender: self._seconds(contender, quantity) for contender in order}
        return taken[self.base], taken[self.rival]

    def _seconds(self, contender: Contender, quantity: str) -> float | None:
        if self.apart:
            for other in (self.base, self.rival):
                other.trial.close()
            contender.start()
        return contender.seconds(quantity, self.seconds)


# ---------------------------------------------------------------- do both learn the same?


@dataclass(frozen=True)
class Agreement:
    """The answer to whether two trials learn the same, with the losses that show it."""

    agrees: bool
    text: str
    """The finding, in one clause."""
    before: float
    """Mean loss of the base, over what was compared."""
    after: float
    """Mean loss of the rival."""
    steps: int = 0
    """Number of first steps that were compared, if losses of the same steps were."""
    evaluated: tuple[float, float] | None = None
    """Loss of the same batch after the first step in both, if it was evaluated."""

    @property
    def difference(self) -> float:
        """The largest difference, as a share; infinite if a loss is not finite."""
        return max(_difference(*pair) for pair in ((self.before, self.after), self.evaluated) if pair)


def same_steps(
    before: Sequence[float], after: Sequence[float], alike: float = _ALIKE, errors: float = 3, most: float = _AT_MOST
) -> Agreement:
    """Compare losses of the same steps, from the first on, with the same samples.

    Both means agree within the share `alike`, or within so many standard `errors` of their difference (in the noise),
    but never beyond the share `most`.
    """
    pairs = list(zip(before, after, strict=False))[:_STEPS]
    one, other = (statistics.fmean(p) if p else math.nan for p in zip(*pairs, strict=True)) if pairs else (0.0, 0.0)
    for losses, text in ((after, "its loss is not finite"), (before, "the loss it is compared with is not finite")):
        if not all(map(math.isfinite, losses)):
            return Agreement(False, text, one, other, len(pairs))
    differences = [b - a for a, b in pairs]
    error = statistics.stdev(differences) / math.sqrt(len(pairs)) if len(pairs) > 1 else 0.0
    size = abs(one)
    within = min(max(alike * size, errors * error), most * size) if size else errors * error
    text = f"mean loss of the first {len(pairs)} steps {other:.4g}, before {one:.4g}"
    return Agreement(abs(other - one) <= within + 1e-12, text, one, other, len(pairs))


def parity(base: Contender, rival: Contender) -> Agreement:
    """Compare the losses of two trials after `begin`; they should differ by rounding only.

    Evaluated losses may differ by 1 %, and training losses by that or by chance: dropout may draw other numbers.
    """
    found = same_steps(base.first_losses, rival.first_losses, _EXACT, 2, math.inf)
    evaluated = base.evaluated, rival.evaluated
    return replace(found, agrees=found.agrees and _difference(*evaluated) <= _EXACT, evaluated=evaluated)


def _difference(one: float, other: float) -> float:
    """Return the relative difference; infinite if either is not finite."""
    if not (math.isfinite(one) and math.isfinite(other)):
        return math.inf
    return abs(one - other) / max(abs(one), abs(other), 1e-12)


def same_samples(
    start: Mapping[str, float], before: Mapping[str, float], after: Mapping[str, float], samples: int
) -> Agreement:
    """Compare the losses of untrained networks (`start`) with those after about `samples` samples each.

    Steps may have different sizes. The second must have learned 90 % of what the first has, and that must be visible.
    """
    first, one, other = start["loss"], before["loss"], after["loss"]
    text = f"after {samples:,} samples the loss is {other:.4g}, before {one:.4g} (at the start {first:.4g})"
    if not math.isfinite(other):
        return Agreement(False, "its loss is not finite", one, other)
    if first - one < _VISIBLE * abs(first):
        return Agreement(False, f"{text}: too little is learned in this time to tell", one, other)
    return Agreement(first - other >= _AS_MUCH * (first - one), text, one, other)


Loss = Mapping[str, float]


def compare_together(begun: Loss, best: Contender, rival: Contender, evaluated: int) -> Agreement:
    """Compare two live trials after the one behind has caught up in samples.

    `begun` is the first evaluation of the best. `evaluated` is the number of samples in an evaluation.
    """
    for behind, ahead in ((best, rival), (rival, best)):
        if steps := max(0, ahead.samples - behind.samples) // behind.ready.batch:
            behind.take(steps)
    before, after = (contender.trial.evaluate(evaluated) for contender in (best, rival))
    return same_samples(begun, before, after, rival.samples)


def compare_apart(best: Contender, rival: Contender, evaluated: int) -> Agreement:
    """Compare two trials that do not fit at once, each from its start, one after the other; end both."""
    samples = max(best.samples, rival.samples)
    found = []
    for contender in (best, rival):
        for other in (best, rival):
            other.trial.close()
        ready = contender.start()
        begun = contender.trial.evaluate(evaluated)
        contender.take(max(1, (samples - contender.samples) // ready.batch))
        found.append((begun, contender.trial.evaluate(evaluated)))
        contender.trial.close()
    (begun, before), (_, after) = found
    return same_samples(begun, before, after, samples)


# ---------------------------------------------------------------- the result


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
