"""Try remedies one after another, within a given time: the best settings so far against those with one more.

Each pair takes turns (`measure.paired`). A remedy stays only if it is faster beyond the noise and learns the same. In
the end the kept remedies are measured once more against the initial settings, in new turns: chance that favoured one of
many remedies does not favour it twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from runner_core.base.errors import BadInput
from runner_core.base.files import size_text
from runner_core.base.resources import available_ram
from runner_core.base.text import counted
from runner_core.contract import Json, Remedy
from runner_core.tools.measure.agreement import compare_apart, compare_together, same_steps
from runner_core.tools.measure.outcome import Case, Result
from runner_core.tools.measure.paired import SAMPLE, SECONDS, Contender, Rounds
from runner_core.tools.measure.process import TrialFailed
from runner_core.tools.measure.remedies import Candidate, LeftOut
from runner_core.tools.measure.times import LEAST, Comparison, spread
from runner_core.tools.measure.trial import SHARE_OF_RAM, Doubt, Ready, Trial
from runner_core.training.assembly import TrainingSpec

WORTH = 1.01
"""Least speed-up of a remedy, in addition to being faster beyond the noise."""
_LOOKS = (8, 16)
"""Rounds after which a decision may be taken; testing after every round inflates false positives."""
_HOPELESS = 3
"""Rounds after which a remedy that was slower in each, by 5 %, is given up."""
_FINAL_ROUNDS = 12
_FINAL_SHARE = 0.35
"""Largest share of the time that is kept for the last comparison."""
_PROFILE_SHARE = 0.15
"""Largest share of the time for a profile that says what to try first."""
_PROFILE_STARTS = 3
"""Least time of a profile, as a multiple of a trial's start."""
_EVALUATED = 4
"""Number of batches whose loss is used to compare different batch sizes."""
_ROUNDS_ONLY = {"precision.mode"}
"""Settings that change only the rounding of a step, so that losses of the same steps are compared."""
_DATA_ONLY = ("train.workers", "train.prefetch", "train.threads", "cache.", "data.", "remote.")
"""Settings that change no kernel."""
_PATIENCE = 60.0
"""Seconds that a remedy may take for one request (its start, for example), however little time is left."""
_MARGIN = 1.1
"""Memory that must be free for a second trial, as a multiple of the first one's."""

Settings = Mapping[str, Json]


@dataclass
class Tuned:
    """Result of tuning; `settings` are by dotted name, over the initial ones, and empty if they are not faster."""

    settings: dict[str, Json]
    rows: list[Result]
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


class _Crowded(Exception):
    """Two trials do not fit into memory together."""


class _NotAllowed(TrialFailed):
    """The trial takes more than the user allows, even alone."""


class Tuning:
    """Tunes settings; a context manager that no trial outlives.

    `seconds` is the total time. `memory` is the number of bytes that a trial may take, on the device or, on a CPU, on
    the host; None means what is free. `say` receives a line for every decision.
    """

    def __init__(
        self,
        base: TrainingSpec,
        seconds: float,
        memory: int | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.base, self.memory, self.say = base, memory, say
        self.began = time.monotonic()
        self.end = self.began + seconds
        self.kept: dict[str, Json] = {}
        self.rows: list[Result] = []
        self.ready: Ready | None = None
        """Results of the initial settings, once they were started."""
        self._wanted = 0.0
        self._open = ExitStack()
        self.best = self._contender("the settings as they are", {})
        self.wait_share = 0.0
        self.step_seconds = 0.0

    def __enter__(self) -> Tuning:
        return self

    def __exit__(self, *exception: object) -> None:
        self._open.close()

    # ------------------------------------------------------------ in their order

    def begin(self) -> Ready:
        """Start the initial settings and see how they spend their time; raise BadInput if that fails."""
        try:
            self.ready = self.best.start()
            self._refuse_more(self.ready.host_bytes, self.ready.device_bytes)
            self.best.warm(SECONDS)
            for _ in range(2):
                self.best.turn()
        except TrialFailed as error:
            raise BadInput(f"the settings as they are cannot be measured: {error.reason}") from error
        self.wait_share = self.best.wait_share
        self.step_seconds = spread([turn.per_step for turn in self.best.turns]).median
        return self.ready

    def remedies(self) -> list[Remedy]:
        """Return the remedies that a short profile suggests, or [] if a profile would take too much of the time."""
        seconds = self.end - self.began
        if _PROFILE_SHARE * seconds < _PROFILE_STARTS * self._start_seconds():
            self.say("  no time for a profile: the list is tried in its own order")
            return []
        try:
            with Trial(self.base, "profile", {}, timeout=_PROFILE_SHARE * seconds) as trial:
                return trial.profile(0.1 * _PROFILE_SHARE * seconds)[1]
        except TrialFailed as error:
            self.say(f"  no profile ({error.reason}): the list is tried in its own order")
            return []

    def try_all(self, settings: Settings, candidates: Sequence[Candidate], left: Sequence[LeftOut]) -> None:
        """Try the candidates one after another, as time allows; `settings` are the initial ones, flat."""
        self.rows += [Result(Case(one.name, {}), "not tried", one.reason) for one in left]
        for number, candidate in enumerate(candidates):
            now = {**settings, **self.kept}
            wanted = candidate.case.settings
            if not candidate.applies(now) or all(now.get(name) == value for name, value in wanted.items()):
                continue
            row = Result(candidate.case, "not tried", "there was no time")
            left_seconds = self._left_seconds()
            if left_seconds <= self._least_seconds():
                self._wanted += self._usual_seconds()
            else:
                slice_seconds = max(left_seconds / (len(candidates) - number), min(left_seconds, self._usual_seconds()))
                if left_seconds - slice_seconds <= self._least_seconds():  # the rest would be too short for another one
                    slice_seconds = left_seconds
                stepwise = candidate.case.same or set(wanted) <= _ROUNDS_ONLY
                try:
                    self._try(row, stepwise, time.monotonic() + slice_seconds)
                except (KeyboardInterrupt, SystemExit):
                    self.rows += [Result(one.case, "not tried", "interrupted") for one in candidates[number:]]
                    raise
            self.rows.append(row)
            self.say(decided(row))

    def finish(self) -> Tuned:
        """Measure the kept remedies against the initial settings."""
        assert self.ready is not None
        found = Tuned(dict(self.kept), self.rows, self.ready, self.wait_share)
        found.given, found.wanted = self.end - self.began, self._wanted
        if self.kept:
            self.say("all that was kept, against the settings as they were")
            self._confirm(found)
        found.seconds = time.monotonic() - self.began
        return found

    def stopped(self) -> Tuned:
        """Return the results if the user stops before `finish`; the kept remedies were not measured once more."""
        assert self.ready is not None
        seconds = time.monotonic() - self.began
        dropped = dict(self.kept)
        return Tuned({}, self.rows, self.ready, self.wait_share, dropped=dropped, seconds=seconds, interrupted=True)

    # ------------------------------------------------------------ one remedy

    def _try(self, row: Result, same: bool, until: float) -> None:
        """Try a remedy and fill in the row; if it is kept, it becomes the best."""
        row.reason = ""
        settings = {**self.kept, **row.case.settings}
        rival = self._contender(row.name, settings, until)
        try:
            try:
                self._measure(row, rival, same, until, apart=not self._room())
            except _Crowded:
                self._measure(row, rival, same, until, apart=True)
        except TrialFailed as error:
            row.fail(error)
        if row.outcome == "kept":
            self.best.trial.close()
            self.best, self.kept = rival, settings
            self.best.trial.timeout = None
        else:
            rival.trial.close()

    def _measure(self, row: Result, rival: Contender, same: bool, until: float, apart: bool) -> None:
        """Measure a rival.

        Raises TrialFailed of the rival, and _Crowded if it or the best fails while both are alive.
        """
        row.apart = apart
        if apart:
            self.best.trial.close()
            rival.trial.close()
            rival.trial.memory_bytes = self._limit()
        try:
            if not apart and not (same and self.best.trial.alive):
                self.best.start()  # another batch size: so that both start untrained
            ready = rival.start()
            if rival.notes and not apart:  # a micro-batch was halved, which might not happen alone
                raise _Crowded
            self._refuse_more(ready.host_bytes, ready.device_bytes)
            rounds = Rounds(self.best, rival, seconds=SECONDS, apart=apart)
            begun = None if same or apart else self.best.trial.evaluate(self._evaluated)
            self._rounds(rounds, until)
        except _NotAllowed:
            raise
        except TrialFailed as error:
            if not apart and (error.memory or not self.best.trial.alive):
                raise _Crowded from None
            raise
        self._judge(row, rounds, rival)
        if row.outcome != "kept":
            return
        if same:
            row.agreement = same_steps(self.best.losses, rival.losses)
        elif begun is not None:
            row.agreement = compare_together(begun, self.best, rival, self._evaluated)
        else:
            row.agreement = compare_apart(self.best, rival, self._evaluated)
        row.reason = row.agreement.text
        if not row.agreement.agrees:
            row.outcome = "learns otherwise"
        elif doubt := self._doubt(rival.trial.settings, row.case.settings):
            row.outcome = "wrong gradients" if doubt.kind == "wrong" else "unchecked gradients"
            row.reason = doubt.text

    def _doubt(self, settings: Settings, new: Settings) -> Doubt | None:
        """Return why the gradients of `settings`, of which some are `new`, cannot be trusted; None if they can.

        Losses of a few steps may agree though gradients do not. Raises TrialFailed if the comparison's process ends.
        """
        if all(name.startswith(_DATA_ONLY) for name in new):
            return None
        with Trial(self.base, "gradients", settings, memory_bytes=self._limit()) as trial:
            return trial.doubt()

    def _rounds(self, rounds: Rounds, until: float) -> None:
        """Run rounds until a decision is possible, or until `until`."""
        while True:
            rounds.round()
            times = rounds.times[SAMPLE]
            if _hopeless(times.pairs):
                return
            comparison = times.faster
            promising = comparison.ratio >= WORTH and not comparison.faster
            if rounds.done in _LOOKS and not promising:
                return
            # a promising one gets the time of later ones, up to the first look
            limit = self.end - self._final_seconds() if promising and rounds.done < _LOOKS[0] else until
            if rounds.done >= max(_LOOKS) or time.monotonic() + rounds.longest > limit:
                return

    def _judge(self, row: Result, rounds: Rounds, rival: Contender) -> None:
        row.times, comparison = rounds.times, rounds.times[SAMPLE].faster
        if rival.trial.alive:
            row.host_bytes, row.device_bytes = rival.trial.memory()
            self._refuse_more(row.host_bytes, row.device_bytes)
        if comparison.faster and comparison.ratio >= WORTH:
            row.outcome = "kept"
        elif comparison.slower:
            row.outcome = "slower"
        elif _hopeless(rounds.times[SAMPLE].pairs):
            row.outcome, row.reason = "given up", f"slower in each of {_HOPELESS} rounds"
        elif rounds.done < LEAST or (comparison.ratio >= WORTH and rounds.done < max(_LOOKS)):
            row.outcome, row.reason = "undecided", "no different from noise in this time: raise --minutes"
        else:
            row.outcome, row.reason = "no faster", ""

    @property
    def _evaluated(self) -> int:
        """Number of samples in an evaluation."""
        assert self.ready is not None
        return _EVALUATED * self.ready.batch

    # ------------------------------------------------------------ the last comparison

    def _confirm(self, found: Tuned) -> None:
        """Return to the initial settings, unless the kept ones are faster beyond the noise once more."""
        first = self._contender("the settings as they were", {})
        rounds = None
        try:
            for apart in (not self._room(), True):
                try:
                    if not apart:
                        first.start()
                        if not self.best.trial.alive:
                            self.best.start()
                    rounds = Rounds(first, self.best, seconds=SECONDS, apart=apart)
                    # past the end if necessary: without it no result could be kept
                    rounds.until(self.end, LEAST, _FINAL_ROUNDS)
                    break
                except TrialFailed:
                    if apart:
                        raise
            assert rounds is not None
            times = rounds.times[SAMPLE]
            found.final, found.turns = times.faster, (times.base, times.rival)
            found.speeds = 1 / spread(times.base).median, 1 / spread(times.rival).median
        except TrialFailed as error:
            self.say(f"the last comparison failed: {error.reason}")
        if found.final is None or not found.final.faster:
            found.dropped, found.settings = found.settings, {}

    # ------------------------------------------------------------ time and memory

    def _contender(self, name: str, settings: Settings, until: float | None = None) -> Contender:
        """Return a contender that must have started by `until` (monotonic clock)."""
        timeout = None if until is None else max(_PATIENCE, 2 * (until - time.monotonic()))
        trial = Trial(self.base, name, settings, memory_bytes=self._limit(), timeout=timeout)
        self._open.callback(trial.close)
        return Contender(trial)

    def _limit(self) -> int:
        """Return the bytes of host memory that a trial started now may take."""
        free = int(SHARE_OF_RAM * available_ram())
        return free if self.memory is None or not self._on_cpu else min(free, self.memory)

    @property
    def _on_cpu(self) -> bool:
        return self.ready is not None and self.ready.kind == "cpu"

    def _refuse_more(self, host: int, device: int) -> None:
        taken = host if self._on_cpu else device
        if self.memory is not None and taken > self.memory:
            raise _NotAllowed(f"takes {size_text(taken)}, more than --memory-gb allows", memory=True)

    def _room(self) -> bool:
        """Return True if another trial fits beside the best on the host; on a GPU only trying tells."""
        assert self.ready is not None
        own = self.best.trial.ready or self.ready
        taken = 0 if self.best.trial.alive else own.host_bytes
        return available_ram() - taken > _MARGIN * own.host_bytes

    def _start_seconds(self) -> float:
        assert self.ready is not None
        return max(self.ready.seconds, (self.best.trial.ready or self.ready).seconds)

    def _round_seconds(self) -> float:
        """Return the seconds of two turns with their preparations."""
        return 2.3 * max(SECONDS, 2 * self.step_seconds)

    def _least_seconds(self) -> float:
        return self._start_seconds() + _HOPELESS * self._round_seconds()

    def _usual_seconds(self) -> float:
        return self._start_seconds() + (_LOOKS[0] + 1) * self._round_seconds()

    def _left_seconds(self) -> float:
        """Return the seconds left for remedies, without the reserve for the last comparison.

        If that would be too short for even one remedy, all of the time is for remedies.
        """
        left = self.end - time.monotonic()
        kept = self._final_seconds()
        tried = any(row.outcome != "not tried" for row in self.rows)
        return left - kept if tried or left - kept > self._least_seconds() else left

    def _final_seconds(self) -> float:
        """Return the seconds reserved for the last comparison.

        While nothing is kept, it is the fewest rounds, and half of the share.
        """
        rounds, share = (_FINAL_ROUNDS, _FINAL_SHARE) if self.kept else (LEAST, _FINAL_SHARE / 2)
        wanted = self._start_seconds() + (rounds + 1) * self._round_seconds()
        return min(wanted, share * (self.end - self.began))


def _hopeless(pairs: Sequence[tuple[float, float]]) -> bool:
    """Return True if the first rounds were so much slower in each that no more are worth it.

    `pairs` holds the seconds before and after.
    """
    return len(pairs) == _HOPELESS and all(before < 0.95 * after for before, after in pairs)


def decided(row: Result) -> str:
    """Return the message for a decided remedy."""
    text: str = row.outcome
    if row.comparison is not None and row.comparison.rounds:
        text = f"{interval(row.comparison)}: {row.outcome}"
    return f"  {row.name}: {text}{f' ({row.reason})' if row.reason and row.outcome != 'kept' else ''}"


def interval(comparison: Comparison) -> str:
    """Return the speed-up with its limits, or with the number of rounds if they are too few for limits."""
    known = f"{comparison.low:.2f}…{comparison.high:.2f}" if comparison.low > 0 else ""
    return f"{comparison.ratio:.2f} × ({known or counted(comparison.rounds, 'round')})"
