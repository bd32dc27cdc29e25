"""What an ensemble's prediction takes: peak memory of five networks that predict a head together, and of one.

One short training, copied: memory does not depend on what a network learned. Each prediction is a `runner predict` in
a process of its own.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import nibabel
import numpy as np

from benchmarks.harness import Aim, Options, Result, Table, command

BIN = Path(sys.executable).parent
MEMBERS, SIDE = 5, 176
MOST = 1.2
REMARK = "Python and torch take most of the peak, which differs by some tens of MB from one time to the next."
_MB = 1e6


def run(options: Options) -> Result:
    members, side = (2, 48) if options.quick else (MEMBERS, SIDE)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        runs = [folder / f"run-{n}" for n in range(members)]
        once = ("--epochs", "1", "--train.steps-per-epoch", "1")
        process("train", "--run-dir", runs[0], *once)
        for other in runs[1:]:
            shutil.copytree(runs[0], other)
        scan = head(folder / "head.nii.gz", side)
        more = [word for other in runs[1:] for word in ("--with", other)]
        one, alone = process("predict", runs[0], scan, "--out", folder / "one")
        several, together = process("predict", runs[0], scan, "--out", folder / "several", *more)
    ratio = several / one
    rows = [["runner, one network", one / _MB, alone], [f"**runner, {members} networks**", several / _MB, together]]
    return Result(
        title="An ensemble's memory",
        what=f"brainunet, preset demo, predicts a head of {side}³ voxels of 1 mm on the CPU, with one network and with "
        f"{members} whose probabilities are averaged (`--with`). Each is one command in a process of its own.",
        tables=[Table(["", "peak, MB", "seconds"], rows)],
        aims=[Aim(f"{members} networks take at most {MOST} times the peak of one: {ratio:.2f} times", ratio <= MOST)],
        remarks=[REMARK],
        packages=("torch",),
    )


def head(path: Path, side: int) -> Path:
    """Write a ball with a rim in noise, the size of a head in its grid."""
    axes = np.ogrid[tuple(slice(-side / 2, side / 2) for _ in range(3))]
    radius = np.sqrt(sum(axis.astype(np.float32) ** 2 for axis in axes)) / side
    values = np.where(radius < 0.4, 600, np.where(radius < 0.45, 300, 20))
    noisy = values + np.random.default_rng(0).normal(0, 15, values.shape)
    nibabel.save(nibabel.Nifti1Image(noisy.clip(0).astype(np.int16), np.eye(4)), path)
    return path


def process(name: str, *words: str | Path) -> tuple[int, float]:
    """Return the peak memory in bytes, and the seconds, of a command of brainunet."""
    ran = command(BIN / "runner", "brainunet", name, *words)
    return ran.peak, ran.clock
