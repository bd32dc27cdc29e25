"""Trainings that are killed and resumed, each against the one that nobody disturbed."""

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

from runner_core._errors import BadInput, RunnerError, Unhealthy
from runner_core._text import counted
from runner_core.display import duration
from runner_core.protocols import Json
from runner_core.resuming.differences import Difference, Read, differences
from runner_core.resuming.moments import PHASES, Kill, Moment, choose
from runner_core.runfolder import RunFolder

_TOLD = 2000
"""Characters of what a failed training said that its error repeats."""
_SAID = ".out"
"""Ending of the file that has what the training of this name said."""


@dataclass
class Campaign:
    """What was found of one training. `killed`: the moments; `differs`: the first differences, none where it is equal
    to the undisturbed one."""

    number: int
    killed: list[Moment] = field(default_factory=list)
    differs: list[Difference] = field(default_factory=list)
    seconds: float = 0.0

    def json(self) -> dict[str, Json]:
        killed = [{"step": moment.step, "phase": PHASES[moment.phase]} for moment in self.killed]
        return asdict(self) | {"killed": killed, "differs": [difference.json() for difference in self.differs]}


@dataclass
class Result:
    """`steps` that each training takes. `repeatable`: where a training differed, are two that nobody disturbed equal?
    None: not asked; else their first differences."""

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
    """Trains `name` with `arguments` into folders below `folder`; `read` reads a checkpoint."""

    def __init__(
        self, name: str, arguments: Sequence[str], folder: Path, read: Read, say: Callable[[str], None]
    ) -> None:
        self._name, self._arguments, self._folder = name, list(arguments), folder
        self._read, self._say = read, say

    def run(self, times: int, kills: int, seed: int) -> Result:
        """Raises BadInput, Unhealthy or RunnerError where a training ends by itself before its last step, with what it
        said. What is kept in the folder, at the end and where somebody stops it: the runs that differ, and the one they
        differ from. Nothing, where the first training is refused."""
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
        """All trainings but those that differ, and the one they differ from."""
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
                # It may have come further than it was to: what is left of the plan lies after that.
                plan = [kill for kill in plan if kill.moment > moment]
            elif campaign.killed:
                break  # the end came before the last kill
            else:  # too quick to be hit: once more, and now before it goes on
                shutil.rmtree(run)
                plan = [Kill(first.moment, 0.0)]
        self._to_the_end(run)
        campaign.seconds = time.monotonic() - begun
        campaign.differs = differences(self._folder / "reference", run, self._read)
        return campaign

    def _repeated(self, reference: Path) -> list[Difference]:
        """Where a second undisturbed training differs from the first; it is kept where it does."""
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
        """Seconds of every moment of a training that nobody disturbs."""
        try:
            begun = self._to_the_end(run)
        except BadInput:
            if not RunFolder(run).jsonl.exists():  # it was refused
                _drop(run)
            raise
        if not begun:
            raise BadInput(f"{self._name} took no step: there is nothing to interrupt")
        ends = [*begun, (begun[-1][0], begun[-1][1])]
        return {moment: after - at for (moment, at), (_, after) in pairwise(ends)}

    def _to_the_end(self, run: Path) -> list[tuple[Moment, float]]:
        """The moments of a training, or of the rest of it, and when each began."""
        with _Training(self._name, self._arguments, run, None) as training:
            moments = [*training.moments()]
            training.finish()
        return moments

    def _killed(self, run: Path, kill: Kill) -> Moment | None:
        """Trains until that moment, and kills; the moment in which that happened, None where the end came first."""
        last: Moment | None = None
        waits = True
        with _Training(self._name, self._arguments, run, kill.moment) as training:
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
    """`runner_core.resuming.killable` as a process, which does not outlive the context."""

    def __init__(self, name: str, arguments: Sequence[str], run: Path, stop: Moment | None) -> None:
        self._run, self._said = run, run.with_name(f"{run.name}{_SAID}")
        self._told, theirs = os.pipe()
        words = [str(theirs), str(run), *map(str, stop or (0, 0)), name, *arguments]
        try:
            with self._said.open("ab") as said:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "runner_core.resuming.killable", *words],
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
        """As they come, with the time, until the process ends."""
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
        """Raises as `finish`, where it ended before it could be killed, but not well."""
        if self._process.wait() == -signal.SIGKILL:
            return True
        self.finish()
        return False

    def finish(self) -> None:
        """Raises BadInput, Unhealthy or RunnerError where the training failed."""
        code = self._process.wait()
        if code:
            said = self._said.read_text(encoding="utf-8", errors="replace").strip()
            if code == BadInput.exit_code and not RunFolder(self._run).jsonl.exists():  # no step was taken
                raise BadInput(re.split("^runner: ", said, flags=re.MULTILINE)[-1])
            kinds: dict[int, type[RunnerError]] = {2: BadInput, 3: Unhealthy}
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
            raise kinds.get(code, RunnerError)(f"the training in {self._run} {how}:\n{said[-_TOLD:]}")


def _drop(run: Path) -> None:
    """A training's folder, and what it said."""
    shutil.rmtree(run, ignore_errors=True)
    run.with_name(f"{run.name}{_SAID}").unlink(missing_ok=True)
