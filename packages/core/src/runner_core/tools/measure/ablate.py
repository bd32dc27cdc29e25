"""Measure what each optimisation is worth: a training without it takes turns with one that has all.

Both live at once, in their own processes, and take the same samples in the same order. A step with its loader, the
loader alone, the network alone and the loss alone are timed separately. Only times of the same round are compared.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from runner_core.base.location import Url, location
from runner_core.base.resources import available_ram
from runner_core.contract import Json
from runner_core.tools.measure.agreement import parity
from runner_core.tools.measure.optimisations import ALL, CORE, SAME
from runner_core.tools.measure.outcome import Case, Result
from runner_core.tools.measure.paired import DATA, LOSS, NETWORK, STEP, Contender, Rounds
from runner_core.tools.measure.process import TrialFailed
from runner_core.tools.measure.times import spread
from runner_core.tools.measure.trial import SHARE_OF_RAM, Doubt, Ready, Trial
from runner_core.training.assembly import TrainingSpec

QUANTITIES = (STEP, DATA, NETWORK, LOSS)
"""Measured quantities: a step with its loader; the loader, the network, the loss alone."""
TURN = 1.0
"""Approximate seconds of a turn."""
_SHARE_OF_ALL = 2
"""Time share of the case with all off, relative to another case, because it is slow and measured completely."""
_BEGUN = 0.5
"""Share of a case's least time that must be left for it to start."""
_OVER = 10.0
"""Seconds over the given time that are not reported."""
_PATIENCE = 300.0
"""Least number of seconds that a trial may take for one request, such as preparing data and its first step."""

_SAME_CACHE = {name for core in CORE if core.part == "network" for name in core.off} | {"train.workers"}
"""Settings on which the cache does not depend."""

Cases = Callable[[Ready], Sequence[Case]]


@dataclass
class Ablated:
    """Results with all optimisations, and without each.

    `left_out` names the cases not measured (yet), and `least` is the least number of seconds that each of them takes.
    """

    ready: Ready
    times: dict[str, list[float]]
    host_bytes: int
    device_bytes: int
    rows: list[Result] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    least: float = 0.0
    doubt: Doubt | None = None
    """Why `verify-kernels` does not find the gradients right; of wrong ones, no optimisation is worth its time."""
    seconds: float = 0.0
    """Seconds that everything took so far."""

    @property
    def seconds_per_epoch(self) -> float:
        return spread(self.times[STEP]).median * self.ready.steps_per_epoch

    def gather(self, row: Result) -> None:
        """Add a finished row; its rounds with all optimisations also count for the whole."""
        self.rows.append(row)
        for quantity, times in row.times.items():
            self.times.setdefault(quantity, []).extend([] if row.apart else times.base)


class Ablation:
    """Measures optimisations of `base`, whose cache should exist, in about `seconds`.

    The first case gets at least one round. The others follow in order as far as there is time. `say` receives progress
    lines.
    """

    def __init__(self, base: TrainingSpec, seconds: float, say: Callable[[str], None], turn: float = TURN) -> None:
        self._base, self._seconds, self._turn = base, seconds, turn
        self._say = say
        self.found: Ablated | None = None
        """Results so far, while it runs; None at the start."""

    def run(self, cases: Cases, done: Callable[[Ablated], None] = lambda found: None) -> Ablated:
        """Run the ablation.

        `cases` chooses what to switch off from the trial with all on. `done` is called after each of them. Raises
        TrialFailed if the settings as they are cannot be measured.
        """
        begun = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="runner-ablate-") as folder:
            self._folder = Path(folder)
            with self._trial("as set", {}, None) as trial:
                self._on = Contender(trial)
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

    def _trial(self, name: str, off: Mapping[str, Json], patience: float | None, *, apart: bool = True) -> Trial:
        """Return a trial; `apart`, streamed data go into a folder of its own: no trial finds what another fetched."""
        own = {"cache.dir": str(self._folder / name)} if apart and self._streamed else {}
        most = int(SHARE_OF_RAM * available_ram())
        return Trial(self._base, name, {**off, **own}, timeout=patience, memory_bytes=most)

    @property
    def _streamed(self) -> bool:
        mode, source = self._base.settings["cache"]["mode"], self._base.source
        return mode == "stream" or (source is not None and isinstance(location(source), Url))

    def _caches(self, case: Case) -> bool:
        """Return True if the case may need a cache that does not exist yet; the unchanged settings' cache exists."""
        return not self._streamed and case.settings.get("cache.mode") != "off" and not set(case.settings) <= _SAME_CACHE

    # ------------------------------------------------------------ cases

    def _first(self) -> Ablated:
        """Compare the kernels of the training with all optimisations, then measure it by itself."""
        on, doubt = self._on, self._doubt()
        self._say("with all optimisations")
        on.begin(self._turn)
        times = {
            quantity: [seconds] for quantity in QUANTITIES if (seconds := on.seconds(quantity, self._turn)) is not None
        }
        return Ablated(on.ready, times, *on.trial.memory(), doubt=doubt)

    def _doubt(self) -> Doubt | None:
        try:
            with self._trial("gradients", {}, None, apart=False) as trial:  # a training uses what is fetched here
                return trial.doubt()
        except TrialFailed as failure:
            return Doubt("unchecked", failure.reason)

    def _case(self, case: Case, seconds: float, found: Ablated) -> Result:
        self._say(spoken(case.name))
        row, begun = Result(case), time.monotonic()
        deadline = begun + seconds
        with self._trial(case.name, case.settings, max(_PATIENCE, 3 * seconds)) as trial:
            off = Contender(trial)
            try:
                if self._caches(case):
                    trial.prepare()
                self._measure(row, off, deadline, found)
            except TrialFailed as failure:
                if not trial.alive and not (failure.memory and self._on.trial.alive):
                    _fail(row, failure)
                else:
                    self._say(f"{failure.reason}: once more, by itself")
                    self._again_alone(row, off, deadline, found)
        if not self._on.trial.alive:
            self._on.begin(self._turn)
        if not row.failed:
            found.least = max(found.least, time.monotonic() - begun - row.repeated)
        return row

    def _again_alone(self, row: Result, off: Contender, deadline: float, found: Ablated) -> None:
        """Measure a case by itself, because there was no room for both; the other trial starts again afterwards."""
        self._on.trial.close()
        off.trial.memory_bytes = int(SHARE_OF_RAM * available_ram())
        row.apart, row.times = True, {}
        try:
            self._measure(row, off, deadline, found)
        except TrialFailed as failure:
            _fail(row, failure)

    def _measure(self, row: Result, off: Contender, deadline: float, found: Ablated) -> None:
        off.begin(self._turn)
        if row.case.same:
            row.agreement = parity(self._on, off)
        quantities = [q for q in QUANTITIES if q == STEP or q in row.case.parts or row.case.name in (ALL, SAME)]
        usual = {quantity: spread(values).median for quantity, values in found.times.items()} if row.apart else None
        rounds = Rounds(self._on, off, quantities, self._turn, usual=usual)
        rounds.until(deadline, least=1)
        row.times, row.repeated = rounds.times, rounds.repeated
        row.steps_per_epoch = self._on.ready.steps_per_epoch, off.ready.steps_per_epoch
        row.host_bytes, row.device_bytes = off.trial.memory()


def spoken(name: str) -> str:
    """Return what a case is, in words.

    >>> spoken("cache"), spoken("all off")
    ('without cache', 'with all off')
    """
    return f"{'with' if name in (ALL, SAME) else 'without'} {name}"


def _share(case: Case) -> int:
    return _SHARE_OF_ALL if case.name == ALL else 1


def _fail(row: Result, failure: TrialFailed) -> None:
    row.fail(failure)
    row.times = {}
