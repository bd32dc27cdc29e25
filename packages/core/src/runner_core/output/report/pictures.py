"""The pictures of a report, inside the page: of records, and of the same samples many times during training."""

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
"""Files of the pictures drawn while the network trained: name → step → file."""


def series(events: Iterable[Mapping[str, Any]], folder: Path) -> Series:
    """Return the pictures that a training drew into `folder`, by name and step, as its log lists them."""
    found: dict[str, dict[int, Path]] = {}
    for event in events:
        if event.get("event") == "figure" and event["file"].endswith(f"-{event['step']:08d}.png"):
            found.setdefault(event["name"], {})[event["step"]] = folder / event["file"]
    return found


def snapshots(drawn: Series) -> str:
    """Return a few of each series: the first, the newest, and some between them at even distances."""
    shown = []
    for name, files in drawn.items():
        steps = sorted(step for step, path in files.items() if _readable(path))
        last = min(len(steps), _OF_SERIES) - 1
        few = [steps[round(i * (len(steps) - 1) / max(1, last))] for i in range(last + 1)]
        shown += [_figure(files[step], f"{name}, step {step:,}") for step in few]
    return "".join(shown)


def pictures(folder: Path, drawn: Series) -> str:
    """Return all other pictures below `folder`, up to a limit, sorted by name."""
    snapshots = {path for files in drawn.values() for path in files.values()}
    found = [path for path in sorted(folder.glob("**/*.png")) if path not in snapshots and _readable(path)]
    return "".join(_figure(path, path.stem) for path in found[:_PICTURES])


def _readable(path: Path) -> bool:
    return path.exists() and path.stat().st_size <= _PICTURE_BYTES


def _figure(path: Path, caption: str) -> str:
    data, text = base64.b64encode(path.read_bytes()).decode(), escape(caption)
    return f'<figure><img alt="{text}" src="data:image/png;base64,{data}"><figcaption>{text}</figcaption></figure>'
