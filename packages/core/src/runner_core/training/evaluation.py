"""Predict whole records in their own grid, score them beside a trivial baseline, list the worst first.

The first name that `Project.score` returns is the headline. It orders the table, in the direction of `Project.monitor`.
A score of the whole set is its mean over the records that have it, unless `Judging.pooled` returns another value.
`Judging.judge` adds scores that need all predictions at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from runner_core.base.errors import BadInput
from runner_core.base.files import read_json
from runner_core.base.progress import RecordBar
from runner_core.base.writing import replace_csv, replace_json
from runner_core.contract import Array, Finding, Infer
from runner_core.contract.facets import Judging
from runner_core.contract.project import Project
from runner_core.contract.records import AnyRecord, Judgement, Table
from runner_core.data.pipeline import CroppedRecord, RecordPipeline, local
from runner_core.output.pictures import file_name, write_pictures, write_png
from runner_core.training.calibration import tables as calibration_tables
from runner_core.training.ensembles import Ensemble, counting, predict_with
from runner_core.training.scoring import Row, Scored, Scorer, empty_calibration, goodness, numbers

FIGURES = 6
SCORES_FILE = "scores.json"
SAID_EVERY = 100
"""Number of records between two progress lines, for records without scores of their own."""


@dataclass
class Scores:
    """Rows (worst first), and the whole set's scores of the network and of the trivial method."""

    rows: list[Row]
    means: dict[str, float]
    baseline: dict[str, float]
    errors: list[str] = field(default_factory=list)
    """One message for each record that could not be read."""
    tables: Sequence[Table] = ()
    further: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Scores of the whole set by other methods, by method name."""
    unseen: Mapping[str, float] = field(default_factory=dict)
    """Scores of the records that were not trained on, if there are others too; `means` is over all."""
    unseen_baseline: Mapping[str, float] = field(default_factory=dict)
    pictures: Mapping[str, Array] = field(default_factory=dict)
    """Pictures of the whole set, by name."""
    shown: Sequence[str] = ()
    """Names of the scores that fit into tables, from `Judging.shown`; empty for all."""
    calibration: Mapping[str, Any] = field(default_factory=dict)
    """Whether soft outputs mean what they say (`Calibration.json`); empty if that is not known."""

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(name for row in self.rows for name in row.scores))

    @property
    def names_over_set(self) -> list[str]:
        """Names of all scores of the set, the headline first."""
        return list(dict.fromkeys([*self.names, *self.means]))

    @property
    def shown_names(self) -> list[str]:
        return [name for name in self.names_over_set if not self.shown or name in self.shown]

    def shown_of(self, values: Mapping[str, float]) -> dict[str, float]:
        return {name: values[name] for name in self.shown_names if name in values}

    @property
    def remarks(self) -> list[tuple[str, Finding]]:
        """Remarks of the project, each with its record's key."""
        return [(row.record.key, finding) for row in self.rows for finding in row.remarks]


def evaluate(
    pipeline: RecordPipeline,
    infer: Infer | Ensemble,
    records: Sequence[AnyRecord],
    say: Callable[[str], None] = lambda text: None,
    *,
    untrained: Infer | None = None,
    trained_on: Callable[[AnyRecord], bool] = lambda record: False,
    bar: RecordBar | None = None,
) -> Scores:
    """Predict and score every record; a record that cannot be read becomes an entry of `errors`.

    Args:
        pipeline: The pipeline of the project that predicts and scores.
        infer: The network, or several that predict together.
        records: The records to predict.
        say: Receives progress lines.
        untrained: The network before its first step, for `Judging.judge`.
        trained_on: Tells if training used a record or another of its group.
        bar: Shows the progress.
    """
    bar, project = bar or RecordBar(), pipeline.project
    scorer = Scorer(pipeline, counting(bar, infer), untrained and bar.counting(untrained), trained_on)
    return over_records(project, list(score_each(scorer, records, say, bar, keep=len(records) <= FIGURES)))


def score_each(
    scorer: Scorer, records: Sequence[AnyRecord], say: Callable[[str], None], bar: RecordBar, *, keep: bool = False
) -> Iterator[Scored]:
    """Score records, and say how far it is; `keep` the predictions, which `judge` needs anyway."""
    shown = scorer.project.judging().shown
    for number, record in enumerate(records, 1):
        bar.begin(record.key)
        try:
            scored = scorer(record)
        finally:
            bar.done()
        row = scored.row
        if not keep and scored.predicted is None:
            row.prediction = None
        yield scored
        if not scored.error and (row.scores or number % SAID_EVERY == 0 or number == len(records)):
            say(f"scored {number}/{len(records)}  {record.key}  {shown_scores(_only(row.scores, shown))}")
        for finding in row.remarks:
            say(f"{finding.level}: {record.key}: {finding.message}")


def over_records(project: Project, found: Sequence[Scored]) -> Scores:
    """Return the scores of a set of records, each of which was scored by itself, in their order."""
    judging, calibration = project.judging(), empty_calibration(project)
    rows, errors = [one.row for one in found if not one.error], [one.error for one in found if one.error]
    if calibration is not None:
        for one in found:
            calibration.add(one.row.record.key, one.curves)
    rows.sort(key=lambda row: goodness(project, row.scores))
    own, trivial = [r.scores for r in rows], [r.baseline for r in rows if r.baseline]
    unseen = [row for row in rows if not row.trained_on]
    unseen = unseen if len(unseen) < len(rows) else []
    tables = further_tables(judging, rows)
    calibrated = {} if calibration is None else calibration.json()
    scores = Scores(
        *(rows, over_set(judging, own), over_set(judging, trivial), errors),
        tables=(*tables, *calibration_tables(calibrated)),
        shown=judging.shown,
        unseen=over_set(judging, [row.scores for row in unseen]),
        unseen_baseline=over_set(judging, [row.baseline for row in unseen if row.baseline]),
        calibration=calibrated,
    )
    predicted = [one.predicted for one in found if one.predicted is not None]
    return scores if judging.judge is None or not predicted else _judged(project, judging.judge(predicted), scores)


def _judged(project: Project, found: Any, scores: Scores) -> Scores:
    """Return the scores with what `Judging.judge` found; raise BadInput if that is no Judgement."""
    if found is None:
        return scores
    where = f"project {project.name}: `judge` must return a Judgement or None"
    if not isinstance(found, Judgement):
        raise BadInput(f"{where}; it returned {type(found).__name__}")
    return replace(
        scores,
        means=scores.means | numbers(found.scores, where),
        baseline=scores.baseline | numbers(found.baseline, where),
        further={method: numbers(values, where) for method, values in found.further.items()},
        tables=[*scores.tables, *found.tables],
        pictures=found.pictures,
    )


def no_better(project: Project, scores: Scores) -> Finding | None:
    """Return a warning if another method's headline score over the set is as good as the trained network's."""
    headline = next(iter(scores.names_over_set), "")
    own = scores.means.get(headline, math.nan)
    others = {"trivial baseline": scores.baseline, **scores.further}
    values = {method: found.get(headline, math.nan) for method, found in others.items()}
    as_good = [
        f"the {method}'s {value:.4g}"
        for method, value in values.items()
        if math.isfinite(value) and not (own > value if project.monitor[1] == "max" else own < value)
    ]
    if not as_good:
        return None
    what = f"scores {headline} {own:.4g}, no better than {' and '.join(as_good)}"
    return Finding("trivial baseline", "warning", f"the trained network {what}")


def write_scores(scores: Scores, folder: Path) -> list[Path]:
    """Write scores.csv (one row per record, worst first), one CSV per further table, and scores.json with all."""
    table, summary = folder / "scores.csv", folder / SCORES_FILE
    baseline = [name for name in scores.names if any(name in row.baseline for row in scores.rows)]
    lines: list[list[Any]] = [
        ["record", "group", *scores.names, *(f"baseline_{name}" for name in baseline), "trained_on"]
    ]
    for row in scores.rows:
        numbers = [row.scores.get(n, "") for n in scores.names] + [row.baseline.get(n, "") for n in baseline]
        lines.append([row.record.key, row.record.group, *numbers, "yes" if row.trained_on else "no"])
    replace_csv(table, lines)
    rows = [
        {"record": r.record.key, "group": r.record.group, "scores": r.scores, "baseline": r.baseline}
        | {
            "trained_on": r.trained_on,
            "remarks": [{"rule": f.rule, "level": f.level, "message": f.message} for f in r.remarks],
        }
        for r in scores.rows
    ]
    content = {"means": scores.means, "baseline": scores.baseline, "records": rows, "errors": scores.errors}
    content |= {"shown": scores.shown_names, "tables": [asdict(t) for t in scores.tables]}
    content |= {"further": scores.further} if scores.further else {}
    if scores.unseen:
        content["unseen"] = {"means": scores.unseen, "baseline": scores.unseen_baseline}
    content |= {"calibration": scores.calibration} if scores.calibration else {}
    replace_json(summary, content)
    return [table, *(_write_table(further, folder) for further in scores.tables), summary]


def read_scores(folder: Path) -> dict[str, Any]:
    """Return the scores.json of a folder, empty if there is none. Raises BadInput for a damaged one."""

    def read(found: Any) -> dict[str, Any] | None:
        named = all(isinstance(e["record"], str) and isinstance(e["group"], str) for e in found["records"])
        return dict(found) if named else None

    remedy = "score the run again with `evaluate`, or remove its folder and --resume"
    return read_json(folder / SCORES_FILE, read, remedy) or {}


def _write_table(table: Table, folder: Path) -> Path:
    path = folder / f"scores-{file_name(table.name)}.csv"
    replace_csv(path, [table.columns, *table.rows])
    return path


def figures_count(scores: Scores) -> int:
    """Return the number of records that `draw_figures` draws."""
    return min(FIGURES, len(scores.rows))


def draw_figures(
    pipeline: RecordPipeline, infer: Infer | Ensemble, scores: Scores, folder: Path, bar: RecordBar | None = None
) -> list[Path]:
    """Draw the worst records, a middle one and the best, if the project draws any; draw the pictures of the set."""
    written = []
    project, bar = pipeline.project, bar or RecordBar()
    infer = counting(bar, infer)
    figure = project.pictures().figure
    for place, row in _worth_seeing(scores.rows):
        if figure is None:
            break
        bar.begin(row.record.key)
        with local(project, row.record) as here:
            prediction = row.prediction
            if prediction is None:
                prediction = predict_with(project, CroppedRecord(pipeline, here), infer)
            picture = figure(here, prediction)
        if picture is None:
            break
        path = folder / f"{place}-{file_name(row.record.key)}.png"
        write_png(path, picture)
        written.append(path)
        bar.done()
    return written + write_pictures(scores.pictures, folder)


def shown_scores(scores: Mapping[str, float | None]) -> str:
    """Return scores as one line of text; JSON's null is an undefined score.

    >>> shown_scores({"dice": 0.97531, "hd95": 2.0, "distance": None})
    'dice 0.9753  hd95 2  distance –'
    """
    return "  ".join(f"{name} {'–' if value is None else format(value, '.4g')}" for name, value in scores.items())


def _only(scores: Mapping[str, float], names: Sequence[str]) -> dict[str, float]:
    return {name: value for name, value in scores.items() if not names or name in names}


def over_set(judging: Judging, rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return means(rows) | (dict(judging.pooled(rows)) if rows and judging.pooled is not None else {})


def further_tables(judging: Judging, rows: Sequence[Row]) -> list[Table]:
    """Return the project's own tables over a set of records."""
    own, trivial = [row.scores for row in rows], [row.baseline for row in rows if row.baseline]
    tables = judging.tables(own, trivial) if rows and judging.tables is not None else ()
    grouped = judging.grouped([row.record.group for row in rows], own) if rows and judging.grouped is not None else ()
    return [*tables, *grouped]


def means(rows: Sequence[Mapping[str, float | None]]) -> dict[str, float]:
    """Return the mean of each score over the rows that have a finite value; NaN where none has. JSON's null is NaN."""
    names = dict.fromkeys(name for row in rows for name in row)
    known = {name: [v for row in rows if (v := row.get(name)) is not None] for name in names}
    found = {name: [v for v in values if math.isfinite(v)] for name, values in known.items()}
    return {name: float(np.mean(values)) if values else math.nan for name, values in found.items()}


def _worth_seeing(rows: Sequence[Row]) -> Iterator[tuple[str, Row]]:
    """Yield the worst rows, the middle one and the best, each once, named by its place in the table."""
    places = list(range(len(rows)))
    if len(rows) > FIGURES:
        places = [*places[: FIGURES - 2], len(rows) // 2, len(rows) - 1]
    for place in places:
        yield f"{place + 1:03d}", rows[place]


def versions() -> dict[str, Any]:
    """Return the versions that every run depends on; the engine adds its own."""
    import platform
    from importlib.metadata import version

    return {"python": platform.python_version(), "runner-core": version("runner-core"), "numpy": np.__version__}
