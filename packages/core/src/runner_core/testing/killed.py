"""Train in a separate process, which may kill itself with SIGKILL in a given step.

    python -m runner_core.testing.killed PROJECT FOLDER RUN STEP

This trains the phantom in FOLDER into FOLDER/RUN, and resumes from its newest checkpoint if there is one. With STEP 0
nothing kills it. A kill from outside cannot be aimed at a moment between two checkpoints; this one always falls there.
"""

from __future__ import annotations

import os
import signal
import sys
from io import StringIO
from pathlib import Path
from typing import Any

from runner_core.contract import HostBatch, Trainer
from runner_core.output.display import Display
from runner_core.output.runfolder import RunFolder
from runner_core.output.sinks import Sinks
from runner_core.testing.case import Case
from runner_core.training import loop
from runner_core.training import run as training


class _Doomed:
    """A trainer that does not survive its step `last` (counted from 1)."""

    def __init__(self, trainer: Trainer, last: int) -> None:
        self._trainer, self._last = trainer, last

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trainer, name)

    def train_step(self, batch: HostBatch, step: int) -> None:
        self._trainer.train_step(batch, step)
        self._last -= 1
        if not self._last:
            os.kill(os.getpid(), signal.SIGKILL)


def main(name: str, folder: Path, run: Path, last: int) -> None:
    """Train two epochs of four steps, with a checkpoint after every three."""

    class DoomedLoop(loop.Loop):
        def __init__(self, *, trainer: Trainer, **rest: Any) -> None:
            super().__init__(trainer=_Doomed(trainer, last) if last else trainer, **rest)

    training.Loop = DoomedLoop  # type: ignore[attr-defined]
    case = Case(name, folder)
    config = case.setup.config
    config.train.epochs, config.train.steps_per_epoch = 2, 4
    config.checkpoint.every_steps, config.checkpoint.keep = 3, 9
    config.log.every, config.log.snapshots_every = 1, 2
    resume = run.exists()
    run_folder = RunFolder(run) if resume else RunFolder.create(None, name, run)
    training.train(case.setup, case.data, run_folder, Sinks(case.setup.sinks(run)), Display(stream=StringIO()), resume)


def run() -> None:
    """Run as the command line says."""
    _, name, folder, path, last = sys.argv
    main(name, Path(folder), Path(folder) / path, int(last))


if __name__ == "__main__":
    run()
