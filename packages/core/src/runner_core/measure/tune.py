"""Trying remedies one after another, within a time: the best settings so far against those with one remedy more.

Each pair takes turns (`measure.turns`). A remedy stays only if it is faster beyond the noise and learns the same; and
in the end what stayed is measured against the settings that tuning began with once more, by turns of their own: chance
that favoured one of many remedies does not favour it twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

from runner_core._errors import BadInput
from runner_core._files import size_text
from runner_core._memory import available_ram
from runner_core.measure import learned
from runner_core.measure.agreement import same_steps
from runner_core.measure.candidates import Candidate, LeftOut
from runner_core.measure.trial import Base, Ready, Trial, TrialFailed
from runner_core.measure.tuned import Found, Row, said
from runner_core.measure.turns import LEAST, SECONDS, Contender, Rounds, spread
from runner_core.protocols import Fix, Json

WORTH = 1.01
"""Times as fast that a remedy must make training, besides being faster beyond the noise."""
_LOOKS = (8, 16)
"""Rounds after which it is decided where it can be: who looks after each one sees by chance what is not there."""
_HOPELESS = 3
"""Rounds after which what was slower in each, by 5 %, is given up."""
_FINAL_ROUNDS = 12
_FINAL_SHARE = 0.35
"""Of the time, at most, that is kept for the last comparison."""
_PROFILE_SHARE = 0.15
"""Of the time, at most, for a profile that says what to try first."""
_PROFILE_STARTS = 3
"""Times as long as the start of a trial that a profile takes, at least."""
_EVALUATED = 4
"""Batches by whose loss different batch sizes are compared."""
_ROUNDS_ONLY = {"precision.mode"}
"""Settings that change the results of a step, but not what it is meant to be: losses of the same steps are compared."""
_PATIENCE = 60.0
"""Seconds that a remedy may take for one thing, its start say, however little time there is."""
_SHARE_OF_RAM = 0.9
"""Of what is free, that a trial may take: what takes more is ended before the machine ends others."""
_MARGIN = 1.1
"""Times the memory of one trial that must be free for another one beside it."""

Settings = Mapping[str, Json]


class _Crowded(Exception):
    """Two trials do not fit into memory together."""


class _NotAllowed(TrialFailed):
    """It takes more than the user allows, alone too."""


class Tuning:
    """`seconds`: of all; `memory`: bytes that a trial may take, on the device or, on a CPU, of the host; None: what is
    free. `say` is told of every remedy as it is decided. A context manager: no trial outlives it."""

    def __init__(
        self, base: Base, seconds: float, memory: int | None = None, say: Callable[[str], None] = lambda text: None
    ) -> None:
        self.base, self.memory, self.say = base, memory, say
        self.began = time.monotonic()
        self.end = self.began + seconds
        self.kept: dict[str, Json] = {}
        self.rows: list[Row] = []
        self.ready: Ready | None = None
        """Of the settings that it begins with, once they were started."""
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
        """Start with the settings as they are, and see how they spend their time. BadInput where that fails."""
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

    def fixes(self) -> list[Fix]:
        """What a short profile speaks for; nothing, where that takes more of the time than it is worth."""
        seconds = self.end - self.began
        if _PROFILE_SHARE * seconds < _PROFILE_STARTS * self._start_seconds():
            self.say("  no time for a profile: the list is gone through in its own order")
            return []
        try:
            with Trial(self.base, "profile", {}, timeout=_PROFILE_SHARE * seconds) as trial:
                return trial.profile(0.1 * _PROFILE_SHARE * seconds)[1]
        except TrialFailed as error:
            self.say(f"  no profile ({error.reason}): the list is gone through in its own order")
            return []

    def try_all(self, settings: Settings, candidates: Sequence[Candidate], left: Sequence[LeftOut]) -> None:
        """One after another, as the time allows. `settings`: those that tuning began with, flat."""
        self.rows += [Row(one.name, {}, "", "not tried", one.reason) for one in left]
        for number, candidate in enumerate(candidates):
            now = {**settings, **self.kept}
            wanted = dict(candidate.fix.settings)
            if not candidate.applies(now) or all(now.get(name) == value for name, value in wanted.items()):
                continue
            fix = candidate.fix
            row = Row(fix.name, wanted, fix.why, "not tried", "there was no time")
            left_seconds = self._left_seconds()
            if left_seconds <= self._least_seconds():
                self._wanted += self._usual_seconds()
            else:
                slice_seconds = max(left_seconds / (len(candidates) - number), min(left_seconds, self._usual_seconds()))
                if left_seconds - slice_seconds <= self._least_seconds():  # nothing else has room in what would be left
                    slice_seconds = left_seconds
                stepwise = fix.same or set(wanted) <= _ROUNDS_ONLY
                try:
                    self._try(row, stepwise, time.monotonic() + slice_seconds)
                except (KeyboardInterrupt, SystemExit):
                    for fix in (one.fix for one in candidates[number:]):
                        self.rows.append(Row(fix.name, dict(fix.settings), fix.why, "not tried", "interrupted"))
                    raise
            self.rows.append(row)
            self.say(said(row))

    def finish(self) -> Found:
        """Measure what stayed against the settings as they were."""
        assert self.ready is not None
        found = Found(dict(self.kept), self.rows, self.ready, self.wait_share)
        found.given, found.wanted = self.end - self.began, self._wanted
        if self.kept:
            self.say("all that was kept, against the settings as they were")
            self._confirm(found)
        found.seconds = time.monotonic() - self.began
        return found

    def stopped(self) -> Found:
        """What there is when somebody ends it before `finish`: nothing of what stayed was measured once more."""
        assert self.ready is not None
        seconds = time.monotonic() - self.began
        dropped = dict(self.kept)
        return Found({}, self.rows, self.ready, self.wait_share, dropped=dropped, seconds=seconds, interrupted=True)

    # ------------------------------------------------------------ one remedy

    def _try(self, row: Row, same: bool, until: float) -> None:
        """Fill in the row; what was kept is the best from here on."""
        row.reason = ""
        settings = {**self.kept, **row.settings}
        rival = self._contender(row.name, settings, until)
        try:
            try:
                self._measure(row, rival, same, until, apart=not self._room())
            except _Crowded:
                self._measure(row, rival, same, until, apart=True)
        except TrialFailed as error:
            row.outcome = "too large" if error.memory else "failed"
            row.reason, row.output = error.reason, error.output
        if row.outcome == "kept":
            self.best.trial.close()
            self.best, self.kept = rival, settings
            self.best.trial.timeout = None
        else:
            rival.trial.close()

    def _measure(self, row: Row, rival: Contender, same: bool, until: float, apart: bool) -> None:
        """Raises TrialFailed of the rival's, and _Crowded where it, or the best, fails as they are alive together."""
        row.apart = apart
        if apart:
            self.best.trial.close()
            rival.trial.close()
            rival.trial.memory_bytes = self._limit()
        try:
            if not apart and not (same and self.best.trial.alive):
                self.best.start()  # of another batch size: so that both have learned from nothing yet
            ready = rival.start()
            if rival.notes and not apart:  # a micro-batch that was halved: alone it might not have been
                raise _Crowded
            self._refuse_more(ready.host_bytes, ready.device_bytes)
            rounds = Rounds([self.best, rival], SECONDS, apart)
            begun = None if same or apart else self.best.trial.evaluate(self._evaluated)
            self._rounds(rounds, rival, until)
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
            row.agreement = learned.together(begun, self.best, rival, self._evaluated)
        else:
            row.agreement = learned.apart(self.best, rival, self._evaluated)
        row.reason = row.agreement.text
        if not row.agreement.agrees:
            row.outcome = "learns otherwise"

    def _rounds(self, rounds: Rounds, rival: Contender, until: float) -> None:
        """Until it can be decided, or `until`."""
        while True:
            rounds.round()
            pairs = list(zip(self.best.per_sample, rival.per_sample, strict=True))
            if _hopeless(pairs):
                return
            comparison = rounds.compare(self.best, rival)
            promising = comparison.ratio >= WORTH and not comparison.faster
            if rounds.done in _LOOKS and not promising:
                return
            # what promises something gets the time of those to come, as far as the first look
            limit = self.end - self._final_seconds() if promising and rounds.done < _LOOKS[0] else until
            if rounds.done >= max(_LOOKS) or time.monotonic() + rounds.longest > limit:
                return

    def _judge(self, row: Row, rounds: Rounds, rival: Contender) -> None:
        comparison = row.comparison = rounds.compare(self.best, rival)
        row.before, row.samples_per_second = (1 / spread(c.per_sample).median for c in (self.best, rival))
        if rival.trial.alive:
            row.host_bytes, row.device_bytes = rival.trial.memory()
            self._refuse_more(row.host_bytes, row.device_bytes)
        if comparison.faster and comparison.ratio >= WORTH:
            row.outcome = "kept"
        elif comparison.slower:
            row.outcome = "slower"
        elif _hopeless(list(zip(self.best.per_sample, rival.per_sample, strict=True))):
            row.outcome, row.reason = "given up", f"slower in each of {_HOPELESS} rounds"
        elif rounds.done < LEAST or (comparison.ratio >= WORTH and rounds.done < max(_LOOKS)):
            row.outcome, row.reason = "undecided", "not told from noise in this time: raise --minutes"
        else:
            row.outcome, row.reason = "no faster", ""

    @property
    def _evaluated(self) -> int:
        """Samples of an evaluation."""
        assert self.ready is not None
        return _EVALUATED * self.ready.batch

    # ------------------------------------------------------------ the last comparison

    def _confirm(self, found: Found) -> None:
        """Back to the settings as they were, unless those that stayed are faster beyond the noise once more."""
        first = self._contender("the settings as they were", {})
        rounds = None
        try:
            for apart in (not self._room(), True):
                try:
                    if not apart:
                        first.start()
                        if not self.best.trial.alive:
                            self.best.start()
                    rounds = Rounds([first, self.best], SECONDS, apart)
                    # past the end, if need be: without it nothing of all this could be kept
                    rounds.until(self.end, LEAST, _FINAL_ROUNDS)
                    break
                except TrialFailed:
                    if apart:
                        raise
            assert rounds is not None
            found.final = rounds.compare(first, self.best)
            found.turns = first.per_sample, self.best.per_sample
            found.speeds = 1 / spread(first.per_sample).median, 1 / spread(self.best.per_sample).median
        except TrialFailed as error:
            self.say(f"the last comparison failed: {error.reason}")
        if found.final is None or not found.final.faster:
            found.dropped, found.settings = found.settings, {}

    # ------------------------------------------------------------ time and memory

    def _contender(self, name: str, settings: Settings, until: float | None = None) -> Contender:
        """`until`: when, on the monotonic clock, it must have begun."""
        timeout = None if until is None else max(_PATIENCE, 2 * (until - time.monotonic()))
        trial = Trial(self.base, name, settings, memory_bytes=self._limit(), timeout=timeout)
        self._open.callback(trial.close)
        return Contender(trial)

    def _limit(self) -> int:
        """Bytes of host memory that a trial which is started now may take."""
        free = int(_SHARE_OF_RAM * available_ram())
        return free if self.memory is None or not self._on_cpu else min(free, self.memory)

    @property
    def _on_cpu(self) -> bool:
        return self.ready is not None and self.ready.kind == "cpu"

    def _refuse_more(self, host: int, device: int) -> None:
        taken = host if self._on_cpu else device
        if self.memory is not None and taken > self.memory:
            raise _NotAllowed(f"takes {size_text(taken)}, more than --memory-gb allows", memory=True)

    def _room(self) -> bool:
        """For another trial beside the best, on the host. That of a GPU shows when it is tried."""
        assert self.ready is not None
        own = self.best.trial.ready or self.ready
        taken = 0 if self.best.trial.alive else own.host_bytes
        return available_ram() - taken > _MARGIN * own.host_bytes

    def _start_seconds(self) -> float:
        assert self.ready is not None
        return max(self.ready.seconds, (self.best.trial.ready or self.ready).seconds)

    def _round_seconds(self) -> float:
        """Of two turns with what comes before each."""
        return 2.3 * max(SECONDS, 2 * self.step_seconds)

    def _least_seconds(self) -> float:
        return self._start_seconds() + _HOPELESS * self._round_seconds()

    def _usual_seconds(self) -> float:
        return self._start_seconds() + (_LOOKS[0] + 1) * self._round_seconds()

    def _left_seconds(self) -> float:
        """For remedies, without what is kept for the last comparison; of a time that would be too short for even one,
        all of it."""
        left = self.end - time.monotonic()
        kept = self._final_seconds()
        tried = any(row.outcome != "not tried" for row in self.rows)
        return left - kept if tried or left - kept > self._least_seconds() else left

    def _final_seconds(self) -> float:
        """While nothing is kept, which alone needs them: of as few rounds as can be, and half of the share."""
        rounds, share = (_FINAL_ROUNDS, _FINAL_SHARE) if self.kept else (LEAST, _FINAL_SHARE / 2)
        wanted = self._start_seconds() + (rounds + 1) * self._round_seconds()
        return min(wanted, share * (self.end - self.began))


def _hopeless(pairs: Sequence[tuple[float, float]]) -> bool:
    """Seconds before and after of the first rounds: were they so much slower in each that no more are worth it?"""
    return len(pairs) == _HOPELESS and all(before < 0.95 * after for before, after in pairs)
