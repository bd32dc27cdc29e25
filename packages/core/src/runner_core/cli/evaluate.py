"""Whole-record scores of one process, worst cases first, and what those of several share (`evaluate_parts`)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner_core.base.errors import BadInput, did_you_mean
from runner_core.base.progress import record_bar
from runner_core.base.text import counted, decimal
from runner_core.base.writing import replace_json
from runner_core.cli.ensembles import folder_of, label, load_ensemble, run_of, seen_by, views_text
from runner_core.cli.json_output import show_json, written_result
from runner_core.cli.load import load_networks
from runner_core.cli.options import EvaluateOptions
from runner_core.cli.start import Started
from runner_core.contract import Infer
from runner_core.contract.project import Project
from runner_core.contract.records import AnyRecord, Record
from runner_core.contract.setup import Setup
from runner_core.data.pipeline import RecordPipeline
from runner_core.experiments.result import write_page
from runner_core.output.evaluations import FACTS_FILE, UNSEEN, facts, new_folder, trained_on_text
from runner_core.output.experiments import ExperimentFolder
from runner_core.output.report import write_report
from runner_core.output.runfolder import claimed
from runner_core.plugins.builtin import is_builtin, statement
from runner_core.training.data import data_folder, read_records
from runner_core.training.ensembles import Ensemble
from runner_core.training.evaluation import SCORES_FILE, Scores, draw_figures, figures_count, write_scores
from runner_core.training.evaluation import evaluate as score_records
from runner_core.training.seen import SPLIT_FILE, SavedSplit, joined_split, read_split

SPLITS = ("validation", "train", "test", "all")
SCORED = "scored"
_SHOWN_ROWS = 20


def evaluate_with(members: Sequence[Started[EvaluateOptions]]) -> tuple[Scores, Path]:
    """Score the records, show and write the scores, and return them and their folder.

    Several runs predict together, and a record is predicted by those that were not trained on it.
    """
    work = prepare(members)
    done: list[Path] = []
    with _folder(work, done) as out:
        print(work.text())
        with record_bar("scoring", len(work.records), sys.stdout) as bar:
            scores = score_records(
                *(RecordPipeline.of(work.setup), work.network, work.records),
                untrained=work.untrained,
                trained_on=work.trained_on,
                bar=bar,
            )
        written = show_and_write(work, scores, out)
    conclude(work, scores, written, done[0])
    return scores, done[0]


@dataclass(frozen=True)
class Evaluation:
    """An evaluation to be done: the networks of `members` on `records`."""

    members: Sequence[Started[EvaluateOptions]]
    network: Infer | Ensemble
    untrained: Infer | None
    checkpoints: Sequence[str]
    records: Sequence[Record]
    trained_on: Callable[[AnyRecord], bool]
    contents: Mapping[str, str | None]
    """Digests of the records' images, by key."""
    facts: dict[str, Any]
    """What evaluation.json says."""
    notes: Sequence[str]
    """What is to be said after the scores."""

    @property
    def options(self) -> EvaluateOptions:
        return self.members[0].options

    @property
    def setup(self) -> Setup:
        return self.members[0].setup

    @property
    def place(self) -> Path:
        """The folder of the run or the experiment, which gets the result."""
        return folder_of(self.members, self.options.run)

    def text(self) -> str:
        """Return what is evaluated, in words."""
        records = f"{counted(len(self.records), 'record')} ({self.facts['split']})"
        text = f"{records} with {label(self.members, self.checkpoints)}{views_text(self.setup.project)}"
        if isinstance(self.network, Ensemble) and any(map(self.network.left_out, self.records)):
            text += "\neach record is predicted by the runs that were not trained on it"
        return text


def prepare(members: Sequence[Started[EvaluateOptions]]) -> Evaluation:
    """Load the networks and find the records, and which of them were trained on."""
    started = members[0]
    options, setup = started.options, started.setup
    side = side_of(options, setup.project)
    sides = joined_split([read_split(run_of(member).path) for member in members])
    # before the records are read: `records` may use statistics
    network, untrained, checkpoints = _networks(members)
    everything, records = split_records(started, side, sides)
    digests, seen = seen_by(members, everything, records)
    trained_on: Callable[[AnyRecord], bool] = seen[0]
    if isinstance(network, Ensemble):
        network = network.knowing(seen)
        network.refuse_mixed(records)
        trained_on = network.trained_on
    contents = {record.key: digests[record.key] for record in records}
    found = facts(
        data=str(started.head["source"]),
        split=side,
        checkpoint=checkpoints[0] if len(members) == 1 else label(members, checkpoints),
        contents=contents,
        settings=started.changed,
        versions=setup.engine.versions(),
    )
    unknown = f"{run_of(started).path} has no {SPLIT_FILE}: it is not known whether any of these records was trained on"
    notes = [unknown] if sides is None else []
    notes += dict.fromkeys(f"NOTE: {note}" for one in seen for note in one.notes)
    return Evaluation(members, network, untrained, checkpoints, records, trained_on, contents, found, notes)


def conclude(work: Evaluation, scores: Scores, written: Sequence[Path], folder: Path) -> None:
    """Say where the result is, write the report that shows it, and name the records that could not be scored."""
    run, place = run_of(work.members[0]), work.place
    if is_builtin(run.path):
        print(statement(run.path))
    if text := trained_on_text([row.trained_on for row in scores.rows]):
        print(text)
    for note in work.notes:
        print(note)
    print(f"written: {', '.join(p.name for p in written)} in {folder}")
    if folder.absolute().parent == place.absolute():  # the report shows evaluations in its own folder
        print(f"report: {write_report(run) if place == run.path else write_page(ExperimentFolder.open(place))}")
    show_written(work, folder)
    for error in scores.errors:
        print(f"warning: not scored: {error}", file=sys.stderr)
    if scores.errors:
        print(f"runner: {counted(len(scores.errors), 'record')} could not be scored (see above)", file=sys.stderr)


def show_written(work: Evaluation, folder: Path) -> None:
    """Print the evaluation in `folder` as JSON if --json asks for it."""
    if work.options.json:
        facts_file, scores_file = (written_result(folder / name) for name in (FACTS_FILE, SCORES_FILE))
        show_json({"folder": folder, **facts_file, "scores": scores_file})


def _networks(members: Sequence[Started[EvaluateOptions]]) -> tuple[Infer | Ensemble, Infer | None, list[str]]:
    """Return the network of one run or of several, the untrained network if `judge` wants it, and the checkpoints."""
    if len(members) > 1:
        ensemble, checkpoints = load_ensemble(members)
        return ensemble, None, checkpoints
    trained, untrained, checkpoint = load_networks(members[0], members[0].named, print)
    return trained.infer, untrained, [checkpoint]


@contextmanager
def _folder(work: Evaluation, done: list[Path]) -> Iterator[Path]:
    """Yield the folder to write into, and add its path to `done` afterwards.

    It is the user's new or empty folder, or else a new one in the folder of the run or the experiment; below `runs` if
    that is in a package.
    """
    if work.options.out is None and not is_builtin(work.place):
        with new_folder(work.place, work.facts, done) as folder:
            yield folder
        return
    with claimed(work.setup.name, "evaluate", work.options.out) as folder:
        yield folder
        replace_json(folder / FACTS_FILE, work.facts)
    done.append(folder)


def show_and_write(work: Evaluation, scores: Scores, out: Path) -> list[Path]:
    """Print the scores, write them and draw figures, and return the files."""
    for line in [*score_table(scores), *further_tables(scores)]:
        print(line)
    for key, finding in scores.remarks:
        print(f"{finding.level}: {key}: {finding.message}")
    with record_bar("drawing", figures_count(scores), sys.stdout) as bar:
        pipeline = RecordPipeline.of(work.setup)
        return write_scores(scores, out) + draw_figures(pipeline, work.network, scores, out, bar)


def side_of(options: EvaluateOptions, project: Project) -> str:
    """Return the split to score; `SCORED` means the records that the project chooses."""
    if options.split is None:
        return "all" if options.data else SCORED if project.judging().scored is not None else "validation"
    if options.split not in SPLITS:
        hint = did_you_mean(options.split, SPLITS)
        raise BadInput(f"--split {options.split!r}: there is no such split{hint} ({', '.join(SPLITS)})")
    return options.split


def score_table(scores: Scores) -> Iterator[str]:
    """Yield the worst records, then the scores of the whole set beside the trivial baseline's and other methods'."""
    rows = scores.rows if scores.names else []
    titles = ["worst first", *scores.further, *([f"{UNSEEN}: baseline"] if scores.unseen else [])]
    width = max(map(len, [*titles, *(row.record.key for row in rows)]))
    names = scores.shown_names
    cells = [max(8, len(name)) for name in names]

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
    if scores.unseen:
        yield line(UNSEEN, dict(scores.unseen))
    if scores.unseen_baseline:
        yield line(f"{UNSEEN}: baseline", dict(scores.unseen_baseline))
    for method, values in scores.further.items():
        yield line(method, dict(values))


def further_tables(scores: Scores) -> Iterator[str]:
    """Yield the project's own tables: the first column aligned to the left, numbers to the right."""
    for table in scores.tables:
        texts = [list(table.columns), *([_cell(c) for c in row] for row in table.rows)]
        widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
        yield ""
        yield table.title
        for first, *others in texts:
            cells = [f"{text:>{width}}" for text, width in zip(others, widths[1:], strict=True)]
            yield "  ".join([f"{first:<{widths[0]}}", *cells])


def make_folder(path: Path) -> None:
    """Make a folder for results. Raises BadInput if that fails."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}; name another folder with --out") from error


def split_records(
    started: Started[Any], side: str, sides: SavedSplit | None
) -> tuple[Sequence[Record], Sequence[Record]]:
    """Return all records, and the records of a split as it was in training; newer records belong to no split."""
    setup, run = started.setup, started.run
    assert run is not None
    records = read_records(setup, data_folder(setup, print), print)
    if side == "all":
        return records, records
    if sides is None:
        raise BadInput(f"{run.path} has no {SPLIT_FILE}, so its {side} records are not known; --split all scores all")
    keys = {name: frozenset(of_side) for name, of_side in sides.items()}
    by_side = {name: [r for r in records if r.key in of_side] for name, of_side in keys.items()}
    found = setup.project.judging().to_score(by_side) if side == SCORED else by_side.get(side)
    if not found:
        raise BadInput(f"there are no {side} records of {run.path} in this data; --split all scores every record")
    if new := len({r.key for r in records} - {r.key for of_side in by_side.values() for r in of_side}):
        print(f"{counted(new, 'record')} came after training, so no split contains them; --split all scores them too")
    return records, found


def _cell(value: str | float | None) -> str:
    if isinstance(value, (str, int)):
        return str(value)
    return "–" if value is None or value - value != 0 else decimal(value)
