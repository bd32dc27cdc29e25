"""Small arrays that a project watches in its network, at the beginning and at every validation, and their pictures.

They are kept only in log.jsonl (event "watch"). A resumed run cuts the log back and continues it, so the pictures of a
killed run equal those of an uninterrupted one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from runner_core.contract import Arrays, Json
from runner_core.contract.project import Project
from runner_core.output.pictures import write_pictures

Watched = list[tuple[int, Arrays]]
"""(optimizer step, arrays) of the beginning and of each validation, in order."""


def read(events: Iterable[Mapping[str, Json]]) -> Watched:
    """Return the watched arrays in the lines of log.jsonl: float64, NaN for values that were not finite."""
    return [
        (event["step"], {name: np.array(values, np.float64) for name, values in event["arrays"].items()})
        for event in events
        if event.get("event") == "watch"
    ]


def draw(project: Project, watched: Sequence[tuple[int, Arrays]], folder: Path) -> list[Path]:
    """Write the project's pictures as folder/NAME.png; none if nothing was watched."""
    return write_pictures(project.pictures(watched) if watched else {}, folder)
