"""Kill and resume trainings, and compare each with an uninterrupted one."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from runner_core.base.errors import BadInput, RunnerError, Unhealthy
from runner_core.base.text import counted, duration
from runner_core.contract import Json
from runner_core.output.runfolder import RunFolder
from runner_core.tools.verify_resume import Difference, Read, differences
from runner_core.training.assembly import TrainingSpec

_TOLD = 2000
"""Characters of a failed training's output that its error repeats."""
_SAID = ".out"
"""Suffix of the file with a training's output."""


@dataclass
class Campaign:
    """Result of one training: the moments of its kills, and its first differences from the uninterrupted one."""

    number: int
    killed: list[Moment] = field(default_factory=list)
    differs: list[Difference] = field(default_factory=list)
    seconds: float = 0.0

    def json(self) -> dict[str, Json]:
        killed = [{"step": moment.step, "phase": PHASES[moment.phase]} for moment in self.killed]
        return asdict(self) | {"killed": killed, "differs": [difference.json() for difference in self.differs]}


@dataclass
class Result:
    """Result of all trainings, which take `steps` steps each.

    If a training differed, `repeatable` holds the first differences of two uninterrupted ones (none if they are equal);
    None means not tested.
    """

    steps: int
    seconds: float
    campaigns: list[Campaign]
    repeatable: list[Difference] | None = None

    @property
    def equal(self) -> bool:
        return not any(campaign.differs for campaign in self.campaigns)

    @property
    def kills(self) -> int:
        return sum(len(campaign.killed) for campaign in self.campaigns)


class Campaigns:
    """Trains `spec` into folders below `folder`; `read` reads a checkpoint."""

    def __init__(self, spec: TrainingSpec, folder: Path, read: Read, say: Callable[[str], None]) -> None:
        self._spec, self._folder = spec, folder
        self._read, self._say = read, say

    def run(self, times: int, kills: int, seed: int) -> Result:
        """Run the campaigns.

        Raises BadInput, Unhealthy or RunnerError, with the training's output, if a training ends by itself before its
        last step. In the end, or if the user stops it, the folder keeps the runs that differ and their reference. It
        keeps nothing if the first training is refused.
        """
        result = Result(0, 0.0, [])
        try:
            self._run_all(result, times, kills, seed)
        except (KeyboardInterrupt, SystemExit):
            self._drop_unfinished(result)
            raise
        return result

    def _run_all(self, result: Result, times: int, kills: int, seed: int) -> None:
        reference = self._folder / "reference"
        begun = time.monotonic()
        durations = self._whole(reference)
        result.steps, result.seconds = max(durations).step, time.monotonic() - begun
        self._say(f"reference: {counted(result.steps, 'step')} in {duration(result.seconds)}, never interrupted")
        for number in range(1, times + 1):
            campaign = self._campaign(number, kills, random.Random(f"{seed} {number}"), durations)
            result.campaigns.append(campaign)
            self._say_of(campaign)
            if not campaign.differs:
                shutil.rmtree(self._run(number))
        if result.equal:
            shutil.rmtree(reference)
        else:
            result.repeatable = self._repeated(reference)

    def _drop_unfinished(self, result: Result) -> None:
        """Remove all trainings except those that differ and their reference."""
        kept = {self._run(campaign.number) for campaign in result.campaigns if campaign.differs}
        if kept:
            kept.add(self._folder / "reference")
        for path in self._folder.iterdir():
            run = path.with_suffix("") if path.suffix == _SAID else path
            if re.match("reference|killed-", run.name) and run not in kept:
                _drop(run)

    def _campaign(self, number: int, kills: int, rng: random.Random, durations: Mapping[Moment, float]) -> Campaign:
        campaign, begun = Campaign(number), time.monotonic()
        plan = list(choose(durations, kills, number - 1, rng))
        first, run = plan[0], self._run(number)
        while plan:
            moment = self._killed(run, plan.pop(0))
            if moment is not None:
                campaign.killed.append(moment)
                # It may have gone further than planned; later kills must lie after that.
                plan = [kill for kill in plan if kill.moment > moment]
            elif campaign.killed:
                break  # the end came before the last kill
            else:  # too short to hit: try again, and kill before it goes on
                shutil.rmtree(run)
                plan = [Kill(first.moment, 0.0)]
        self._to_the_end(run)
        campaign.seconds = time.monotonic() - begun
        campaign.differs = differences(self._folder / "reference", run, self._read)
        return campaign

    def _repeated(self, reference: Path) -> list[Difference]:
        """Return the differences of a second uninterrupted training from the first; keep it if there are any."""
        again = self._folder / "reference-again"
        self._to_the_end(again)
        found = differences(reference, again, self._read)
        if not found:
            shutil.rmtree(again)
        return found

    def _say_of(self, campaign: Campaign) -> None:
        killed = ", ".join(str(moment) for moment in campaign.killed)
        verdict = "DIFFERS" if campaign.differs else "equal"
        self._say(f"run {campaign.number}: {duration(campaign.seconds)}, killed {killed}: {verdict}")
        for difference in campaign.differs:
            self._say(f"  {difference.text()}")

    def _run(self, number: int) -> Path:
        return self._folder / f"killed-{number}"

    # ------------------------------------------------------------ processes

    def _whole(self, run: Path) -> dict[Moment, float]:
        """Return the seconds of every moment of an uninterrupted training."""
        try:
            begun = self._to_the_end(run)
        except BadInput:
            if not RunFolder(run).jsonl.exists():  # it was refused
                _drop(run)
            raise
        if not begun:
            raise BadInput(f"{self._spec.project} took no step: there is nothing to interrupt")
        ends = [*begun, (begun[-1][0], begun[-1][1])]
        return {moment: after - at for (moment, at), (_, after) in pairwise(ends)}

    def _to_the_end(self, run: Path) -> list[tuple[Moment, float]]:
        """Return the moments of a training, or of the rest of it, and when each began."""
        with _Training(self._spec, run, None) as training:
            moments = [*training.moments()]
            training.finish()
        return moments

    def _killed(self, run: Path, kill: Kill) -> Moment | None:
        """Train until the given moment, and kill; return the moment of the kill, or None if the end came first."""
        last: Moment | None = None
        waits = True
        with _Training(self._spec, run, kill.moment) as training:
            for moment, _ in training.moments():
                last = moment
                if waits and moment >= kill.moment:
                    waits = False
                    if kill.delay:
                        training.go_on()
                        time.sleep(kill.delay)
                    training.kill()
            return last if training.was_killed() else None


class _Training:
    """`runner_core.tools.verify_resume.killable` as a process, which does not outlive the context."""

    def __init__(self, spec: TrainingSpec, run: Path, stop: Moment | None) -> None:
        self._run, self._said = run, run.with_name(f"{run.name}{_SAID}")
        self._told, theirs = os.pipe()
        words = [str(theirs), str(run), *map(str, stop or (0, 0)), spec.dumps()]
        try:
            with self._said.open("ab") as said:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "runner_core.tools.verify_resume.killable", *words],
                    stdin=subprocess.PIPE,
                    stdout=said,
                    stderr=said,
                    pass_fds=[theirs],
                )
        finally:
            os.close(theirs)

    def __enter__(self) -> _Training:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._process.communicate()

    def moments(self) -> Iterator[tuple[Moment, float]]:
        """Yield the moments as they come, with the time, until the process ends."""
        with open(self._told, encoding="ascii") as lines:
            for line in lines:
                words = line.split()
                if len(words) == 3 and line.endswith("\n"):  # the last may be torn by the kill
                    yield Moment(int(words[0]), int(words[1])), float(words[2])

    def go_on(self) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(b".")
            self._process.stdin.flush()

    def kill(self) -> None:
        if self._process.poll() is None:
            os.kill(self._process.pid, signal.SIGKILL)

    def was_killed(self) -> bool:
        """Return True if it was killed; raise like `finish` if it failed before."""
        if self._process.wait() == -signal.SIGKILL:
            return True
        self.finish()
        return False

    def finish(self) -> None:
        """Wait for the end; raise BadInput, Unhealthy or RunnerError if the training failed."""
        code = self._process.wait()
        if code:
            said = self._said.read_text(encoding="utf-8", errors="replace").strip()
            if code == BadInput.exit_code and not RunFolder(self._run).jsonl.exists():  # no step was taken
                raise BadInput(re.split("^runner: ", said, flags=re.MULTILINE)[-1])
            kinds: dict[int, type[RunnerError]] = {2: BadInput, 3: Unhealthy}
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
            raise kinds.get(code, RunnerError)(f"the training in {self._run} {how}:\n{said[-_TOLD:]}")


def _drop(run: Path) -> None:
    """Remove a training's folder and output."""
    shutil.rmtree(run, ignore_errors=True)
    run.with_name(f"{run.name}{_SAID}").unlink(missing_ok=True)


PHASES = ("step", "validation", "checkpoint")
"""The events of a training after a number of steps, in order."""

_TEXT = {"step": "in step {}", "validation": "in the validation after step {}", "checkpoint": "while saving step {}"}

_SHORT = 0.002
"""Seconds below which a moment is over before another process can act within it."""


class Moment(NamedTuple):
    """The beginning of a step, a validation or the saving of a checkpoint; moments sort as they come in a run."""

    step: int
    phase: int
    """Number in PHASES."""

    def __str__(self) -> str:
        return _TEXT[PHASES[self.phase]].format(self.step)


class Kill(NamedTuple):
    """A process is killed this many seconds after it reached `moment`; 0 means before it goes on."""

    moment: Moment
    delay: float


def choose(durations: Mapping[Moment, float], count: int, first: int, rng: random.Random) -> Sequence[Kill]:
    """Choose kills at `count` moments, in order, each at any time within its moment.

    `durations` holds the seconds of each moment of the run. Phases take turns, starting with number `first`, so that
    few kills cover all of them. No kill comes before the first checkpoint is saved, if there are later moments: such a
    run starts anew, which proves nothing.
    """
    saved = min((m for m in durations if PHASES[m.phase] == "checkpoint"), default=None)
    later = sorted(m for m in durations if saved is None or m > saved) or sorted(durations)
    by_phase = [[m for m in later if m.phase == phase] for phase in range(len(PHASES))]
    there = [moments for moments in by_phase if moments]
    chosen: set[Moment] = set()
    for number in range(min(count, len(later))):
        left = [m for m in there[(first + number) % len(there)] if m not in chosen]
        chosen.add(rng.choice(left or [m for m in later if m not in chosen]))
    return [Kill(m, rng.uniform(0, durations[m]) if durations[m] > _SHORT else 0.0) for m in sorted(chosen)]
