"""`python -m benchmarks [NAME …]`: measure all, or those named, keep the results, and write docs/benchmarks.md."""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks import NAMES
from benchmarks.harness import Options, machine
from benchmarks.page import PAGE, ROOT, keep, page, table

LIMIT = 400
"""Seconds after which one benchmark of several is given up."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; default: all")
    parser.add_argument("--quick", action="store_true", help="see that they work: small, nothing is kept or written")
    parser.add_argument("--render", action="store_true", help="only write the page from the results that are kept")
    parser.add_argument(
        "--data",
        type=Path,
        default=Path(os.environ.get("RUNNER_TEST_DATA", ROOT.parent / "shared" / "data")),
        help="folder with the real data brainunet/ and openkbp/ (default: $RUNNER_TEST_DATA, ../shared/data); "
        "where there is none, the projects' phantoms",
    )
    options = parser.parse_args()
    if unknown := set(options.names) - set(NAMES):
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
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
