"""How long it takes until the first word: a command's help, in a fresh process."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from benchmarks.harness import Aim, Options, Result, Turns, Way, compared, number

BIN = Path(sys.executable).parent
LIGHTNING = """
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.demos.boring_classes import DemoModel
LightningCLI(DemoModel)
"""
"""The smallest script with Lightning's command line, as its documentation has it."""
PEERS: dict[str, tuple[str, list[str]]] = {
    "nnUNetv2_train -h": ("nnunetv2", [str(BIN / "nnUNetv2_train"), "-h"]),
    "fabric --help": ("lightning", [str(BIN / "fabric"), "--help"]),
    "LightningCLI --help": ("jsonargparse", [sys.executable, "-c", LIGHTNING, "--help"]),
    "python -m monai.bundle --help": ("fire", [sys.executable, "-m", "monai.bundle", "--help"]),
    "python -c 'import torch'": ("torch", [sys.executable, "-c", "import torch"]),
    "python -c 'import tensorflow'": ("tensorflow", [sys.executable, "-c", "import tensorflow"]),
}


def run(options: Options) -> Result:
    turns = Turns(1 if options.quick else 12)
    runner = str(BIN / "runner")
    ours = {"runner": [runner], "runner --help": [runner, "--help"], "runner list": [runner, "list"]}
    for name, command in {"python -c pass": [sys.executable, "-c", "pass"], **ours}.items():
        turns.add(name, lambda command=command: process(command))
    for name, (module, command) in PEERS.items():
        turns.add(name, lambda m=module, c=command: process(c, m), every=4)
    times = turns.run()
    slowest = max(times[name].median * 1e3 for name in ours)
    return Result(
        title="The first word",
        what="Each command runs in a fresh process until it has printed its help and ended, bytecode compiled and "
        "files in memory. Importing a framework alone stands below, for those who would start with it.",
        tables=[compared(times, "runner --help")],
        aims=[Aim(f"runner, its help and its list within 100 ms: {number(slowest)} ms", slowest <= 100)],
        left_out=turns.left_out,
        packages=("nnunetv2", "lightning", "jsonargparse", "monai", "torch", "tensorflow"),
    )


def process(command: list[str], module: str | None = None) -> Way:
    if module and find_spec(module) is None:
        raise ImportError(f"{module} is not installed")

    def run(turn: int) -> None:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ImportError(f"ends with code {done.returncode}: {done.stderr.strip().splitlines()[-1]}")

    return run
