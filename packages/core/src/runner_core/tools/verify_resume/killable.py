"""A training in its own process, which reports its moments and can be held at one to be killed.

    python -m runner_core.tools.verify_resume.killable PIPE RUN STEP PHASE SPEC

PIPE is the number of an inherited pipe, which receives lines: step, number of the phase, seconds (monotonic clock). At
the first moment not before (STEP, PHASE) the process waits for a byte from stdin, or its end; with step 0 it never
waits. RUN is the run's folder; an existing run is continued. SPEC is a `TrainingSpec` as JSON. Records are not scored
at the end.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from runner_core.base.errors import RunnerError
from runner_core.contract import HostBatch, State, Trainer
from runner_core.output.display import Display
from runner_core.output.runfolder import RunFolder
from runner_core.output.sinks import Sinks
from runner_core.plugins.settings import head, save
from runner_core.tools.verify_resume.campaign import PHASES, Moment
from runner_core.training.assembly import TrainingSpec
from runner_core.training.data import open_data

STEP, VALIDATION, CHECKPOINT = range(len(PHASES))


class Teller:
    """Reports moments to the reader of the pipe number `pipe`, and waits at `stop`."""

    def __init__(self, pipe: int, stop: Moment | None) -> None:
        self._pipe, self._stop = pipe, stop

    def tell(self, step: int, phase: int) -> None:
        moment = Moment(step, phase)
        os.write(self._pipe, f"{step} {phase} {time.monotonic()}\n".encode())
        if self._stop is not None and moment >= self._stop:
            self._stop = None
            os.read(sys.stdin.fileno(), 1)


class _Telling:
    """A wrapper that passes on everything except its own methods."""

    def __init__(self, inner: Any, teller: Teller) -> None:
        self._inner, self._teller = inner, teller

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _TellingTrainer(_Telling):
    _steps = 0

    def load_state(self, state: State) -> None:
        self._inner.load_state(state)
        self._steps = state.values["loop"]["step"]

    def train_step(self, batch: HostBatch, step: int) -> None:
        self._steps = step + 1
        self._teller.tell(self._steps, STEP)
        self._inner.train_step(batch, step)

    def validate(self, batches: Iterator[HostBatch]) -> Any:
        self._teller.tell(self._steps, VALIDATION)
        return self._inner.validate(batches)


class _TellingEngine(_Telling):
    def trainer(self, *arguments: Any) -> Trainer:
        trainer: Any = _TellingTrainer(self._inner.trainer(*arguments), self._teller)
        return trainer


class _TellingFormat(_Telling):
    def write(self, folder: Path, state: State) -> None:
        self._teller.tell(state.values["loop"]["step"], CHECKPOINT)
        self._inner.write(folder, state)


def train(spec: TrainingSpec, path: Path, teller: Teller) -> None:
    """Train in the folder `path`, or resume there, to the end."""
    from runner_core.training.run import train as run_training

    setup, resume = spec.setup(), path.exists()
    engine: Any = _TellingEngine(setup.engine, teller)
    checkpoints: Any = _TellingFormat(setup.checkpoint_format, teller)
    setup.engine, setup.checkpoint_format = engine, checkpoints
    folder = RunFolder(path) if resume else RunFolder.create(None, spec.project, path)
    with folder.lock():
        save(folder.config_file, setup.config, head(setup, spec.extensions))
        display = Display(folder.log)
        sinks = Sinks(setup.sinks(path), display.say)
        try:
            folder.write_summary(run_training(setup, open_data(setup, display.say), folder, sinks, display, resume))
        finally:
            sinks.close()


def main(words: Sequence[str]) -> int:
    number, path, step, phase, spec = words
    os.set_inheritable(int(number), False)
    stop = Moment(int(step), int(phase)) if int(step) else None
    try:
        train(TrainingSpec.loads(spec), Path(path), Teller(int(number), stop))
    except RunnerError as error:
        print(f"runner: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
