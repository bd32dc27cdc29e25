"""How long it takes until the first word: `runner --help` against importing what peers import first.

    uv run --group bench python benchmarks/startup.py

Each command runs in a fresh process with bytecode compiled, the commands taking turns; medians in milliseconds.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

RUNNER = str(Path(sys.executable).with_name("runner"))
PEERS = {"Lightning": "lightning", "MONAI": "monai", "PyTorch": "torch"}


def commands() -> dict[str, list[str]]:
    ours = {"runner": [RUNNER], "runner --help": [RUNNER, "--help"], "runner list": [RUNNER, "list"]}
    peers = {f"import {m} ({n})": [sys.executable, "-c", f"import {m}"] for n, m in PEERS.items() if find_spec(m)}
    return {"python -c pass": [sys.executable, "-c", "pass"], **ours, **peers}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    todo = commands()
    taken: dict[str, list[float]] = {name: [] for name in todo}
    for turn in range(rounds + 1):
        for name, command in todo.items():
            begun = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            if turn:  # the first turn compiles bytecode and fills the page cache
                taken[name].append((time.perf_counter() - begun) * 1e3)
    print("| command | median ms | fastest | slowest |\n|---|---|---|---|")
    for name, times in taken.items():
        print(f"| `{name}` | {statistics.median(times):.0f} | {min(times):.0f} | {max(times):.0f} |")


if __name__ == "__main__":
    main()
