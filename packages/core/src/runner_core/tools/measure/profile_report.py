"""Report a profile, for people and for programs: lines on the screen, profile.json, report.html."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from runner_core.base.files import size_text
from runner_core.base.text import aligned, duration
from runner_core.base.writing import replace_json, replace_text
from runner_core.contract import Remedy
from runner_core.contract.phases import (
    AUGMENT,
    BACKWARD,
    CHECKPOINT,
    FORWARD,
    LOGGING,
    LOSS,
    METRICS,
    MOVE,
    OPTIMIZER,
    OTHER,
    PICTURES,
    WAIT,
)
from runner_core.contract.records import Table
from runner_core.output.display import speed
from runner_core.output.report.charts import Bar, bar_chart
from runner_core.output.report.page import Block, Markup, Note, Page, html
from runner_core.output.report.page import lines as screen
from runner_core.output.report.sections import memory

FACTS, REPORT = "profile.json", "report.html"

_ABOUT = {
    WAIT: "until the next batch is there",
    MOVE: "the batch on its way to the device",
    AUGMENT: "on_device: decoding, scaling, augmentation there",
    FORWARD: "inside the network's layers",
    LOSS: "the rest of the project's step: the terms of the loss",
    BACKWARD: "gradients, of the loss and of the network",
    OPTIMIZER: "clipping, update, average of the weights",
    LOGGING: "reading the numbers, and the log's lines",
    METRICS: "validation, with its metrics",
    CHECKPOINT: "checkpoints",
    PICTURES: "pictures of samples",
    OTHER: "the loop around all that",
}
_KINDS = {WAIT: "b", MOVE: "b", METRICS: "e", LOGGING: "e", CHECKPOINT: "e", PICTURES: "e", OTHER: "c"}
"""Colours in the chart: data, work between steps, computation (a)."""
_LOSS_COLUMNS = ("ms by itself", "gradient norm", "timed")
_TERMS = (
    "Each is timed by itself. A step counts their gradients as backward, and terms share work in it: so they may add "
    "up to more than loss, and loss may take longer than its part above."
)
_OVER = 5.0
"""Seconds over the given time that are not reported."""


def write(facts: Mapping[str, Any], remedies: Sequence[Remedy], folder: Path) -> None:
    """Write profile.json and report.html into `folder`."""
    replace_json(folder / FACTS, {**facts, "fixes": [remedy_json(remedy) for remedy in remedies]})
    replace_text(folder / REPORT, render(facts, remedies))


def lines(facts: Mapping[str, Any], remedies: Sequence[Remedy], folder: Path) -> Iterator[str]:
    """Yield the lines for the screen."""
    yield ""
    yield from screen([_parts_table(facts)])
    yield f"  {_speed(facts)}"
    yield f"  {_watching(facts)}"
    if facts["losses"]:
        yield ""
        yield from aligned([("term of the loss", *_LOSS_COLUMNS), *_losses(facts)])
        yield f"  {_TERMS}"
    yield ""
    yield from (f"{what}: {note}" for what, note in _machine(facts))
    yield f"bound by {facts['bound']}: {facts['reason']}"
    if remedies:
        yield "what might help (`tune` tries what changes the steps):"
        yield from aligned([*map(_cells, remedies)])
    if facts["took"] > facts["asked"] + _OVER:
        yield (
            f"this took {duration(facts['took'])}: --minutes is for the steps; to compile them, and to time the loss, "
            "the loader and what happens between steps, came on top"
        )
    yield f"report: {folder / REPORT}"
    if (trace := folder / "trace").exists():
        yield f"trace: {trace}"


def render(facts: Mapping[str, Any], remedies: Sequence[Remedy]) -> str:
    """Return the page as HTML text."""
    device = facts["device"]
    where = (
        f"preset {facts['preset']} · data: {facts['data']} · {facts['engine']} on {device['name'] or device['kind']}"
    )
    title = f"{facts['project']}: profile"
    time = [
        chart(facts),
        Note(f"{_speed(facts)}; {_watching(facts)}."),
        Note(f"{facts['reason']}.", "warning", f"Bound by {facts['bound']}:"),
    ]
    advice = [Table("fixes", "", ("remedy", "settings", "may save", "why"), [*map(_cells, remedies)])]
    return html(
        Page(
            title,
            title,
            [Note(where)],
            [
                ("Where a step's time goes", time),
                ("Parts", [_parts_table(facts)]),
                ("Terms of the loss", [*_losses_table(facts)]),
                ("What might help", advice if remedies else []),
                ("The machine", [Table("machine", "", ("", ""), [*_machine(facts)])]),
                ("Memory", [*memory(facts["memory_plan"] or {}, facts["memory"])]),
                ("How it was measured", [Note(_how(facts))]),
            ],
        )
    )


def chart(facts: Mapping[str, Any]) -> Block:
    """Return a bar chart of the parts of a step."""
    bars = [
        Bar(name, value, 0.0, math.inf, _KINDS.get(name, "a"), f"{_milliseconds(value)} ms, {share:.1%}", _ABOUT[name])
        for name, value, share in _parts(facts)
    ]
    return Markup(bar_chart("parts of a step", bars, ratios=False))


def _parts_table(facts: Mapping[str, Any]) -> Table:
    rows = [(name, _milliseconds(value), f"{share:.1%}", _ABOUT[name]) for name, value, share in _parts(facts)]
    return Table("parts", "", ("part", "ms a step", "share", ""), rows)


def _parts(facts: Mapping[str, Any]) -> Iterator[tuple[str, float, float]]:
    """Return name, seconds per step and share of the parts that take any time."""
    whole = sum(facts["parts"].values())
    return ((name, value, value / whole) for name, value in facts["parts"].items() if value > 0)


def _losses(facts: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    found = []
    for name, cost in facts["losses"].items():
        norm = "–" if cost["gradient"] is None else f"{cost['gradient']:.3g}"
        how = "the term and its gradient" if cost["forward"] else "its gradient alone"
        found.append((name, _milliseconds(cost["seconds"]), norm, how))
    return found


def _losses_table(facts: Mapping[str, Any]) -> Iterator[Block]:
    if facts["losses"]:
        yield Table("losses", "", ("term", *_LOSS_COLUMNS), _losses(facts))
        yield Note(
            "gradient norm: of the term's gradient at the network's output. loss is all terms together, as they are "
            f"weighted. {_TERMS}"
        )


def _machine(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    cpu, gpu, taken = facts["use"]["cpu"], facts["use"]["gpu"], facts["memory"]
    others = ""
    if cpu["others"] >= 0.2:
        others = f"; other processes kept {cpu['others']:.1f} busy: times are longer than they would be alone"
    yield "processor", f"{cpu['cores']:.1f} of {cpu['usable']} cores busy{others}"
    if gpu is not None:
        power = f"; {gpu['watts']:.0f} W" if gpu.get("watts") is not None else ""
        heat = f"; {gpu['celsius']:.0f} °C" if gpu.get("celsius") is not None else ""
        yield (
            "GPU",
            (
                f"busy {gpu['busy']:.0%} of the time, its memory {gpu['memory_busy']:.0%}; "
                f"{size_text(gpu['memory_bytes'])} taken, by all processes{power}{heat}"
            ),
        )
    device = f", {size_text(taken['device'])} of the device" if taken["device"] else ""
    yield "memory", f"{size_text(taken['host'])} of the host at most{device}"
    yield "loader alone", f"{speed(facts['loader'])} samples/s"
    yield "first step", f"{facts['first_step']:.3g} s, with all that is made or compiled once"
    if work := facts["work"]:
        yield (
            "work of a step",
            (
                f"{work['operations']:,} operations, {work['flops'] / 1e9:,.4g} GFLOP, {size_text(work['bytes'])} of "
                "memory read or written"
            ),
        )
    rates, least = facts["limits"], facts["limits"]["operation"] * 1e6
    products = ", ".join(f"{rate / 1e9:,.4g} GFLOP/s in {name}" for name, rate in rates["flops"].items())
    yield (
        "this machine reaches",
        (
            f"{products} (matrix products), {rates['bytes'] / 1e9:,.4g} GB/s (copies), {least:.3g} µs "
            "for the smallest operation"
        ),
    )


def _cells(remedy: Remedy) -> tuple[str, str, str, str]:
    settings = " ".join(f"--{name.replace('_', '-')} {_typed(value)}" for name, value in remedy.settings.items())
    why = remedy.why if remedy.same else f"{remedy.why} (steps learn something else)"
    return remedy.name, settings, "?" if remedy.saves is None else f"{remedy.saves:.0%}", why


def remedy_json(remedy: Remedy) -> dict[str, Any]:
    """Return what is written of a remedy that a profile suggests."""
    return {name: value for name, value in asdict(remedy).items() if name not in ("off", "part")}


def _typed(value: Any) -> str:
    return json.dumps(value) if isinstance(value, (list, dict)) else str(value)


def _speed(facts: Mapping[str, Any]) -> str:
    text = f"{_milliseconds(facts['step'])} ms a training step of {facts['samples']:g} samples: "
    text += f"{speed(facts['samples_per_second'])} samples/s"
    if facts["seconds"] > 1.005 * facts["step"]:
        text += f"; {_milliseconds(facts['seconds'])} ms with what happens between steps"
    return text


def _watching(facts: Mapping[str, Any]) -> str:
    return (
        f"the parts add up to that: their shares are of steps that were taken apart, which took "
        f"{facts['watching']:.2f} times as long as plain ones"
    )


def _how(facts: Mapping[str, Any]) -> str:
    return (
        f"{facts['steps']} training steps from step {facts['at_step']} on, plain ones and ones taken apart by turns. "
        f"The parts of the latter come to {facts['covered']:.1%} of their time, and they took {facts['watching']:.2f} "
        "times as long as plain ones: what is shown are their shares of a plain step's time. What happens between "
        "steps was measured alone and is spread over the steps."
    )


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:,.3f}" if seconds < 0.1 else f"{1000 * seconds:,.1f}"
