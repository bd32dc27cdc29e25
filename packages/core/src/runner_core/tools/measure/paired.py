"""Measure two trials, a base and a rival, in paired rounds.

A shared machine varies in speed over seconds or minutes. So the trials run in rounds, a turn each, and only times of
the same round are compared. The first one alternates from round to round, so that a turn's effect on the next one does
not always burden the same trial. `tune` compares remedies with the best settings so far, `ablate` a training without
an optimisation with one that has it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

from runner_core.tools.measure.times import LEAST, Times
from runner_core.tools.measure.trial import Ready, Trial, Turn

SAMPLE, STEP, DATA, NETWORK, LOSS = "sample", "step", "data", "network", "loss"
"""Measured quantities: a sample and a step with their loader; the loader, the network, the loss alone."""
SECONDS = 1.5
"""Seconds of a turn: long against a scheduler's time slices, short against a machine's ups and downs."""
COMPARED = 20
"""Number of first steps whose losses `Contender.begin` keeps."""


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
