"""`runner PROJECT evaluate RUN`: whole-record scores, worst cases first."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from runner_core._errors import BadInput, did_you_mean
from runner_core._text import counted, decimal
from runner_core.cli.data import data_folder, read_records
from runner_core.cli.options import EvaluateOptions
from runner_core.cli.sides import SPLIT_FILE, Sides, read_sides, trained_on
from runner_core.cli.start import Started, load_networks, start_from_run
from runner_core.evaluation import Scores, draw_figures, write_scores
from runner_core.evaluation import evaluate as score_records
from runner_core.project import Project, Record, overrides
from runner_core.report import write_report

SPLITS = ("validation", "train", "test", "all")
SCORED = "scored"
_SHOWN_ROWS = 20


def evaluate(name: str, arguments: Sequence[str]) -> int:
    started = start_from_run(name, "evaluate", EvaluateOptions, arguments)
    options, setup, run = started.options, started.setup, started.run
    assert run is not None
    side = _side(options, setup.project)
    sides = read_sides(run.path)
    trained, untrained, checkpoint = load_networks(started, options.run)  # first: `records` may ask for statistics
    records = _records(started, side, sides)
    out = options.out or run.path / f"evaluation-{side}"
    make_folder(out)
    print(f"{counted(len(records), 'record')} ({side}) with {checkpoint} of {run.path}")
    scores = score_records(
        *(setup.project, trained.infer, records, trained.statistics), untrained=untrained, trained_on=trained_on(sides)
    )
    for line in [*score_table(scores), *further_tables(scores)]:
        print(line)
    for key, finding in scores.remarks:
        print(f"{finding.level}: {key}: {finding.message}")
    if sides is None:
        print(f"{run.path} has no {SPLIT_FILE}: it is not known whether any of these records was trained on")
    elif seen := sum(row.trained_on for row in scores.rows):
        print(f"{seen} of {_these(len(scores.rows))} trained on")
    written = write_scores(scores, out) + draw_figures(setup.project, trained.infer, scores, out)
    print(f"written: {', '.join(p.name for p in written)} in {out}")
    if out.absolute().parent == run.path.absolute():  # the report shows such folders
        print(f"report: {write_report(run)}")
    for error in scores.errors:
        print(f"warning: not scored: {error}", file=sys.stderr)
    if scores.errors:
        print(f"runner: {counted(len(scores.errors), 'record')} could not be scored (see above)", file=sys.stderr)
    return BadInput.exit_code if scores.errors else 0


def _side(options: EvaluateOptions, project: Project) -> str:
    """Which records; `SCORED`: those that the project names."""
    if options.split is None:
        return "all" if options.data else SCORED if overrides(project, "scored") else "validation"
    if options.split not in SPLITS:
        hint = did_you_mean(options.split, SPLITS)
        raise BadInput(f"--split {options.split!r}: there is no such side{hint} ({', '.join(SPLITS)})")
    return options.split


def score_table(scores: Scores) -> Iterator[str]:
    """The worst records, then the scores of the whole set beside those of the trivial baseline and other methods."""
    rows = scores.rows if scores.names else []
    width = max(map(len, ["worst first", *(row.record.key for row in rows), *scores.further]))
    names = scores.shown_names
    cells = [max(10, len(name)) for name in names]

    def line(title: str, values: dict[str, float] | None) -> str:
        texts = [_cell(values.get(n)) if values is not None else n for n in names]
        return "  ".join([f"{title:<{width}}", *(f"{t:>{w}}" for t, w in zip(texts, cells, strict=True))])

    yield line("worst first" if rows else "", None)
    for row in rows[:_SHOWN_ROWS]:
        yield line(row.record.key, dict(row.scores)) + ("  trained on" if row.trained_on else "")
    if len(rows) > _SHOWN_ROWS:
        yield f"… {len(rows) - _SHOWN_ROWS} more in scores.csv"
    yield line("whole set", scores.means)
    if scores.baseline:
        yield line("baseline", scores.baseline)
    for method, values in scores.further.items():
        yield line(method, dict(values))


def further_tables(scores: Scores) -> Iterator[str]:
    """The project's own tables: the first column to the left, numbers to the right."""
    for table in scores.tables:
        texts = [list(table.columns), *([_cell(c) for c in row] for row in table.rows)]
        widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
        yield ""
        yield table.title
        for first, *others in texts:
            cells = [f"{text:>{width}}" for text, width in zip(others, widths[1:], strict=True)]
            yield "  ".join([f"{first:<{widths[0]}}", *cells])


def _these(records: int) -> str:
    if records == 1:
        return "1 record (or another of its group) was"
    return f"these {records} records (or others of their groups) were"


def make_folder(path: Path) -> None:
    """Make a folder for results, or BadInput."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"{path}: cannot write here: {error.strerror}; name another folder with --out") from error


def _records(started: Started[EvaluateOptions], side: str, sides: Sides | None) -> Sequence[Record]:
    """The records of a side as it was in training; records that are new since then belong to none."""
    setup, run = started.setup, started.run
    assert run is not None
    records = read_records(setup, data_folder(setup, print))
    if side == "all":
        return records
    if sides is None:
        raise BadInput(f"{run.path} has no {SPLIT_FILE}, so its {side} records are not known; --split all scores all")
    keys = {name: frozenset(of_side) for name, of_side in sides.items()}
    by_side = {name: [r for r in records if r.key in of_side] for name, of_side in keys.items()}
    found = setup.project.scored(by_side) if side == SCORED else by_side.get(side)
    if not found:
        raise BadInput(f"there are no {side} records of {run.path} in this data; --split all scores every record")
    if new := len(records) - sum(map(len, by_side.values())):
        print(f"{counted(new, 'record')} new since training, of no side; --split all scores them too")
    return found


def _cell(value: str | float | None) -> str:
    if isinstance(value, (str, int)):
        return str(value)
    return "–" if value is None or value - value != 0 else decimal(value)
