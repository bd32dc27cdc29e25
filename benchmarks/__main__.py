"""`python -m benchmarks [NAME …]`: measure all, or those named, keep the results, and write docs/benchmarks.md."""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys
import time

from benchmarks import NAMES
from benchmarks.harness import ROOT, Options, command_line, machine
from benchmarks.page import PAGE, keep, page, table

LIMIT = 400
"""Seconds after which one benchmark of several is given up."""


def main() -> int:
    options = command_line(__doc__, NAMES, "python -m benchmarks").parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow talks before anyone asks
    failed: list[str] = []
    if not options.render:
        names = options.names or list(NAMES)
        if len(names) == 1:
            measure(names[0], Options(options.quick, options.data))
        else:  # each in a process of its own: none finds the memory, threads and imports of those before it
            failed = [name for name in names if not in_a_process(name, options)]
    if not options.quick:
        PAGE.write_text(page(), encoding="utf-8")
    if failed:
        print(f"failed: {', '.join(failed)}; their former results stay", file=sys.stderr)
    return 1 if failed else 0


def measure(name: str, options: Options) -> None:
    before, begun = machine(), time.monotonic()
    result = importlib.import_module(f"benchmarks.{name}").run(options)
    for each in result.tables:
        print(table(each.columns, each.rows), end="\n\n")
    for aim in result.aims:
        print(f"{'met' if aim.met else 'NOT met'}: {aim.text}")
    for who, why in result.left_out.items():
        print(f"left out: {who} ({why})")
    print(f"{name}: {time.monotonic() - begun:.0f} s\n")
    if not options.quick:
        keep(name, result, before, machine())


def in_a_process(name: str, options: argparse.Namespace) -> bool:
    command = [sys.executable, "-m", "benchmarks", name, "--data", str(options.data)]
    try:
        command += ["--quick"] * options.quick
        return subprocess.run(command, cwd=ROOT, timeout=LIMIT, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        print(f"{name}: given up after {LIMIT} s", file=sys.stderr)
        return False


if __name__ == "__main__":
    sys.exit(main())
