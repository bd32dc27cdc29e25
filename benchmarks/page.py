"""docs/benchmarks.md from the results that are kept."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from textwrap import fill
from typing import Any

from runner_core.base.text import counted

from benchmarks import NAMES
from benchmarks.harness import ROOT, Result, number, versions

RESULTS, PAGE = ROOT / "benchmarks" / "results", ROOT / "docs" / "benchmarks.md"
HEAD = """\
# Benchmarks

<!-- Written by `python -m benchmarks` from benchmarks/results: edit those who measure, not this page. -->

Every figure can be measured again: `uv run --group bench python -m benchmarks` measures all of this and writes this
page; `… python -m benchmarks loop cache` only what is named. Contenders take turns in one process, in an order that
changes; shown are medians and quartiles over the turns. Read the ratios rather than the milliseconds, and look at the
load: each section says on what machine it was measured, and how busy that was.
"""
NO_GPU = """\
## On a GPU

`python benchmarks/gpu.py` measures every installed project on a GPU: steps, memory, samples a second, and how near that
is to what the device can do. No GPU was at hand: nothing is claimed about GPU speed.
"""


def keep(
    name: str, result: Result, before: Mapping[str, Any], after: Mapping[str, Any], folder: Path = RESULTS
) -> None:
    """Write a result with the machine as it was `before` and `after`."""
    kept = asdict(result)
    kept["versions"] = versions(("runner-core", *kept.pop("packages")))
    kept["machine"] = dict(before) | {"load": [before["load"], after["load"]]}
    for table in kept["tables"]:
        table["rows"] = [[float(f"{c:.6g}") if isinstance(c, float) else c for c in row] for row in table["rows"]]
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def page(folder: Path = RESULTS) -> str:
    """The page, of the results that there are."""
    found = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}
    sections = [section(name, found[name]) for name in (*NAMES, "gpu") if name in found]
    return "\n".join([HEAD, *sections, *([] if "gpu" in found else [NO_GPU])])


def section(name: str, kept: Mapping[str, Any]) -> str:
    """One benchmark: what, tables, aims, remarks, and where it was measured."""
    command = "python benchmarks/gpu.py" if name == "gpu" else f"uv run --group bench python -m benchmarks {name}"
    parts = [f"## {kept['title']}", wrapped(kept["what"]), f"`{command}`"]
    parts += [table(each["columns"], each["rows"]) for each in kept["tables"]]
    parts += ["\n".join(f"- Aim: {aim['text']} – **{'met' if aim['met'] else 'NOT met'}**." for aim in kept["aims"])]
    parts += map(wrapped, kept["remarks"])
    if kept["left_out"]:
        parts.append(wrapped(f"Left out: {'; '.join(f'{who} ({why})' for who, why in kept['left_out'].items())}."))
    there, (before, after) = kept["machine"], kept["machine"]["load"]
    used = ", ".join(f"{package} {version}" for package, version in kept["versions"].items())
    measured = (
        f"*Measured on {there['date']}: {there['cpu']}, {counted(there['cores'], 'core')}, {there['ram_gb']} GB, "
        f"GPU: {there['gpu']}; load {before} before, {after} after; Python {there['python']}, {used}.*"
    )
    parts.append(wrapped(measured))
    return "\n\n".join(part for part in parts if part) + "\n"


def wrapped(text: str) -> str:
    return fill(text, 120, break_long_words=False, break_on_hyphens=False)


def table(columns: list[str], rows: list[list[Any]]) -> str:
    """Markdown; runner's own rows are bold."""
    lines = ["| " + " | ".join(columns) + " |", "|---" + "|---:" * (len(columns) - 1) + "|"]
    for row in rows:
        cells = [number(cell) for cell in row]
        bold = cells[0].startswith("runner")
        lines.append("| " + " | ".join(f"**{cell}**" if bold and cell else cell for cell in cells) + " |")
    return "\n".join(lines)
