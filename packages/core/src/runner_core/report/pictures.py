"""The pictures of a report, inside the page: of records, and of a training, in which the same is drawn many times."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from typing import Any

_PICTURES = 24
_PICTURE_BYTES = 4_000_000
_OF_SERIES = 6

Series = Mapping[str, Mapping[int, Path]]
"""Files of what was drawn while the network trained: name → step → file."""


def series(events: Iterable[Mapping[str, Any]], folder: Path) -> Series:
    """What `runner_core.snapshots` drew into `folder`, as the log tells it: files that are named by their step."""
    found: dict[str, dict[int, Path]] = {}
    for event in events:
        if event.get("event") == "figure" and event["file"].endswith(f"-{event['step']:08d}.png"):
            found.setdefault(event["name"], {})[event["step"]] = folder / event["file"]
    return found


def snapshots(drawn: Series) -> str:
    """A few of each series: the first, the newest, and some between them, at even distances."""
    shown = []
    for name, files in drawn.items():
        steps = sorted(step for step, path in files.items() if _readable(path))
        last = min(len(steps), _OF_SERIES) - 1
        few = [steps[round(i * (len(steps) - 1) / max(1, last))] for i in range(last + 1)]
        shown += [_figure(files[step], f"{name}, step {step:,}") for step in few]
    return "".join(shown)


def pictures(folder: Path, drawn: Series) -> str:
    """All others below `folder`, the first of them by name."""
    snapshots = {path for files in drawn.values() for path in files.values()}
    found = [path for path in sorted(folder.glob("**/*.png")) if path not in snapshots and _readable(path)]
    return "".join(_figure(path, path.stem) for path in found[:_PICTURES])


def _readable(path: Path) -> bool:
    return path.exists() and path.stat().st_size <= _PICTURE_BYTES


def _figure(path: Path, caption: str) -> str:
    data, text = base64.b64encode(path.read_bytes()).decode(), escape(caption)
    return f'<figure><img alt="{text}" src="data:image/png;base64,{data}"><figcaption>{text}</figcaption></figure>'
