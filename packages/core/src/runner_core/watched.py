"""What a project watches of its network: small arrays from the beginning and every validation, and their pictures.

They are kept in log.jsonl alone (event "watch"): a run that is resumed cuts it back and goes on with it, so that the
pictures of a run that was killed are those of one that never was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from runner_core._errors import BadInput
from runner_core.evaluation import write_pictures
from runner_core.project import Project
from runner_core.protocols import Arrays, Json

MOST = 10_000
"""Numbers that one validation may add to the log."""

Watched = list[tuple[int, Arrays]]
"""(optimizer step, arrays) of the beginning and of each validation, in their order."""


def watch(project: Project, network: Any) -> Arrays:
    """Copies of what the project's `watch` gives. Raises BadInput for what is no small array of numbers."""
    found: Any = project.watch(network)
    where = f"project {project.name}: `watch` must return small NumPy arrays of numbers by name"
    if not isinstance(found, Mapping):
        raise BadInput(f"{where}; it returned {type(found).__name__}")
    for name, array in found.items():
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
            raise BadInput(f"{where}; {name!r} is {getattr(array, 'dtype', type(array).__name__)}")
    if (size := sum(array.size for array in found.values())) > MOST:
        raise BadInput(f"{where}, {MOST:,} of them at most: every validation adds them to the log; it gave {size:,}")
    return {name: array.copy() for name, array in found.items()}  # of weights that change, or are swapped


def read(events: Iterable[Mapping[str, Json]]) -> Watched:
    """What the lines of log.jsonl say was watched: float64, NaN for what was not finite."""
    return [
        (event["step"], {name: np.array(values, np.float64) for name, values in event["arrays"].items()})
        for event in events
        if event.get("event") == "watch"
    ]


def draw(project: Project, watched: Sequence[tuple[int, Arrays]], folder: Path) -> list[Path]:
    """The project's pictures as folder/NAME.png; none where nothing was watched."""
    return write_pictures(project.pictures(watched) if watched else {}, folder)
