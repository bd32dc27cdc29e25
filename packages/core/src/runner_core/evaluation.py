"""Whole-record scores: each record predicted in its own grid, scored beside a trivial baseline, worst cases first.

The first name that `Project.score` returns is the headline: it orders the table, in the direction of
`Project.monitor`. Over the set a score is its mean over the records that have one, or what `Project.pooled` says.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from runner_core._errors import BadInput
from runner_core.project import Project, Record, Statistics, Table
from runner_core.protocols import Array, Finding, Infer
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
    remarks: Sequence[Finding] = ()


@dataclass
class Scores:
    """Rows with the worst first; scores of the whole set, the network's and the trivial method's."""

    rows: list[Row]
    means: dict[str, float]
    baseline: dict[str, float]
    errors: list[str] = field(default_factory=list)
    """Records that could not be read, one message each."""
    tables: Sequence[Table] = ()
    shown: Sequence[str] = ()
    """What `Project.shown` says: names for which tables have room; none: all."""

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(name for row in self.rows for name in row.scores))

    @property
    def shown_names(self) -> list[str]:
        return [name for name in self.names if not self.shown or name in self.shown]

    def shown_of(self, values: Mapping[str, float]) -> dict[str, float]:
        return {name: values[name] for name in self.shown_names if name in values}

    @property
    def remarks(self) -> list[tuple[str, Finding]]:
        """What the project remarked, each with its record's key."""
        return [(row.record.key, finding) for row in self.rows for finding in row.remarks]


def evaluate(
    project: Project,
    infer: Infer,
    records: Sequence[Record],
    statistics: Statistics,
    say: Callable[[str], None] = lambda text: None,
) -> Scores:
    """Predict and score every record. A record that cannot be read becomes an entry of `errors`.

    `statistics`: of the run, for the trivial method.
    """
    rows: list[Row] = []
    errors: list[str] = []
    for number, record in enumerate(records, 1):
        try:
            prediction = project.predict(record, infer)
            scores = _score(project, record, prediction)
            trivial = project.baseline(record, statistics)
            baseline = {} if trivial is None else _score(project, record, trivial)
            remarks = project.remarks(record, prediction)
        except BadInput as error:
            errors.append(str(error))
            continue
        rows.append(Row(record, scores, baseline, prediction if len(records) <= FIGURES else None, remarks=remarks))
        say(f"scored {number}/{len(records)}  {record.key}  {shown_scores(_only(scores, project.shown))}")
        for finding in remarks:
            say(f"{finding.level}: {record.key}: {finding.message}")
    rows.sort(key=lambda row: _goodness(project, row))
    own, trivial = [r.scores for r in rows], [r.baseline for r in rows if r.baseline]
    tables = project.tables(own, trivial) if rows else ()
    return Scores(rows, _over_set(project, own), _over_set(project, trivial), errors, tables, project.shown)


def no_better(project: Project, scores: Scores) -> Finding | None:
    """A warning where, by the headline over the whole set, the trivial method is as good as the trained network."""
    headline = next(iter(scores.names), "")
    own, trivial = scores.means.get(headline, math.nan), scores.baseline.get(headline, math.nan)
    if not math.isfinite(trivial) or (own > trivial if project.monitor[1] == "max" else own < trivial):
        return None
    what = f"scores {headline} {own:.4g}, no better than the trivial baseline's {trivial:.4g}"
    return Finding("trivial baseline", "warning", f"the trained network {what}")


def write_scores(scores: Scores, folder: Path) -> list[Path]:
    """scores.csv (a row a record, worst first), a CSV for each further table, and scores.json with all of it."""
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
        | {"trained_on": r.trained_on, "remarks": [asdict(finding) for finding in r.remarks]}
        for r in scores.rows
    ]
    content = {"means": scores.means, "baseline": scores.baseline, "records": rows, "errors": scores.errors}
    content |= {"shown": scores.shown_names, "tables": [asdict(t) for t in scores.tables]}
    replace_text(summary, json_text(content) + "\n")
    return [table, *(_write_table(further, folder) for further in scores.tables), summary]


def _write_table(table: Table, folder: Path) -> Path:
    path = folder / f"scores-{file_name(table.name)}.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([table.columns, *table.rows])
    return path


def draw_figures(project: Project, infer: Infer, scores: Scores, folder: Path) -> list[Path]:
    """Pictures of the worst records, a middle one and the best, as far as the project draws any."""
    written = []
    for place, row in _worth_seeing(scores.rows):
        prediction = project.predict(row.record, infer) if row.prediction is None else row.prediction
        picture = project.figure(row.record, prediction)
        if picture is None:
            break
        path = folder / f"{place}-{file_name(row.record.key)}.png"
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


def _score(project: Project, record: Record, prediction: Any) -> dict[str, float]:
    """What the project's `score` gives. Raises BadInput when that is not numbers by name."""
    found: Any = project.score(record, prediction)
    where = f"project {project.name}: `score` must return numbers by name, as in {{'dice': 0.9}}"
    if not isinstance(found, Mapping):
        raise BadInput(f"{where}; it returned {type(found).__name__}")
    for name, value in found.items():
        if isinstance(value, str) or not hasattr(value, "__float__"):
            raise BadInput(f"{where}; {name!r} is {value!r}")
    return dict(found)


def _goodness(project: Project, row: Row) -> float:
    """Larger is better; a score that is no number is the worst."""
    value = next(iter(row.scores.values()), 0.0)
    if not math.isfinite(value):
        return -math.inf
    return value if project.monitor[1] == "max" else -value


def _only(scores: Mapping[str, float], names: Sequence[str]) -> dict[str, float]:
    return {name: value for name, value in scores.items() if not names or name in names}


def _over_set(project: Project, rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return _means(rows) | (dict(project.pooled(rows)) if rows else {})


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


def file_name(key: str) -> str:
    """A name that any disk takes.

    >>> file_name("p01/slice 3")
    'p01_slice_3'
    """
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in key)[:100]


def versions() -> dict[str, Any]:
    """Versions of what every run depends on; the engine adds its own."""
    import platform
    from importlib.metadata import version

    return {"python": platform.python_version(), "runner-core": version("runner-core"), "numpy": np.__version__}
