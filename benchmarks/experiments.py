"""Five folds through `runner P crossval` against five command lines of `train`, and what a fold costs besides training.

Both train the same five networks from an empty cache: `crossval` in one process, `train` in a process for each fold,
one after another, with one cache for all. Processor time is measured: other programs on the machine change it little.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import Aim, Options, Result, Turns, compared, number
from benchmarks.verdict import write_heads

RUNNER = str(Path(sys.executable).with_name("runner"))
OURS, SEPARATE = "runner crossval", "`train`, a command line a fold"
WORDS = ["--preset", "demo", "--data.spacing", "4", "--data.size", "64", "--data.views", "axial"]
WORDS += ["--train.epochs", "1", "--validate.every", "1", "--checkpoint.every", "1"]
HEADS, STEPS, MOST = 10, 2, 5.0
"""Generated heads, steps of each training, and the seconds that a fold may take."""


class Contest:
    """Ways to train all folds of generated heads; each returns the seconds of processor time that it took."""

    def __init__(self, folder: Path, folds: int) -> None:
        self.folder, self.folds = folder, folds
        self.words = ["--data", str(folder / "heads"), *WORDS, "--train.steps-per-epoch", str(STEPS)]
        write_heads(folder / "heads", HEADS)

    def crossval(self, turn: int) -> float:
        out = self.folder / f"crossval-{turn}"
        return self._taken(out, ["crossval", "--folds", str(self.folds), "--out", str(out)])

    def separate(self, turn: int) -> float:
        """Train with the folds' files of the first `crossval`, whose turn comes before."""
        out, files = self.folder / f"separate-{turn}", self.folder / "crossval-0"
        folds = range(1, self.folds + 1)
        words = ["train", "--data.split", str(files / "fold-{}.yaml"), "--run-dir", str(out / "fold-{}")]
        return self._taken(out, *([word.format(fold) for word in words] for fold in folds))

    def _taken(self, out: Path, *lines: Sequence[str]) -> float:
        before = _processor_seconds()
        for line in lines:
            command = [RUNNER, "brainunet", *line, *self.words, "--cache.dir", f"{out}-cache"]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(f"{' '.join(command)} ends with code {done.returncode}: {done.stderr[-1000:]}")
        return _processor_seconds() - before


def _processor_seconds() -> float:
    """Return the processor time of all processes that this one started and that ended."""
    found = resource.getrusage(resource.RUSAGE_CHILDREN)
    return found.ru_utime + found.ru_stime


def run(options: Options) -> Result:
    folds, turns = (2, 1) if options.quick else (5, 2)
    with tempfile.TemporaryDirectory() as folder:
        contest = Contest(Path(folder), folds)
        contenders = Turns(turns, warmup=0)
        contenders.add(OURS, lambda: contest.crossval, own_clock=True)
        contenders.add(SEPARATE, lambda: contest.separate, own_clock=True)
        times = contenders.run()
    ratio, each = times[SEPARATE].median / times[OURS].median, times[OURS].median / folds
    return Result(
        title="Five folds",
        what=f"brainunet trains {folds} folds of {HEADS} generated heads from an empty cache: `crossval` in one "
        "process, or `train` with the file of each fold, in processes one after another that share a cache. A training "
        f"has {STEPS} steps only and one thread, so nearly all of it is what a fold costs besides training: imports, "
        "settings, preparing records, a validation, scores, reports. Processor time of whole command lines.",
        tables=[compared(times, SEPARATE)],
        aims=[
            Aim(f"crossval takes less than a command line for each fold: {number(ratio)} times as fast", ratio > 1),
            Aim(f"a fold costs at most {MOST:g} s besides training: {number(each)} s", each <= MOST),
        ],
        remarks=["Longer trainings gain as many seconds, and so a smaller share."],
        packages=("torch",),
    )
