"""Measure each optimisation of each project with `runner PROJECT ablate` on public data, and write the page of results.

    python benchmarks/ablations.py [NAME …] [--minutes 10] [--render]

runs it for all, or for those named, keeps what it found in benchmarks/results/ablations, and writes docs/ablations.md.
Where the real data are not at hand (--data), and for projects of which there are none, it takes the phantom. ssmunet's
spectral layers are measured at 512 pixels besides, by themselves; dinocell's images come out of an S3 server on this
machine that takes 100 ms to answer.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.append(str(Path(__file__).resolve().parents[1]))  # it is no package that one installs

from runner_core.base.text import counted
from runner_core.tools.measure.ablate_report import agreement, from_to, sign

from benchmarks.bucket import BUCKET, LATENCY, served
from benchmarks.harness import ROOT, Aim, Options, command_line, machine, number, taken
from benchmarks.page import table, wrapped

if TYPE_CHECKING:
    from s3server import S3

RESULTS, PAGE = ROOT / "benchmarks" / "results" / "ablations", ROOT / "docs" / "ablations.md"
PIXELS, LENGTH, FILTERS = 512, 425, 24
SIDE, PLATES, FIELDS = 1080, 4, 8
KEPT_GB = 0.22
"""Room for 18 fields of 11.7 MB, fewer than the 24 that train, so that all are fetched anew in each epoch."""
HEAD = """\
# What each optimisation is worth

<!-- Written by `python benchmarks/ablations.py` from benchmarks/results/ablations: edit that, not this page. -->

`runner PROJECT ablate` switches each optimisation off in turn, then all, and measures a training without it against one
with it: the same samples in the same order, both alive at once and taking turns. *All off* is what the users began
with, as far as settings reach. Data path, network and loss are measured apart too: a data path that is a thousand
times as fast makes a step no faster whose network is the limit.

× says how many times as long something takes without, ≈ that it is within the noise, ~ that it comes from fewer than
6 rounds: too few to know how sure it is. Each row has its own rounds, in which both took turns, so the time with all
differs from row to row. *Data*: the loader alone. *Network*: a step of one batch that is there already. *Loss*: the
loss alone with its gradient at the network's output. *Losses*: do both learn the same (the larger relative difference:
of the mean training loss, or of an evaluated batch)? *Others*: without it something else is learned, and nothing is
claimed. The ways that users had come from, other libraries' and their own, are measured in
[Benchmarks](benchmarks.md).

`uv run --group bench python benchmarks/ablations.py` measures all of this again; on your own data, `runner PROJECT
ablate --data PATH` does.
"""
NOTHING = "\nNothing has been measured here yet.\n"
PARTS = ("step", "data", "network", "loss")


@dataclass(frozen=True)
class Run:
    """`words`: flags of `ablate`; `real`: folder of real data below --data, whose preset then is `preset`."""

    project: str
    preset: str
    words: tuple[str, ...] = ()
    real: str | None = None
    bucket: bool = False


RUNS = {
    "brainunet": Run("brainunet", "small", real="brainunet"),
    "openkbp": Run("openkbp", "demo", real="openkbp"),
    # a loop over the wavenumbers takes a minute a step on the demo's own batches
    "ssmunet": Run("ssmunet", "demo", ("--data.patch", "32", "--train.batch-size", "1")),
    "vesuvius": Run("vesuvius", "demo"),
    "dinocell": Run(
        "dinocell",
        "demo",
        ("--train.batch-size", "8", "--cache.max-gb", str(KEPT_GB), "--remote.credentials", "anonymous"),
        bucket=True,
    ),
}
SPECTRAL = "spectral"
"""ssmunet's spectral layers by themselves."""


def main() -> int:
    parser = command_line(__doc__, (*RUNS, SPECTRAL))
    parser.add_argument("--minutes", type=float, default=10.0, help="for each project, about")
    options = parser.parse_args()
    for name in () if options.render else options.names or (*RUNS, SPECTRAL):
        found = spectral(options.quick) if name == SPECTRAL else ablated(RUNS[name], options)
        if not options.quick:
            RESULTS.mkdir(exist_ok=True, parents=True)
            (RESULTS / f"{name}.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", "utf-8")
    if not options.quick:
        PAGE.write_text(page(), encoding="utf-8")
    return 0


def ablated(run: Run, options: argparse.Namespace) -> dict[str, Any]:
    """Return the result of `runner PROJECT ablate`: its ablate.json, with the machine."""
    source = Options(options.quick, options.data).folder(run.real) if run.real else None
    before = machine()
    with tempfile.TemporaryDirectory() as folder, served(plates) if run.bucket else nullcontext() as endpoint:
        words = ["--preset", run.preset, "--out", f"{folder}/found", "--cache.dir", f"{folder}/cache", *run.words]
        words += ["--minutes", str(0.05 if options.quick else options.minutes)]
        if endpoint:
            words += ["--data", f"s3://{BUCKET}", "--remote.endpoint", endpoint]
        elif source:
            words += ["--data", str(source)]
        subprocess.run([str(Path(sys.executable).with_name("runner")), run.project, "ablate", *words], check=True)
        found: dict[str, Any] = json.loads(Path(folder, "found", "ablate.json").read_text(encoding="utf-8"))
    named = f"an S3 server that answers after {LATENCY * 1000:.0f} ms" if endpoint else None
    found["data"] = named or (f"{run.real} (real)" if source else "phantom")
    return found | {"machine": before | {"load": [before["load"], machine()["load"]]}}


def plates(s3: S3) -> None:
    """Fields of five channels that dinocell knows."""
    import io

    import numpy as np
    import tifffile

    rng = np.random.default_rng(0)
    for plate, field, channel in np.ndindex(PLATES, FIELDS, 5):
        buffer = io.BytesIO()
        tifffile.imwrite(buffer, rng.integers(0, 2**16, (SIDE, SIDE), dtype=np.uint16))
        folder = f"source_1/images/Batch01/images/BR{plate:04d}__Measurement1/Images"
        s3.put(BUCKET, f"{folder}/r01c{field + 1:02d}f01p01-ch{channel + 1}sk1fk1fl1.tiff", buffer.getvalue())


# ---------------------------------------------------------------- ssmunet's spectral layers


def spectral(quick: bool) -> dict[str, Any]:
    """Forward and backward pass of the layers as they are shipped, and as textbooks have them, which keep all states:
    seconds and bytes. Both give the same features and gradients."""
    import numpy as np
    import torch
    from runner_ssmunet.filters import BandFilters, default_centres
    from runner_ssmunet.spectral import SpectralStack

    pixels, length = (16, 25) if quick else (PIXELS, LENGTH)
    axis = np.linspace(900, 1800, length).tolist()
    x = torch.randn(pixels, length, generator=torch.Generator().manual_seed(0))

    def stack(**how: Any) -> SpectralStack:
        torch.manual_seed(0)
        filters = BandFilters(axis, default_centres(FILTERS, axis[0], axis[-1], []), 80.0)
        return SpectralStack(filters, layers=2, states=16, dropout=0.0, **how)

    def learned(layers: SpectralStack) -> list[torch.Tensor]:
        features = layers(x)
        return [features.detach(), *torch.autograd.grad(features.square().mean(), list(layers.parameters()))]

    before = machine()
    ours, textbook = stack(), stack(chunk=0, scan="reference")
    learned(ours)  # compiles
    fast = [taken(lambda: learned(ours)) for _ in range(1 if quick else 7)]
    slow = taken(lambda: learned(textbook))  # once: it takes minutes
    for found, true in zip(fast[0].result, slow.result, strict=True):
        torch.testing.assert_close(found, true, rtol=1e-3, atol=1e-6 + 1e-3 * float(true.abs().max()))
    seconds = [statistics.median(one.seconds for one in fast), slow.seconds]
    peaks = [max(one.peak or 0 for one in fast), slow.peak or 0]
    told = {"pixels": pixels, "length": length, "filters": FILTERS, "threads": torch.get_num_threads()}
    told |= {"seconds": seconds, "bytes": peaks, "machine": before | {"load": [before["load"], machine()["load"]]}}
    print(json.dumps({name: told[name] for name in ("pixels", "seconds", "bytes")}))
    return told


# ---------------------------------------------------------------- the page


def page(folder: Path = RESULTS) -> str:
    """Return the page of all results in the folder."""
    found = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}
    sections = [section(name, found[name]) for name in RUNS if name in found]
    if SPECTRAL in found:
        sections.append(spectral_section(found[SPECTRAL]))
    return "\n".join([HEAD, *sections]) if sections else HEAD + NOTHING


def section(name: str, found: Mapping[str, Any]) -> str:
    shapes = ", ".join(f"{field} {shape}" for field, shape in (found.get("sample") or {}).items())
    device = "the CPU" if found["kind"] == "cpu" else found["device"]
    what = (
        f"Preset `{found['preset']}`, data: {found['data']}; {found['samples_per_epoch']:,} samples an epoch, in "
        f"batches of {found['batch']}{f' ({shapes})' if shapes else ''}; {found['precision']}, cache "
        f"`{found['cache']}`, {found['engine']} on {device}."
    )
    with_all = found["with_all"]
    columns = ["without", "rounds", "a step", "data, samples/s", "network", "loss", "peak memory", "losses"]
    first = ["(nothing)", "", *(_amount(part, _median(with_all.get(part))) for part in PARTS), _memory(with_all), ""]
    rows = [first, *(_row(row, with_all) for row in found["without"])]
    about = "\n".join(
        f"- **{row['name']}**: {row['about']}" for row in found["without"] if not row["name"].startswith("all ")
    )
    aims = "\n".join(f"- Aim: {aim.text} – **{'met' if aim.met else 'NOT met'}**." for aim in AIMS[name](found))
    left_out = f"Not measured, for lack of time: {', '.join(found['left_out'])}." if found.get("left_out") else ""
    parts = [f"## {name}", wrapped(what), table(columns, rows), left_out, about, aims, _measured(found)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _row(row: Mapping[str, Any], with_all: Mapping[str, Any]) -> list[Any]:
    if row["failed"]:
        return [row["name"], "", f"failed: {row['failed']}", "", "", "", "", ""]
    cells = [_with_ratio(part, row[part]) if part in row else "–" for part in PARTS]
    kind = "device" if with_all["peak_memory_bytes"]["device"] else "host"
    memory = row["peak_memory_bytes"][kind] / with_all["peak_memory_bytes"][kind]
    losses = row["losses"]
    said = agreement(losses["agree"], _finite(losses["difference"])) if losses else "others"
    return [row["name"], str(row["step"]["rounds"]), *cells, f"{_memory(row)} ×{number(memory)}", said]


def _with_ratio(part: str, found: Mapping[str, Any]) -> str:
    """Time with all in the same rounds, that without as the ratio says, and the ratio: as `ablate` shows it."""
    on, ratio = found["with"]["median"], found["ratio"]
    mark = sign(found["low"] or 0.0, _finite(found["high"]), found["rounds"])
    return f"{from_to(_amount(part, on), _amount(part, on * ratio))} {mark}{number(ratio)}"


def _finite(value: float | None) -> float:
    """JSON has no infinity."""
    return math.inf if value is None else value


def _median(found: Mapping[str, Any] | None) -> float | None:
    return None if found is None else found["median"]


def _amount(part: str, seconds: float | None) -> str:
    if seconds is None:
        return "–"
    if part == "data":
        return number(1 / seconds)
    return f"{number(seconds * 1e3)} ms" if seconds < 1 else f"{number(seconds)} s"


def _memory(found: Mapping[str, Any]) -> str:
    peak = found["peak_memory_bytes"]
    return f"{number((peak['device'] or peak['host']) / 1e9)} GB"


def _measured(found: Mapping[str, Any]) -> str:
    there, (before, after) = found["machine"], found["machine"]["load"]
    return wrapped(
        f"*Measured on {there['date']}: {there['cpu']}, {counted(there['cores'], 'core')}, {there['ram_gb']} GB, GPU: "
        f"{there['gpu']}; load {before} before, {after} after.*"
    )


def spectral_section(found: Mapping[str, Any]) -> str:
    (fast, slow), (little, much) = found["seconds"], found["bytes"]
    rows = [
        ["as shipped", fast * 1e3, 1, little / 1e6, 1],
        ["the textbook's", slow * 1e3, slow / fast, much / 1e6, much / little],
    ]
    what = (
        f"Forward and backward pass over {found['pixels']} pixels × {found['length']} wavenumbers with "
        f"{found['filters']} filters, 2 Mamba layers of 16 states, no dropout, float32, {found['threads']} threads. "
        "The textbook's loops over the wavenumbers and keeps every state (`model.scan reference`, `model.chunk 0`); "
        "memory is what the pass needs above what there is. Features and gradients of both agree."
    )
    columns = ["spectral layers", "ms", "time", "MB", "memory"]
    aims = [
        Aim(f"20 times as fast as the textbook's: {number(slow / fast)}", slow >= 20 * fast),
        Aim(f"at most a quarter of its memory: {number(little / much)} of it", much >= 4 * little),
    ]
    lines = "\n".join(f"- Aim: {aim.text} – **{'met' if aim.met else 'NOT met'}**." for aim in aims)
    title = "## ssmunet's spectral layers by themselves"
    return "\n\n".join([title, wrapped(what), table(columns, rows), lines, _measured(found)]) + "\n"


# ---------------------------------------------------------------- aims


def _aim(found: Mapping[str, Any], names: Sequence[str], part: str, least: float, what: str) -> Iterator[Aim]:
    """Yield the aim for the first of `names` of which `part` was measured."""
    for name in names:
        row = next((row for row in found["without"] if row["name"] == name and part in row), None)
        if row is not None:
            ratio = row[part]["ratio"]
            yield Aim(f"{what} {number(least)} times as fast as without {name}: {number(ratio)}", ratio >= least)
            return


ALIKE = "all off that learn the same"
AIMS: Mapping[str, Callable[[Mapping[str, Any]], list[Aim]]] = {
    "brainunet": lambda found: list(_aim(found, ["cache"], "data", 14, "data path")),
    "openkbp": lambda found: list(_aim(found, ["cache"], "data", 10, "data path")),
    "ssmunet": lambda found: [],
    "vesuvius": lambda found: [
        *_aim(found, ["cache"], "data", 20, "data path"),
        *_aim(found, ["all off", "skeleton-recall"], "loss", 5, "losses"),
    ],
    "dinocell": lambda found: list(_aim(found, [ALIKE, "all off"], "data", 10, "images")),
}


if __name__ == "__main__":
    sys.exit(main())
