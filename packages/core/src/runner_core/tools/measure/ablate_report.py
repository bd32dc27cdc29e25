"""Report an ablation, for people and for programs: a table, CSV, JSON, and a page with a chart."""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from runner_core.base.files import size_text
from runner_core.base.text import duration
from runner_core.contract import Json
from runner_core.contract.records import Table
from runner_core.contract.setup import Setup
from runner_core.output.display import speed
from runner_core.output.report.charts import Bar, bar_chart
from runner_core.output.report.page import Block, Markup, Note, Page, html
from runner_core.tools.measure.ablate import QUANTITIES, Ablated, spoken
from runner_core.tools.measure.outcome import Result
from runner_core.tools.measure.paired import DATA, LOSS, NETWORK, STEP
from runner_core.tools.measure.times import LEAST, Comparison, Times, spread
from runner_core.tools.measure.trial import Doubt

COLUMNS = ("without", "rounds", "a step", "data, samples/s", "network", "loss", "an epoch", "peak memory", "losses")
SIGNS = (
    f"× says how many times as long it takes without, ≈ that it is within the noise, ~ that it comes from fewer than "
    f"{LEAST} rounds: too few to know how sure it is."
)
HOW = (
    "with → without: each row has its own rounds, in which both took turns; what is within them is compared, so the "
    "time with all differs from row to row. A step has everything: loader, network, loss, update. Data is the "
    "loader alone, network a step of one batch that is there already, loss the loss alone with its gradient at the "
    "network's output."
)
_UNITS = {STEP: "seconds of a step", DATA: "seconds of a sample", NETWORK: "seconds of a step", LOSS: "seconds"}


def head(setup: Setup, found: Ablated) -> dict[str, Json]:
    """Return what was measured and where, which gives the ratios their meaning."""
    from runner_core.engines.device import cpu_name
    from runner_core.engines.usage import usable_cores

    ready = found.ready
    return {
        "project": setup.name,
        "preset": setup.preset,
        "data": "phantom" if setup.source is None else str(setup.source),
        **{name: value for name, value in asdict(ready).items() if name in _OF_READY},
        "machine": {"cpu": cpu_name(), "cores": usable_cores(), "load": round(os.getloadavg()[0], 1)},
    }


_OF_READY = (
    *("engine", "kind", "device", "precision", "cache", "batch", "sample", "samples_per_epoch", "steps_per_epoch"),
    *("parameters", "first_step_seconds"),
)


def headline(facts: Mapping[str, Any]) -> str:
    """Return the head as one line."""
    shapes = ", ".join(f"{name} {shape}" for name, shape in (facts.get("sample") or {}).items())
    device = facts["device"] if facts["kind"] != "cpu" else f"{facts['machine']['cores']} cores"
    return (
        f"{facts['project']}, preset {facts['preset']}, data {facts['data']}: batches of {facts['batch']}"
        f"{f' ({shapes})' if shapes else ''}, {facts['samples_per_epoch']:,} samples an epoch, {facts['precision']}, "
        f"cache {facts['cache']}, {facts['engine']} on {device}"
    )


# ---------------------------------------------------------------- the table


def rows(found: Ablated) -> Iterator[tuple[str, ...]]:
    """Yield the cells of each row, in the order of `COLUMNS`; the first row has all optimisations on."""
    yield (
        "(nothing)",
        str(len(found.times[STEP])),
        *(_all_on(quantity, found.times.get(quantity)) for quantity in QUANTITIES),
        f"{_unsure(found.times[STEP])}{_long(found.seconds_per_epoch)}",
        _memory(found.host_bytes, found.device_bytes),
        "",
    )
    for row in found.rows:
        if row.failed:
            yield row.name, "", "failed", *[""] * (len(COLUMNS) - 3)
            continue
        yield (
            row.name + (" *" if row.apart else ""),
            str(row.times[STEP].longer.rounds),
            *(_with_ratio(quantity, row.times.get(quantity)) for quantity in QUANTITIES),
            _epoch(row),
            _memory_ratio(found, row),
            _losses(row),
        )


def footnotes(found: Ablated) -> Iterator[str]:
    yield f"{SIGNS} {HOW}"
    if found.left_out:
        enough = math.ceil((found.seconds + len(found.left_out) * found.least) / 60)
        yield (
            f"Not measured: {', '.join(found.left_out)}. Each takes {_long(found.least)} at least, most of it "
            f"to start "
            f"and to compile: about --minutes {enough} would do for all."
        )
    if found.doubt:
        said = "WRONG GRADIENTS, whatever the losses say" if found.doubt.kind == "wrong" else "UNCHECKED GRADIENTS"
        yield f"{said}: {found.doubt.text}"
    if any(row.apart for row in found.rows):
        yield "* Measured by itself, since there was no room for both: its times are of other minutes."
    for row in found.rows:
        if row.failed:
            yield f"{spoken(row.name)}: {row.reason}"
        if (losses := row.agreement) and not losses.agrees:
            before, after = losses.evaluated or (math.nan, math.nan)
            yield (
                f"{row.name} should learn the same and does not: mean loss of {losses.steps} steps "
                f"{losses.before:.6g} with, {losses.after:.6g} without; evaluated {before:.6g} and "
                f"{after:.6g}."
            )


def _amount(quantity: str, seconds: float | None) -> str:
    if seconds is None:
        return "–"
    return speed(1 / seconds) if quantity == DATA else _short(seconds)


def _all_on(quantity: str, values: Sequence[float] | None) -> str:
    return "–" if values is None else f"{_unsure(values)}{_amount(quantity, spread(values).median)}"


def _unsure(values: Sequence[float]) -> str:
    """Return ~ for values from too few rounds, else ""."""
    return "~" if len(values) < LEAST else ""


def _with_ratio(quantity: str, times: Times | None) -> str:
    if times is None:
        return "–"
    return f"{from_to(*(_amount(quantity, seconds) for seconds in times.usual))} {_ratio(times.longer)}"


def _epoch(row: Result) -> str:
    return f"{from_to(*map(_long, row.epoch.usual))} {_ratio(row.epoch.longer)}"


def from_to(one: str, other: str) -> str:
    """Return "one → other", with the unit once if both share it.

    >>> from_to("126 ms", "160 ms"), from_to("126 ms", "1.6 s"), from_to("18,662", "12")
    ('126 → 160 ms', '126 ms → 1.6 s', '18,662 → 12')
    """
    number, _, unit = one.partition(" ")
    return f"{number if unit == other.partition(' ')[2] else one} → {other}"


def _ratio(found: Comparison) -> str:
    return _times(found.ratio, sign(found.low, found.high, found.rounds))


def sign(low: float, high: float, rounds: int) -> str:
    """Return the sign before a ratio with this interval; see `SIGNS`.

    >>> sign(1.1, 1.3, 6), sign(0.9, 1.1, 6), sign(0.0, math.inf, 1)
    ('×', '≈', '~')
    """
    if rounds < LEAST:
        return "~"
    return "≈" if low <= 1 <= high else "×"


def _times(ratio: float, sign: str = "×") -> str:
    return f"{sign}{ratio:,.0f}" if ratio >= 99.5 else f"{sign}{ratio:.3g}"


def _short(seconds: float) -> str:
    """Return seconds as short text.

    >>> _short(0.0001234), _short(0.01234), _short(1.234), _short(123.4)
    ('0.123 ms', '12.3 ms', '1.23 s', '123 s')
    """
    return f"{seconds * 1e3:.3g} ms" if seconds < 0.9995 else f"{seconds:.3g} s"


def _long(seconds: float) -> str:
    return duration(seconds) if seconds >= 60 else _short(seconds)


def _memory(host: int, device: int) -> str:
    return size_text(host) + (f", GPU {size_text(device)}" if device else "")


def _memory_ratio(found: Ablated, row: Result) -> str:
    """Return the memory and its ratio, for the device's memory if it has its own."""
    was, now = (found.device_bytes, row.device_bytes) if found.device_bytes else (found.host_bytes, row.host_bytes)
    return f"{_memory(row.host_bytes, row.device_bytes)} {_times(now / was)}"


def _losses(row: Result) -> str:
    if row.agreement is None:
        return "others"
    return agreement(row.agreement.agrees, row.agreement.difference)


def agreement(agree: bool, difference: float) -> str:
    """Return the agreement of losses as text.

    >>> agreement(True, 0.0), agreement(True, 0.0004), agreement(False, 0.2), agreement(False, math.inf)
    ('equal', 'agree (0.04% apart)', 'DIFFER (20% apart)', 'DIFFER (not finite)')
    """
    if agree and difference == 0:
        return "equal"
    if not math.isfinite(difference):
        return "DIFFER (not finite)"
    share = f"{100 * difference:.1g}%" if difference < 0.095 else f"{difference:.0%}"
    return f"{'agree' if agree else 'DIFFER'} ({share} apart)"


# ---------------------------------------------------------------- for programs


def as_json(facts: Mapping[str, Json], found: Ablated) -> dict[str, Json]:
    everything = {quantity: _spread(values) for quantity, values in found.times.items()}
    on = {**everything, **_memory_and_epoch(found, found.seconds_per_epoch)}
    rows: list[Json] = [_row_json(row) for row in found.rows]
    left_out: list[Json] = [*found.left_out]
    own = {"units": _UNITS, **_doubts(found.doubt), "with_all": on}
    return {**facts, **own, "without": rows, "left_out": left_out}


def _doubts(doubt: Doubt | None) -> dict[str, Json]:
    return {
        f"{kind}_gradients": doubt.text if doubt and doubt.kind == kind else None for kind in ("wrong", "unchecked")
    }


def _row_json(row: Result) -> dict[str, Json]:
    case, losses = row.case, row.agreement
    facts: dict[str, Json] = {
        **{
            "name": case.name,
            "off": dict(case.settings),
            "parts": list(case.parts),
            "about": case.why,
            "same": case.same,
        },
        **{"failed": row.reason or None, "alone": row.apart},
    }
    if row.failed:
        return facts
    facts |= {quantity: _times_json(times) for quantity, times in row.times.items()}
    facts["losses"] = losses and {
        **{"steps": losses.steps, "trained": [losses.before, losses.after], "evaluated": losses.evaluated},
        **{"agree": losses.agrees, "difference": losses.difference},
    }
    epoch = row.epoch
    return facts | _memory_and_epoch(row, epoch.usual[1]) | {"epoch_ratio": epoch.longer.ratio}


def _memory_and_epoch(of: Ablated | Result, seconds: float) -> dict[str, Json]:
    return {"seconds_per_epoch": seconds, "peak_memory_bytes": {"host": of.host_bytes, "device": of.device_bytes}}


def _times_json(times: Times) -> dict[str, Json]:
    found = times.longer
    interval: dict[str, Json] = {"low": found.low or None, "high": found.high, "rounds": found.rounds}
    return {"with": _spread(times.base), "without": _spread(times.rival), "ratio": found.ratio, **interval}


def _over(on: int, off: int) -> float | None:
    return off / on if on else None


def _spread(values: Sequence[float]) -> dict[str, Json]:
    return asdict(spread(values))


def as_csv(found: Ablated) -> str:
    """Return a line per row and quantity: medians with and without, the ratio and its limits."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["without", "quantity", "unit", "median with", "median without", "ratio", "low", "high", "rounds"])
    for row in found.rows:
        for quantity, times in row.times.items():
            on, off, c = spread(times.base).median, spread(times.rival).median, times.longer
            limits = [c.low or None, c.high if math.isfinite(c.high) else None, c.rounds]
            writer.writerow([row.name, quantity, _UNITS[quantity], on, off, c.ratio, *limits])
        if not row.failed:
            host, device = (found.host_bytes, row.host_bytes), (found.device_bytes, row.device_bytes)
            rest = [
                ("epoch", "seconds", *row.epoch.usual, row.epoch.longer.ratio),
                ("host memory", "bytes, at most", *host, _over(*host)),
                ("device memory", "bytes, at most", *device, _over(*device)),
            ]
            for cells in rest:
                writer.writerow([row.name, *cells, None, None, None])
    return text.getvalue()


# ---------------------------------------------------------------- the page


def as_page(facts: Mapping[str, Any], found: Ablated) -> str:
    name = f"{facts['project']} · ablation"
    charts = [Markup(bar_chart(title, list(_bars(found, quantity)))) for quantity, title in _CHARTS.items()]
    return html(
        Page(
            name,
            name,
            [Note(headline(facts))],
            [
                ("What each is worth", [*charts, Note(SIGNS)]),
                ("Measured", [*measured(found)]),
                ("What is switched off", [*_switched_off(found)]),
            ],
        )
    )


def measured(found: Ablated) -> Iterator[Block]:
    """Yield the table and its notes, for the page and the screen."""
    yield Table("ablation", "With all, and without each", COLUMNS, [*rows(found)])
    yield from map(Note, footnotes(found))


def _switched_off(found: Ablated) -> Iterator[Block]:
    for row in found.rows:
        text = f"{row.case.why} {_settings(row.case.settings)}"
        yield Note(text, "", f"{row.name} ({', '.join(row.case.parts)}):")


_CHARTS = {
    STEP: "A step: times as long without",
    DATA: "Data alone: times as long without",
    NETWORK: "Network alone: times as long without",
    LOSS: "Loss alone: times as long without",
}


def _bars(found: Ablated, quantity: str) -> Iterator[Bar]:
    for row in found.rows:
        if (times := row.times.get(quantity)) is not None:
            c = times.longer
            yield Bar(row.name, c.ratio, c.low, c.high, "a" if row.case.same else "b", _ratio(c))


def _settings(off: Mapping[str, Json]) -> str:
    return " ".join(f"{name}={'null' if value is None else value}" for name, value in off.items())
