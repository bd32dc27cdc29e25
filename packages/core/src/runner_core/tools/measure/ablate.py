"""Measure what each optimisation is worth: a training without it takes turns with one that has all.

Both live at once, in their own processes, and take the same samples in the same order. A step with its loader, the
loader alone, the network alone and the loss alone are timed separately. Only times of the same round are compared.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from runner_core.base.location import Url, location
from runner_core.base.memory import available_ram
from runner_core.contract import Json
from runner_core.tools.measure.optimisations import ALL, CORE, SAME, Case
from runner_core.tools.measure.trial import Ready, Trial, TrialFailed
from runner_core.tools.measure.turns import Comparison, Contender, compare, spread
from runner_core.training.child import TrainingSpec

STEP, DATA, NETWORK, LOSS = "step", "data", "network", "loss"
QUANTITIES = (STEP, DATA, NETWORK, LOSS)
"""Measured quantities: a step with its loader; the loader, the network, the loss alone."""
TURN = 1.0
"""Approximate seconds of a turn."""
PARITY = 20
"""Largest number of first steps whose losses are compared."""
TOLERANCE = 0.01
"""Share by which two equivalent losses may differ: sums in another order, fewer bits."""
_SHARE_OF_ALL = 2
"""Time share of the case with all off, relative to another case, because it is slow and measured completely."""
_BEGUN = 0.5
"""Share of a case's least time that must be left for it to start."""
_OVER = 10.0
"""Seconds over the given time that are not reported."""
_SHARE_OF_RAM = 0.9
"""Share of the free RAM that a trial may take; a larger one is stopped before the machine stops others."""
_PATIENCE = 300.0
"""Least number of seconds that a trial may take for one request, such as preparing data and its first step."""

_SAME_CACHE = {name for core in CORE if core.part == "network" for name in core.off} | {"train.workers"}
"""Settings on which the cache does not depend."""

Cases = Callable[[Ready], Sequence[Case]]


@dataclass
class Times:
    """Seconds of one quantity with all optimisations and without some, a pair per round.

    They are per step for step and network, per sample for data, and per batch for loss.
    """

    on: list[float] = field(default_factory=list)
    off: list[float] = field(default_factory=list)
    paired: bool = True
    """False if the two were measured in different rounds, so that their ratio has no known uncertainty."""

    @property
    def usual(self) -> tuple[float, float]:
        """Median seconds with all, and these times the pairs' ratio; separate medians of few rounds could disagree."""
        on = spread(self.on).median
        return on, on * self.comparison.ratio

    @property
    def comparison(self) -> Comparison:
        """How many times as long it takes without."""
        found = compare(self.off, self.on)
        return found if self.paired else replace(found, low=0.0, high=math.inf, rounds=1)


@dataclass(frozen=True)
class Parity:
    """Losses with and without, over the same samples.

    `trained` holds means over the first `steps` steps. `evaluated` holds the loss of one batch after the first step, in
    evaluation mode.
    """

    steps: int
    trained: tuple[float, float]
    evaluated: tuple[float, float]
    agree: bool

    @property
    def difference(self) -> float:
        """The larger of the two differences, as a share."""
        return max(_difference(*self.trained), _difference(*self.evaluated))


@dataclass
class Row:
    """Result of a case; `host_bytes` and `device_bytes` are peaks without the optimisation."""

    case: Case
    failed: str = ""
    """Why it could not be measured."""
    repeated: float = 0.0
    """Seconds of the rounds after the first."""
    alone: bool = False
    """True if both did not fit at once, so that times are compared with those of the beginning, minutes apart."""
    times: dict[str, Times] = field(default_factory=dict)
    parity: Parity | None = None
    steps_per_epoch: tuple[int, int] = (1, 1)
    """Steps per epoch with all optimisations and without this one."""
    host_bytes: int = 0
    device_bytes: int = 0

    @property
    def epoch(self) -> Times:
        """Seconds of an epoch: those of paired steps, times the steps per epoch."""
        times, (on, off) = self.times[STEP], self.steps_per_epoch
        return Times([on * seconds for seconds in times.on], [off * seconds for seconds in times.off], times.paired)


@dataclass
class Found:
    """Results with all optimisations, and without each.

    `left_out` names the cases not measured (yet), and `least` is the least number of seconds that each of them takes.
    """

    ready: Ready
    times: dict[str, list[float]]
    host_bytes: int
    device_bytes: int
    rows: list[Row] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    least: float = 0.0
    seconds: float = 0.0
    """Seconds that everything took so far."""

    @property
    def seconds_per_epoch(self) -> float:
        return spread(self.times[STEP]).median * self.ready.steps_per_epoch

    def gather(self, row: Row) -> None:
        """Add a finished row; its rounds with all optimisations also count for the whole."""
        self.rows.append(row)
        for quantity, times in row.times.items():
            self.times.setdefault(quantity, []).extend([] if row.alone else times.on)


class Ablation:
    """Measures optimisations of `base`, whose cache should exist, in about `seconds`.

    The first case gets at least one round. The others follow in order as far as there is time. `say` receives progress
    lines.
    """

    def __init__(self, base: TrainingSpec, seconds: float, say: Callable[[str], None], turn: float = TURN) -> None:
        self._base, self._seconds, self._turn = base, seconds, turn
        self._say = say
        self.found: Found | None = None
        """Results so far, while it runs; None at the start."""

    def run(self, cases: Cases, done: Callable[[Found], None] = lambda found: None) -> Found:
        """Run the ablation.

        `cases` chooses what to switch off from the trial with all on. `done` is called after each of them. Raises
        TrialFailed if the settings as they are cannot be measured.
        """
        begun = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="runner-ablate-") as folder:
            self._folder = Path(folder)
            with self._trial("as set", {}, None) as trial:
                self._on = _Side(trial, self._turn)
                found = self.found = self._first()
                found.seconds = time.monotonic() - begun
                done(found)
                wanted = cases(self._on.ready)
                for number, case in enumerate(wanted):
                    left = self._seconds - (time.monotonic() - begun)
                    if number and left < _BEGUN * found.least:
                        break
                    found.left_out = [one.name for one in wanted[number + 1 :]]
                    shares = sum(_share(c) for c in wanted[number:])
                    found.gather(self._case(case, max(0.0, left) * _share(case) / shares, found))
                    found.seconds = time.monotonic() - begun
                    done(found)
        over = found.seconds - self._seconds
        if over > max(_OVER, 0.2 * self._seconds):
            self._say(f"this took {over:.0f} s more than asked for: most of it to start trainings and to compile them")
        return found

    def _trial(self, name: str, off: Mapping[str, Json], patience: float | None) -> Trial:
        """Return a trial; streamed data go into a folder of its own, so that no trial finds what another fetched."""
        own = {"cache.dir": str(self._folder / name)} if self._streamed else {}
        most = int(_SHARE_OF_RAM * available_ram())
        return Trial(self._base, name, {**off, **own}, timeout=patience, memory_bytes=most)

    @property
    def _streamed(self) -> bool:
        mode, source = self._base.settings["cache"]["mode"], self._base.source
        return mode == "stream" or (source is not None and isinstance(location(source), Url))

    def _caches(self, case: Case) -> bool:
        """Return True if the case may need a cache that does not exist yet; the unchanged settings' cache exists."""
        return not self._streamed and case.off.get("cache.mode") != "off" and not set(case.off) <= _SAME_CACHE

    # ------------------------------------------------------------ cases

    def _first(self) -> Found:
        """Measure the training with all optimisations by itself."""
        on = self._on
        self._say("with all optimisations")
        on.begin()
        times = {quantity: [seconds] for quantity in QUANTITIES if (seconds := on.seconds(quantity)) is not None}
        return Found(on.ready, times, *on.trial.memory())

    def _case(self, case: Case, seconds: float, found: Found) -> Row:
        self._say(spoken(case.name))
        row, begun = Row(case), time.monotonic()
        deadline = begun + seconds
        with self._trial(case.name, case.off, max(_PATIENCE, 3 * seconds)) as trial:
            off = _Side(trial, self._turn)
            try:
                if self._caches(case):
                    trial.prepare()
                self._measure(row, off, deadline, found)
            except TrialFailed as failure:
                if not trial.alive and not (failure.memory and self._on.trial.alive):
                    row.failed, row.times = failure.reason, {}
                else:
                    self._say(f"{failure.reason}: once more, by itself")
                    self._again_alone(row, off, deadline, found)
        if not self._on.trial.alive:
            self._on.begin()
        if not row.failed:
            found.least = max(found.least, time.monotonic() - begun - row.repeated)
        return row

    def _again_alone(self, row: Row, off: _Side, deadline: float, found: Found) -> None:
        """Measure a case by itself, because there was no room for both; the other trial starts again afterwards."""
        self._on.trial.close()
        off.trial.memory_bytes = int(_SHARE_OF_RAM * available_ram())
        row.alone, row.times = True, {}
        try:
            self._measure(row, off, deadline, found)
        except TrialFailed as failure:
            row.failed, row.times = failure.reason, {}

    def _measure(self, row: Row, off: _Side, deadline: float, found: Found) -> None:
        off.begin()
        if row.case.same:
            row.parity = parity(self._on, off)
        quantities = [q for q in QUANTITIES if q == STEP or q in row.case.parts or row.case.name in (ALL, SAME)]
        longest, rounds = 0.0, 0
        while not rounds or time.monotonic() + longest < deadline:
            begun = time.monotonic()
            for quantity in quantities:
                self._pair(row, off, quantity, rounds, found)
            longest, rounds = max(longest, time.monotonic() - begun), rounds + 1
            row.repeated += time.monotonic() - begun if rounds > 1 else 0.0
        row.steps_per_epoch = self._on.ready.steps_per_epoch, off.ready.steps_per_epoch
        row.host_bytes, row.device_bytes = off.trial.memory()

    def _pair(self, row: Row, off: _Side, quantity: str, number: int, found: Found) -> None:
        """Take a turn of each; the first one alternates."""
        if row.alone:
            if quantity in found.times and (without := off.seconds(quantity)) is not None:
                times = row.times.setdefault(quantity, Times(paired=False))
                times.on.append(spread(found.times[quantity]).median)
                times.off.append(without)
            return
        order = [self._on, off][:: 1 if number % 2 == 0 else -1]
        taken = {side: side.seconds(quantity) for side in order}
        with_all, without = taken[self._on], taken[off]
        if with_all is not None and without is not None:
            times = row.times.setdefault(quantity, Times())
            times.on.append(with_all)
            times.off.append(without)


def spoken(name: str) -> str:
    """Return what a case is, in words.

    >>> spoken("cache"), spoken("all off")
    ('without cache', 'with all off')
    """
    return f"{'with' if name in (ALL, SAME) else 'without'} {name}"


def _share(case: Case) -> int:
    return _SHARE_OF_ALL if case.name == ALL else 1


class _Side:
    """A trial, and how many of each quantity make a turn."""

    def __init__(self, trial: Trial, turn: float) -> None:
        self.trial, self._turn = trial, turn
        self._contender = Contender(trial)
        self._counts: dict[str, int] = {}
        self._settled: float | None = None
        """Seconds of a step from `begin` that no turn has counted yet."""
        self.losses: list[float] = []
        """Losses of the first steps."""
        self.evaluated = math.nan

    @property
    def ready(self) -> Ready:
        assert self.trial.ready is not None
        return self.trial.ready

    def begin(self) -> None:
        """Start, evaluate, and take the steps whose losses are compared; raise TrialFailed."""
        contender = self._contender
        contender.count = 0
        contender.start()
        self.evaluated = self.trial.evaluate(self.ready.batch).get("loss", math.nan)
        until = time.monotonic() + 5 * self._turn
        first = contender.take(1)
        if first.per_step > self._turn / 2:  # a slow one takes only the necessary steps
            contender.count = max(1, round(self._turn / first.per_step))
            self._settled = first.per_step if contender.count == 1 else None
        else:
            contender.warm(self._turn)
        while len(contender.losses) < PARITY and time.monotonic() < until:
            contender.take(contender.count)
        self.losses = contender.losses[:PARITY]

    def seconds(self, quantity: str) -> float | None:
        """Return the seconds of one turn, or None if the quantity cannot be separated; raise TrialFailed."""
        if quantity == STEP:
            settled, self._settled = self._settled, None
            return settled or self._contender.take(self._contender.count).per_step
        if quantity == DATA:
            return 1 / self.trial.data(self._turn)
        ask = self.trial.network if quantity == NETWORK else self.trial.loss
        taken = ask(self._counts.get(quantity, 1))
        if taken is not None and quantity not in self._counts:  # the first one loads and compiles
            taken = ask(1)
            self._counts[quantity] = max(1, min(100, round(self._turn / max(taken or 0.0, 1e-6))))
            taken = ask(self._counts[quantity])
        return taken


def parity(on: _Side, off: _Side) -> Parity:
    """Return whether both learn the same.

    They do if evaluated losses differ by at most `TOLERANCE`, and training losses by at most that or by chance, because
    dropout may draw other numbers.
    """
    steps = min(len(on.losses), len(off.losses))
    pairs = list(zip(on.losses[:steps], off.losses[:steps], strict=True))
    trained = statistics.fmean(a for a, _ in pairs), statistics.fmean(b for _, b in pairs)
    differences = [b - a for a, b in pairs]
    known = steps > 1 and all(map(math.isfinite, differences))
    chance = 2 * statistics.stdev(differences) / math.sqrt(steps) if known else 0.0
    close = _difference(*trained) <= TOLERANCE or abs(statistics.fmean(differences)) <= chance
    evaluated = on.evaluated, off.evaluated
    return Parity(steps, trained, evaluated, close and _difference(*evaluated) <= TOLERANCE)


def _difference(one: float, other: float) -> float:
    """Return the relative difference; infinite if either is not finite."""
    if not (math.isfinite(one) and math.isfinite(other)):
        return math.inf
    return abs(one - other) / max(abs(one), abs(other), 1e-12)
