"""Every installed project on this machine's GPU: steps, memory, samples a second, and how near that is to the limit.

    python benchmarks/gpu.py [--out DIR] [--seconds 510] [--steps 5] [--data DIR] [--device cuda|pretend] [PROJECT …]

Runs from a source checkout too, where nothing is installed but the frameworks. Each case is a process of its own with a
slice of the time; what cannot run, or found no time, is listed with the reason. What was measured is kept in
DIR/gpu-cases.jsonl: after a kill, or where time ran out, the same line goes on. Writes DIR/gpu.json and DIR/gpu.md;
from benchmarks/results (the default) `python -m benchmarks --render` takes it into docs/benchmarks.md. Where a GPU's
time is short, `--prepare --data DIR` first writes the records and caches them, without using the GPU.

A project comes in by being there: its preset `default` on its phantom, in the variants below. Cases of its own are in
benchmarks/gpu_PROJECT.py: `CASES`, a list of `Case`, importable without a framework; and `DATA`, which writes the
records for the variants where the phantom does not suit the preset.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_SOURCES = [str(ROOT), *map(str, sorted(ROOT.glob("packages/*/src")))]
sys.path[:] = [*_SOURCES, *(path for path in sys.path if path != str(ROOT / "benchmarks"))]

from runner_core.base.writing import replace_text  # noqa: E402
from runner_core.training.data import open_data  # noqa: E402

from benchmarks.gpucase import COPY, Case, find_projects, limits, measure, setup_of  # noqa: E402
from benchmarks.harness import Cell, Result, Table, machine, number, versions  # noqa: E402
from benchmarks.page import RESULTS, keep, section  # noqa: E402

VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "torch": {
        "preset": {},
        "compile": {"train.compile": "on"},
        "channels_last": {"train.channels_last": "on"},
        "float32": {"precision.mode": "float32"},
        "tf32": {"precision.mode": "tf32"},
        "compile, channels_last": {"train.compile": "on", "train.channels_last": "on"},
    },
    "keras": {
        "preset": {},
        "float32": {"precision.mode": "float32"},
        "steps_per_execution 8": {"train.steps_per_execution": 8},
        "without XLA": {"train.compile": "off"},
    },
}
QUICK = ("preset", "float32")
LEAST = 120.0
"""Seconds that a case may always take, however many wait (compiling takes a while), as long as there are any."""
MOST_NAMED = 7
"""Cases without time that the page names; more are counted."""
LIMITS, PRETEND = "limits", "pretend"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("projects", nargs="*", help="default: all")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--seconds", type=float, default=510, help="for everything")
    parser.add_argument("--steps", type=float, default=5, metavar="SECONDS", help="for a case's steps, at most")
    parser.add_argument("--data", type=Path, metavar="DIR", help="records and caches are kept there, else nowhere")
    parser.add_argument("--prepare", action="store_true", help="only write --data")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="preset demo, few variants and steps: does it work?")
    parser.add_argument("--case", nargs=2, metavar=("PROJECT", "NAME"), help=argparse.SUPPRESS)  # the process of a case
    parser.add_argument("--scratch", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        return run_case(options)
    if options.prepare:
        return prepare(options)
    before, end = machine(), time.monotonic() + options.seconds
    cases, left_out = list_cases(options.projects, options.quick)
    options.out.mkdir(parents=True, exist_ok=True)
    kept = Kept(options.out / "gpu-cases.jsonl", [_of(before), options.device, options.quick])
    found: dict[Case, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        options.scratch = Path(scratch)
        options.data = options.data or options.scratch / "data"
        limit = kept(Case(LIMITS, LIMITS), lambda case: in_a_process(case, options, min(LEAST, options.seconds)))
        for place, case in enumerate(cases):
            remaining = end - time.monotonic()
            slice_ = min(remaining, max(LEAST, remaining / (len(cases) - place)))
            now = partial(in_a_process, options=options, seconds=slice_) if remaining > 10 else _too_late
            found[case] = kept(case, now)
            print(f"{case.project}, {case.name}: {found[case].get('fault', 'done')}", flush=True)
    result = told(found, limit, left_out)
    if not any(values.get("late") for values in found.values()):
        kept.remove()
    keep("gpu", result, before, machine(), options.out)
    text = section("gpu", json.loads((options.out / "gpu.json").read_text(encoding="utf-8")))
    (options.out / "gpu.md").write_text(text, encoding="utf-8")
    print(text)
    return 0 if any("fault" not in values for values in found.values()) else 1


# ---------------------------------------------------------------- what is kept


LATE = {"fault": "no time was left", "late": True}


def _of(machine: dict[str, Any]) -> list[Any]:
    """Return what must be the same when a measurement goes on: hardware, frameworks, and this program's commit."""
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    commit = ""
    with contextlib.suppress(OSError):
        commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    return [machine["cpu"], machine["gpu"], versions(["torch", "tensorflow"]), commit]


def _too_late(case: Case) -> dict[str, Any]:
    return LATE


class Kept:
    """Measured cases, a line for each, on one machine and in one way: others' lines are dropped."""

    def __init__(self, file: Path, way: list[Any]) -> None:
        self.file, self.way = file, json.loads(json.dumps(way))
        self.lines: list[dict[str, Any]] = []
        with contextlib.suppress(FileNotFoundError):
            for line in file.read_text(encoding="utf-8").splitlines():
                with contextlib.suppress(ValueError):  # a kill may have cut the last one
                    self.lines.append(json.loads(line))
        self.lines = [line for line in self.lines if isinstance(line, dict) and line.get("way") == self.way]

    def __call__(self, case: Case, measured: Callable[[Case], dict[str, Any]]) -> dict[str, Any]:
        """Return what was measured of a case, now or before."""
        of = [case.project, case.name]
        for line in self.lines:
            if line["case"] == of:
                return dict(line["values"])
        values = measured(case)
        if "fault" not in values:  # what failed, for lack of time perhaps, is tried again
            self.lines.append({"way": self.way, "case": of, "values": values})
            replace_text(self.file, "".join(f"{json.dumps(line)}\n" for line in self.lines))
        return values

    def remove(self) -> None:
        """Forget all: the next start measures again."""
        self.file.unlink(missing_ok=True)


# ---------------------------------------------------------------- cases


def list_cases(chosen: Sequence[str], quick: bool) -> tuple[list[Case], dict[str, str]]:
    """Every project's first case before any project's second; and who cannot run here, with the reason."""
    columns: list[list[Case]] = []
    left_out: dict[str, str] = {}
    for name, plugin in find_projects().items():
        if chosen and name not in chosen:
            continue
        try:
            framework = plugin.entry.load().runner_project().framework
            for module in {"torch": ["torch"], "keras": ["keras", "tensorflow"]}[framework]:
                if importlib.util.find_spec(module) is None:
                    raise ImportError(f"{module} is not installed")
        except ImportError as error:
            left_out[name] = str(error)
            continue
        variants = [(variant, way) for variant, way in VARIANTS[framework].items() if not quick or variant in QUICK]
        module = own_module(name)
        data = None if quick else getattr(module, "DATA", None)
        cases = [Case(name, variant, settings, data=data) for variant, settings in variants]
        own = [case for case in getattr(module, "CASES", ()) if case.measure is not None or not quick]
        between = zip_longest(own, cases[1:])
        columns.append(cases[:1] + [case for pair in between for case in pair if case is not None])
    longest = max(map(len, columns), default=0)
    return [column[i] for i in range(longest) for column in columns if i < len(column)], left_out


def own_module(project: str) -> ModuleType | None:
    """benchmarks/gpu_PROJECT.py, if it is there."""
    name = f"benchmarks.gpu_{project}"
    return importlib.import_module(name) if importlib.util.find_spec(name) else None


# ---------------------------------------------------------------- a case in its process


def in_a_process(case: Case, options: argparse.Namespace, seconds: float) -> dict[str, Any]:
    """Return what the case measured, or {"fault": the reason why it did not}, with "late" if time ran out."""
    out = options.scratch / "case.json"
    out.unlink(missing_ok=True)
    command = [sys.executable, __file__, "--case", case.project, case.name, "--scratch", str(options.scratch)]
    command += ["--data", str(options.data), "--steps", str(options.steps), *["--quick"] * options.quick]
    command += ["--device", options.device, "--seconds", str(seconds)]
    with (options.scratch / "case.err").open("w+", encoding="utf-8") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said, start_new_session=True)
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            return {"fault": f"did not end within {seconds:.0f} s", "late": True}
        finally:
            with contextlib.suppress(ProcessLookupError):  # those that compile outlive the one that asked them
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        said.seek(0)
        lines = said.read().strip().splitlines() or [f"ended with code {code}"]
    errors = [line for line in lines if re.match(r"\S*(Error|Exception|Unsupported)\b", line)]
    last = (errors or lines)[-1]
    return json.loads(out.read_text(encoding="utf-8")) if out.exists() else {"fault": last[:300]}


def run_case(options: argparse.Namespace) -> int:
    project, name = options.case
    if options.device == PRETEND:  # a rehearsal: the accelerator of the core's tests
        sys.path.insert(0, str(ROOT / "packages" / "core" / "tests" / "pretend"))
        importlib.import_module("pretend").start()
    if project == LIMITS:
        values = limits(options.device, options.quick)
    else:
        case = next(c for c in list_cases([project], options.quick)[0] if c.name == name)
        steps_for = 0.5 if options.quick else min(options.steps, options.seconds / 8)
        with contextlib.redirect_stdout(sys.stderr):
            values = measure(case, options.device, options.data, steps_for, options.quick)
    (options.scratch / "case.json").write_text(json.dumps(values), encoding="utf-8")
    return 0


def prepare(options: argparse.Namespace) -> int:
    """Write the records of all cases, and the caches of their presets, into `options.data`; return an exit code."""
    if options.data is None:
        sys.exit("--prepare needs --data DIR")
    seen = set[tuple[str, str, Any]]()
    for case in list_cases(options.projects, options.quick)[0]:
        if case.measure is None and (of := (case.project, case.preset, case.data)) not in seen:
            seen.add(of)
            open_data(setup_of(case, "cpu", options.data, options.quick), lambda text: None)
            print(f"{case.project}: written", flush=True)
    return 0


# ---------------------------------------------------------------- the tables


def told(found: dict[Case, dict[str, Any]], limit: dict[str, Any], left_out: dict[str, str]) -> Result:
    """The result of all cases. Operations are counted where nothing is compiled; a compiled variant of the same samples
    has those of the preset."""
    steps, paths, others = [], [], []
    for case, values in found.items():
        if "fault" in values:
            left_out[f"{case.project}, {case.name}"] = values["fault"]
            continue
        who = f"{case.project}, {case.name}"
        if "table" in values:  # a case that measures something else than steps
            others += [[f"{who}: {key}", value] for key, value in values["table"].items()]
            continue
        steps.append([who, *step_row(case, values, found, limit)])
        paths.append([who, *(values.get(key) for key in ("loader", "to_device", "with_loader", "first_step"))])
    heads = ["", "precision", "batch", "step, ms (median)", "quartiles", "samples a second",
             "peak memory, GB", "reserved, GB", "share of compute", "share of bandwidth"]  # fmt: skip
    late = [case for case, reason in left_out.items() if reason == LATE["fault"]]
    if len(late) > MOST_NAMED:
        left_out = {case: reason for case, reason in left_out.items() if case not in late}
        left_out[f"{len(late)} further cases"] = str(LATE["fault"])
    tables = [
        Table(heads, steps),
        Table(["samples a second", "loader alone", "loader to device", "loader and steps", "first step, s"], paths),
        Table(["measured by itself", "value"], others),
        Table(["measured limit of this device", "value"], [[key, value] for key, value in limit.items()]),
    ]
    return Result(
        title="On a GPU",
        what="Every installed project's preset on its phantom through its engine's own trainer: a step on a batch that "
        "stays the same (its copy to the device included), then the loader alone, with the copy, and with the steps.",
        tables=[table for table in tables if table.rows],
        remarks=[
            "Share of compute: the step's floating-point operations (torch's FlopCounterMode) against what a large "
            "matrix product of the step's precision reaches on this device. Share of bandwidth: the bytes that the "
            "step's operations read and write, each counted by itself, against a large copy; a compiled step fuses "
            "operations and moves less, so that its share is an upper bound. What Triton kernels of a project do, and "
            "everything with Keras, is not counted."
        ],
        left_out=left_out,
        packages=("torch", "keras", "tensorflow", "numpy"),
    )


def step_row(
    case: Case, values: dict[str, Any], found: dict[Case, dict[str, Any]], limit: dict[str, Any]
) -> list[Cell]:
    counted = values
    if values.get("flops") is None:
        same = (v for c, v in found.items() if c.project == case.project and v.get("flops"))
        counted = next((v for v in same if v["samples"] == values["samples"]), values)
    step, (low, high) = values["step"], values["quartiles"]
    peak, copy = limit.get(f"{values['precision']} matrix product, TFLOP/s"), limit.get(COPY)
    flops, moved = counted.get("flops"), counted.get("bytes")
    return [
        values["precision"],
        values["batch"],
        step * 1e3,
        f"{number(low * 1e3)} – {number(high * 1e3)}",
        values["batch"] / step,
        *(values.get(key) and values[key] / 1e9 for key in ("allocated", "reserved")),
        f"{flops / step / peak / 1e10:.0f} %" if flops and peak else None,
        f"{moved / step / copy / 1e7:.0f} %" if moved and copy else None,
    ]


if __name__ == "__main__":
    sys.exit(main())
