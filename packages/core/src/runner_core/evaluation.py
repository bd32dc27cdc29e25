"""Whole-record scores: each record predicted in its own grid, scored beside a trivial baseline, worst cases first.

The first name that `Project.score` returns is the headline: it orders the table, in the direction of
`Project.monitor`.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from runner_core._errors import BadInput
from runner_core.project import Project, Record
from runner_core.protocols import Array, Infer
from runner_core.runfolder import json_text, replace_text

FIGURES = 6


@dataclass
class Row:
    """Scores of one record, and the trivial method's where there is one."""

    record: Record
    scores: Mapping[str, float]
    baseline: Mapping[str, float]
    prediction: Any = None
    """Kept for its picture where there are few records; more of them might not fit in memory."""
    trained_on: bool = False
    """Was the record, or another of its group, trained on?"""


@dataclass
class Scores:
    """Rows with the worst first; means over the records where a score is a finite number."""

    rows: list[Row]
    means: dict[str, float]
    baseline: dict[str, float]
    errors: list[str] = field(default_factory=list)
    """Records that could not be read, one message each."""

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(name for row in self.rows for name in row.scores))


def evaluate(
    project: Project, infer: Infer, records: Sequence[Record], say: Callable[[str], None] = lambda text: None
) -> Scores:
    """Predict and score every record. A record that cannot be read becomes an entry of `errors`."""
    rows: list[Row] = []
    errors: list[str] = []
    for number, record in enumerate(records, 1):
        try:
            prediction = project.predict(record, infer)
            scores = dict(project.score(record, prediction))
            trivial = project.baseline(record)
            baseline = {} if trivial is None else dict(project.score(record, trivial))
        except BadInput as error:
            errors.append(str(error))
            continue
        rows.append(Row(record, scores, baseline, prediction if len(records) <= FIGURES else None))
        say(f"scored {number}/{len(records)}  {record.key}  {shown_scores(scores)}")
    rows.sort(key=lambda row: _goodness(project, row))
    return Scores(rows, _means([r.scores for r in rows]), _means([r.baseline for r in rows]), errors)


def write_scores(scores: Scores, folder: Path) -> list[Path]:
    """scores.csv (a row a record, worst first) and scores.json (the same with the means)."""
    table, summary = folder / "scores.csv", folder / "scores.json"
    with table.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        baseline = [name for name in scores.names if any(name in row.baseline for row in scores.rows)]
        writer.writerow(["record", "group", *scores.names, *(f"baseline_{name}" for name in baseline), "trained_on"])
        for row in scores.rows:
            numbers = [row.scores.get(n, "") for n in scores.names] + [row.baseline.get(n, "") for n in baseline]
            writer.writerow([row.record.key, row.record.group, *numbers, "yes" if row.trained_on else "no"])
    rows = [
        {"record": r.record.key, "group": r.record.group, "scores": r.scores, "baseline": r.baseline}
        | {"trained_on": r.trained_on}
        for r in scores.rows
    ]
    content = {"means": scores.means, "baseline": scores.baseline, "records": rows, "errors": scores.errors}
    replace_text(summary, json_text(content) + "\n")
    return [table, summary]


def draw_figures(project: Project, infer: Infer, scores: Scores, folder: Path) -> list[Path]:
    """Pictures of the worst records, a middle one and the best, as far as the project draws any."""
    written = []
    for place, row in _worth_seeing(scores.rows):
        prediction = project.predict(row.record, infer) if row.prediction is None else row.prediction
        picture = project.figure(row.record, prediction)
        if picture is None:
            break
        path = folder / f"{place}-{_file_name(row.record.key)}.png"
        write_png(path, picture)
        written.append(path)
    return written


def write_png(path: Path, picture: Array) -> None:
    """Write (H, W, 3) or (H, W) uint8 as PNG."""
    if picture.dtype != np.uint8 or picture.ndim not in (2, 3) or (picture.ndim == 3 and picture.shape[2] != 3):
        raise ValueError(f"a picture is (H, W, 3) or (H, W) uint8, not {picture.shape} {picture.dtype}")
    Image.fromarray(picture).save(path, "PNG")


def shown_scores(scores: Mapping[str, float]) -> str:
    """
    >>> shown_scores({"dice": 0.97531, "hd95": 2.0})
    'dice 0.9753  hd95 2'
    """
    return "  ".join(f"{name} {value:.4g}" for name, value in scores.items())


def _goodness(project: Project, row: Row) -> float:
    """Larger is better; a score that is no number is the worst."""
    value = next(iter(row.scores.values()), 0.0)
    if not math.isfinite(value):
        return -math.inf
    return value if project.monitor[1] == "max" else -value


def _means(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for row in rows for name in row)
    found = {name: [v for row in rows if math.isfinite(v := row.get(name, math.nan))] for name in names}
    return {name: float(np.mean(values)) if values else math.nan for name, values in found.items()}


def _worth_seeing(rows: Sequence[Row]) -> Iterator[tuple[str, Row]]:
    """The worst ones, the middle and the best, each once, named by their place in the table."""
    places = list(range(len(rows)))
    if len(rows) > FIGURES:
        places = [*places[: FIGURES - 2], len(rows) // 2, len(rows) - 1]
    for place in places:
        yield f"{place + 1:03d}", rows[place]


def _file_name(key: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in key)[:100]


def versions() -> dict[str, Any]:
    """Versions of what every run depends on; the engine adds its own."""
    import platform
    from importlib.metadata import version

    return {"python": platform.python_version(), "runner-core": version("runner-core"), "numpy": np.__version__}
