"""Train the members of an experiment that are not done: one after another here, or several at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import yaml

from runner_core.base.errors import BadInput, OutOfSpace, Unhealthy
from runner_core.base.location import shell_word
from runner_core.base.text import counted, duration
from runner_core.base.writing import replace_text
from runner_core.config.values import flag_words
from runner_core.contract.records import AnyRecord
from runner_core.contract.setup import Setup
from runner_core.data.splits import SPLITS
from runner_core.engines.process import undisturbed
from runner_core.output.experiments import ExperimentFolder, Member
from runner_core.training.evaluation import shown_scores

Words = Sequence[str]
"""A command line after `runner PROJECT train`."""
Say = Callable[[str], None]

SPLIT = "data.split"
"""Setting of every member: the name of a split file in the experiment's folder."""
_LOOK = 0.1
_CODE = """import sys
from runner_core.training.signals import end_with_parent
end_with_parent()
from runner_core.cli import main
sys.exit(main())"""


def write_split(path: Path, splits: Mapping[str, Sequence[AnyRecord]], everything: Sequence[AnyRecord]) -> None:
    """Write the records of each split as a file that `data.split` takes.

    It names groups if their names are no records' and if no split lacks a record of its groups, else single records.
    `everything` are all records of the data.
    """
    chosen = {r.key: split for split in splits for r in splits[split]}
    whole: dict[str, set[str | None]] = {}
    for record in everything:
        whole.setdefault(record.group, set()).add(chosen.get(record.key))
    apart = all(r.key not in whole or r.key == r.group for r in everything)
    by_group = apart and all(len(places) == 1 for places in whole.values())
    names = {
        split: sorted({r.group for r in splits[split]} if by_group else {r.key for r in splits[split]})
        for split in SPLITS
        if splits.get(split)
    }
    replace_text(path, f"# {'groups' if by_group else 'records'} of each split\n{yaml.safe_dump(names)}")


@dataclass
class _Running:
    member: Member
    process: subprocess.Popen[bytes]
    begun: float
    stopped: bool = False


@dataclass(frozen=True)
class Runner:
    """Trains members of `experiment`.

    `shared` are words that every member gets, besides the experiment's settings file: extensions, weights to start
    from.
    """

    experiment: ExperimentFolder
    shared: Words
    setup: Setup
    say: Say

    def train_all(self, members: Sequence[Member], at_once: int | None, train: Callable[[Words], int]) -> list[str]:
        """Train members, `at_once` at a time (None: one on each GPU); return a message for each that failed.

        `train` runs `runner PROJECT train WORDS` in this process, for members that are trained one by one.

        Raises BadInput if `at_once` does not suit the devices.
        """
        count = self.count(at_once, len(members))
        return self._one_by_one(members, train) if count == 1 else self._several(members, count)

    def count(self, at_once: int | None, members: int) -> int:
        """Return how many members train at a time. Raises BadInput if `at_once` does not suit the devices."""
        config = self.setup.config.train
        if config.devices > 1 and (at_once or 1) > 1:
            raise BadInput(f"--at-once {at_once}: each run takes {config.devices} devices (train.devices)")
        gpus = self._gpus if members > 1 else 0
        count = min(at_once or (gpus if config.devices == 1 else 1) or 1, max(1, members))
        if gpus and count > gpus:
            raise BadInput(f"--at-once {count}: there are {counted(gpus, 'GPU')}, one for each run")
        return count

    @property
    def _gpus(self) -> int:
        """Number of GPUs that members may have, each one; 0 on a CPU, or if `train.device` names one."""
        device = self.setup.device
        return device.count if device.kind != "cpu" and self.setup.config.train.device in ("auto", device.kind) else 0

    def words(self, member: Member) -> Words:
        """Return the command line that starts a member, or continues it."""
        run = self.experiment.run(member)
        if self.experiment.begun(member):
            return ["--resume", str(run.path)]
        settings = dict(member.settings)
        if SPLIT in settings:  # a file in this folder, which may have been moved
            settings[SPLIT] = str((self.experiment.path / str(settings[SPLIT])).absolute())
        own = [word for name, value in settings.items() for word in flag_words(name, value)]
        return ["--config", str(self.experiment.settings_file), "--run-dir", str(run.path), *self.shared, *own]

    def _one_by_one(self, members: Sequence[Member], train: Callable[[Words], int]) -> list[str]:
        """Train in this process; return a message for each member that a health rule stopped."""
        failed = []
        for number, member in enumerate(members, 1):
            self.say(f"\n== {member.name}: {number} of {len(members)} to train")
            try:
                with undisturbed() as framework:
                    framework(self.setup.project.framework)
                    train(self.words(member))
            except (Unhealthy, OutOfSpace) as error:
                self.say(f"{member.name} was stopped: {error}")
                failed.append(f"{member.name}: {error}")
        return failed

    def _several(self, members: Sequence[Member], count: int) -> list[str]:
        """Train `count` at a time; return a message for each that failed."""
        failed, waiting = list[str](), iter(members)

        def ended(member: Member, problem: str) -> None:
            if problem:
                failed.append(problem)

        self.processes(count, lambda: next(waiting, None), ended)
        return failed

    def processes(
        self,
        count: int,
        following: Callable[[], Member | None],
        ended: Callable[[Member, str], None],
        stops: Callable[[Member], bool] = lambda member: False,
    ) -> None:
        """Train members in processes of their own, `count` at a time, each with a GPU of its own if there are several.

        What a process prints is in the train.log of its run. `following` returns the next member, or None if there is
        none now; with none running either, this ends. `ended` gets a member and what went wrong, "" if nothing did. A
        member for which `stops` is true is stopped, after it saved a checkpoint.
        """
        running: dict[int, _Running] = {}
        try:
            while True:
                for place in (n for n in range(count) if n not in running):
                    if (member := following()) is None:
                        break
                    running[place] = self._begin(member, place, count)
                if not running:
                    return
                time.sleep(_LOOK)
                for place, run in list(running.items()):
                    if run.process.poll() is not None:
                        del running[place]
                        ended(run.member, self._problem(run))
                    elif not run.stopped and stops(run.member):
                        run.stopped = True
                        run.process.send_signal(signal.SIGTERM)
        except (KeyboardInterrupt, SystemExit):
            for run in running.values():
                run.process.send_signal(signal.SIGTERM)  # each saves a checkpoint
            for run in running.values():
                run.process.wait()
            raise
        finally:
            for run in running.values():
                run.process.kill()
                run.process.wait()

    def _begin(self, member: Member, place: int, count: int) -> _Running:
        self.say(f"{member.name}: training; its output is in {self.experiment.run(member).log}")
        environment = dict(os.environ)
        if count > 1 and self._gpus:
            visible = environment.get("CUDA_VISIBLE_DEVICES")
            environment["CUDA_VISIBLE_DEVICES"] = visible.split(",")[place] if visible else str(place)
        elif count > 1:
            environment.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // count)))
        command = [sys.executable, "-c", _CODE, self.experiment.project, "train", *self.words(member)]
        with self._errors(member, "wb") as errors:  # its own process group: this process passes Ctrl-C on
            process = subprocess.Popen(
                command, env=environment, stdout=subprocess.DEVNULL, stderr=errors, process_group=0
            )
        return _Running(member, process, time.monotonic())

    def _problem(self, run: _Running) -> str:
        """Say how a member ended; return what went wrong, or ""."""
        with self._errors(run.member, "rb") as file:
            message = file.read().decode(errors="replace").strip()
        with suppress(OSError):
            (self.experiment.path / f".{run.member.name}.stderr").unlink()
        if run.process.returncode == 0:
            scores = self.experiment.summary(run.member).get("scores") or {}
            self.say(f"{run.member.name}: done in {duration(time.monotonic() - run.begun)}  {shown_scores(scores)}")
            return ""
        problem = f"{run.member.name} ended with code {run.process.returncode}: {message or 'no message'}"
        if not run.stopped:
            self.say(problem)
        return problem

    def _errors(self, member: Member, mode: str) -> IO[bytes]:
        return open(self.experiment.path / f".{member.name}.stderr", mode)


def progress(experiment: ExperimentFolder) -> str:
    """Return how many members are done, as text."""
    done = sum(map(experiment.done, experiment.members))
    return f"{done} of {counted(len(experiment.members), 'run')} done, in {shell_word(experiment.path)}"
