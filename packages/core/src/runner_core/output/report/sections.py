"""Parts of a run's report: the memory that it takes, records that were fetched as they were used, and pictures."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from runner_core.base.files import is_own_file, refuse_special_file, size_text
from runner_core.base.text import counted
from runner_core.contract.records import Table
from runner_core.output.report.charts import Series, line_chart
from runner_core.output.report.page import Block, Markup, Note

_TITLES = {"host": "RAM", "device": "Device", "disk": "Disk", "cache": "Disk of the cache"}
_SHOWN = 20
_NEEDS, _GIVES = "images_per_second_needed", "images_per_second_link"
_PICTURES = 24
_PICTURE_BYTES = 4_000_000
_OF_SERIES = 10

# ---------------------------------------------------------------- memory


def memory(plan: Mapping[str, Any], peak: Mapping[str, int] | None = None) -> Iterator[Block]:
    """Yield what a plan (`MemoryPlan.json`) says; nothing without a plan.

    `peak` holds the peak by place, once a training has ended.
    """
    if not plan:
        return
    for level, text in (("error", plan.get("refusal")), *(("warning", text) for text in plan["warnings"])):
        if text:
            yield Note(text, level, level)
    for place, title in _TITLES.items():
        own = [part for part in plan["parts"] if part["place"] == place]
        if own:
            rows = [(p["name"], size_text(p["bytes"]), p["known"], p["setting"]) for p in own]
            rows.append(("at most at once", size_text(plan["needs"].get(place, 0)), "", ""))
            rows.append(
                ("there is", size_text(plan["has"][place]), "", "") if place in plan["has"] else ("", "", "", "")
            )
            if peak and peak.get(place):
                rows.append(("taken at most", size_text(peak[place]), "measured", ""))
            yield Table(f"memory-{place}", title, ("part", "takes", "known", "setting"), rows)
    yield Note("The plan made before the first step. Scoring whole records takes memory of its own.")


# ---------------------------------------------------------------- streaming


def streaming(events: Iterable[Mapping[str, Any]], bad_samples: Path) -> Iterator[Block]:
    """Yield the data rate that training needed, the link's rate, and the replaced samples, if data were streamed."""
    data = [e for e in events if e.get("event") == "data"]
    if not data:
        return
    timings = [(float(e["step"]), e["timing"]) for e in data if e.get("timing")]
    curves = [
        Series("needed", "a", [(step, t[_NEEDS]) for step, t in timings if t["images"]]),
        Series("the link gives", "b", [(step, t[_GIVES]) for step, t in timings if t["images"]]),
    ]
    there, waited = (sum(t[name] for _, t in timings) for name in ("records_there", "records_waited_for"))
    images, retries = (sum(t[name] for _, t in timings) for name in ("images", "retries"))
    fetched = f"{counted(images, 'file')} fetched, {counted(retries, 'request')} tried again"
    used = f"; {there / (there + waited):.1%} of records were there when they were wanted" if there + waited else ""
    yield Note(f"{fetched}{used}.")
    if curves[0].points:
        yield Markup(line_chart("images/s", curves, None))
    bad = _read(bad_samples)
    if bad:
        rows = [(line["record"], line["kind"], line["reason"]) for line in bad[:_SHOWN]]
        title = f"{counted(data[-1]['bad'], 'training sample')} of another record"
        yield Table("bad-samples", title, ("record", "kind", "what is wrong"), rows)
    if len(bad) > _SHOWN:
        yield Note(f"… {len(bad) - _SHOWN} more in {bad_samples.name}")


def _read(file: Path) -> Sequence[Mapping[str, Any]]:
    """Return one line for each bad record; the file's last line may be torn."""
    found: dict[str, Mapping[str, Any]] = {}
    for text in refuse_special_file(file).read_text(encoding="utf-8").splitlines() if file.exists() else ():
        try:
            line = json.loads(text)
        except ValueError:
            break
        found.setdefault(line["record"], line)
    return list(found.values())


# ---------------------------------------------------------------- pictures

Drawn = Mapping[str, Mapping[int, Path]]
"""Files of the pictures drawn while the network trained: name → step → file."""


def series(events: Iterable[Mapping[str, Any]], folder: Path) -> Drawn:
    """Return the pictures that a training drew into `folder`, by name and step, as its log lists them."""
    found: dict[str, dict[int, Path]] = {}
    for event in events:
        if event.get("event") == "figure" and event["file"].endswith(f"-{event['step']:08d}.png"):
            path = folder / event["file"]
            if _may_be_shown(path, folder):
                found.setdefault(event["name"], {})[event["step"]] = path
    return found


def snapshots(drawn: Drawn) -> Iterator[Block]:
    """Yield a row for each series: the first, the newest, and some between them at even distances."""
    for name, files in drawn.items():
        steps = sorted(files)
        last = min(len(steps), _OF_SERIES) - 1
        few = [steps[round(i * (len(steps) - 1) / max(1, last))] for i in range(last + 1)]
        strip = "".join(_figure(files[step], f"{name}, step {step:,}").text for step in few)
        yield Markup(f'<h3>{escape(name)}</h3><div class="strip" tabindex="0">{strip}</div>')


def pictures(folder: Path, drawn: Drawn) -> Iterator[Block]:
    """Yield all other pictures below `folder`, up to a limit, sorted by name."""
    snapshots = {path for files in drawn.values() for path in files.values()}
    found = [path for path in sorted(folder.glob("**/*.png")) if path not in snapshots and _may_be_shown(path, folder)]
    yield from (_figure(path, path.stem) for path in found[:_PICTURES])


def _may_be_shown(path: Path, folder: Path) -> bool:
    """Return whether a picture may go into the page: people pass it on, and the run may come from a stranger."""
    return is_own_file(path, folder) and path.stat().st_size <= _PICTURE_BYTES


def _figure(path: Path, caption: str) -> Markup:
    return picture(path.read_bytes(), caption)


def picture(png: bytes, caption: str) -> Markup:
    """Return a picture with its caption."""
    data, text = base64.b64encode(png).decode(), escape(caption)
    return Markup(
        f'<figure><img alt="{text}" src="data:image/png;base64,{data}"><figcaption>{text}</figcaption></figure>'
    )
