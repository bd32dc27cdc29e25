"""Measure the overhead around a step, on PyTorch and on Keras, with all contenders in one process."""

from __future__ import annotations

from importlib import import_module

from benchmarks.harness import Aim, Cell, Options, Result, Table, Times, Turns, number
from benchmarks.tiny import BATCH, FEATURES, LOG_EVERY

AIM = 10  # µs


def run(options: Options) -> Result:
    steps = 64 if options.quick else 960
    turns = Turns(2 if options.quick else 15)
    plain: dict[str, list[str]] = {}  # the plain loop → those that are compared with it
    for framework in ("torch", "keras"):
        try:
            module = import_module(f"benchmarks.loop_{framework}")
        except ImportError as error:
            turns.left_out[framework] = str(error)
            continue
        plain[module.PLAIN] = list(module.CONTENDERS)
        for name, make in module.CONTENDERS.items():
            turns.add(name, make, own_clock=True)
    times = turns.run(lambda turn: steps)
    tables, aims = [], []
    for reference, names in plain.items():
        there = {name: times[name] for name in names if name in times}
        tables.append(costs(there, reference, steps))
        for name, taken in there.items():
            if name.startswith("runner") and "steps_per_execution" not in name:
                above = taken.above(there[reference]) / steps * 1e6
                text = f"{name} at most {AIM} µs above the {reference}: {above:+.0f} µs"
                aims.append(Aim(text, above <= AIM))
    return Result(
        title="What a step costs besides the step",
        what=f"Everyone trains the same tiny network with the same optimizer on batches of {BATCH} × "
        f"{FEATURES} float32 and reads the loss every {LOG_EVERY} steps ({steps} steps a turn, PyTorch on one thread). "
        "What differs is what each puts around the step: gathering batches, logging, callbacks, checks.",
        tables=tables,
        aims=aims,
        remarks=[
            "Where runner comes out below the plain loops, it is because it leaves out what they pay without asking: "
            "in PyTorch the label that `optimizer.step` carries for the profiler (runner leaves it out while nobody "
            "profiles and no hook is registered), in TensorFlow the search, at each call, for the trace of a "
            "`tf.function` that fits its arguments (runner knows its batches' shapes and calls the trace)."
        ],
        left_out=turns.left_out,
        packages=("torch", "lightning", "accelerate", "pytorch-ignite", "monai", "keras", "tensorflow"),
    )


def costs(times: dict[str, Times], reference: str, steps: int) -> Table:
    rows: list[list[Cell]] = []
    for name, taken in sorted(times.items(), key=lambda item: item[1].median):
        low, high = (number(seconds / steps * 1e6) for seconds in taken.quartiles)
        above = taken.above(times[reference]) / steps * 1e6
        ratio = taken.median / times[reference].median
        rows.append([name, taken.median / steps * 1e6, f"{low} – {high}", f"{above:+.0f}", ratio])
    return Table(["", "µs a step (median)", "quartiles", f"above the {reference}", "time, it = 1"], rows)
