"""A training in a process of its own, which tells at which moment it is, and can be held there to be killed:

    python -m runner_core.resuming.killable PIPE RUN STEP PHASE PROJECT ARGUMENT…

PIPE is the number of an inherited pipe, into which go lines: step, number of the phase, seconds (monotonic clock).
At the first moment that is not before (STEP, PHASE) the process waits for a byte from stdin, or its end; step 0: it
never waits. RUN is the run's folder, which is gone on with where it is there. Records are not scored at the end.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from runner_core._errors import RunnerError
from runner_core.cli.data import open_data
from runner_core.config.resolve import save
from runner_core.display import Display
from runner_core.protocols import HostBatch, State, Trainer
from runner_core.resuming.moments import PHASES, Moment
from runner_core.resuming.start import start
from runner_core.runfolder import RunFolder
from runner_core.sinks import Sinks

_STEP, _VALIDATION, _CHECKPOINT = range(len(PHASES))


class Teller:
    """Tells moments to whoever reads the pipe of number `pipe`, and waits for them at `stop`."""

    def __init__(self, pipe: int, stop: Moment | None) -> None:
        self._pipe, self._stop = pipe, stop

    def tell(self, step: int, phase: int) -> None:
        moment = Moment(step, phase)
        os.write(self._pipe, f"{step} {phase} {time.monotonic()}\n".encode())
        if self._stop is not None and moment >= self._stop:
            self._stop = None
            os.read(sys.stdin.fileno(), 1)


class _Telling:
    """Something of which everything but its methods here is as it was."""

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
        self._teller.tell(self._steps, _STEP)
        self._inner.train_step(batch, step)

    def validate(self, batches: Iterator[HostBatch]) -> Any:
        self._teller.tell(self._steps, _VALIDATION)
        return self._inner.validate(batches)


class _TellingEngine(_Telling):
    def trainer(self, *arguments: Any) -> Trainer:
        trainer: Any = _TellingTrainer(self._inner.trainer(*arguments), self._teller)
        return trainer


class _TellingFormat(_Telling):
    def write(self, folder: Path, state: State) -> None:
        self._teller.tell(state.values["loop"]["step"], _CHECKPOINT)
        self._inner.write(folder, state)


def train(name: str, arguments: Sequence[str], path: Path, teller: Teller) -> None:
    """Train in the folder `path`, or go on there, to the end."""
    from runner_core.training import train as run_training

    started = start(name, arguments)
    setup, resume = started.setup, path.exists()
    engine: Any = _TellingEngine(setup.engine, teller)
    checkpoints: Any = _TellingFormat(setup.checkpoint_format, teller)
    setup.engine, setup.checkpoint_format = engine, checkpoints
    folder = RunFolder(path) if resume else RunFolder.create(None, name, path)
    with folder.lock():
        save(folder.config_file, setup.config, started.head)
        display = Display(folder.log)
        sinks = Sinks(setup.sinks(path), display.say)
        try:
            folder.write_summary(run_training(setup, open_data(setup, display.say), folder, sinks, display, resume))
        finally:
            sinks.close()


def main(words: Sequence[str]) -> int:
    number, path, step, phase, name, *arguments = words
    os.set_inheritable(int(number), False)
    stop = Moment(int(step), int(phase)) if int(step) else None
    try:
        train(name, arguments, Path(path), Teller(int(number), stop))
    except RunnerError as error:
        print(f"runner: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
