"""`runner PROJECT predict RUN INPUT…`: use a trained network."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from reprlib import repr as shortened
from typing import Any

from runner_core.base.errors import BadInput
from runner_core.base.files import refuse_special_file
from runner_core.base.location import Location, Url, location, refuse_secrets
from runner_core.base.parts import Part
from runner_core.base.progress import Estimate, record_bar
from runner_core.base.text import counted, duration
from runner_core.cli.blocks import blocks_of, predict_in_blocks, split_off_blocks
from runner_core.cli.ensembles import label, load_ensemble, notes_of_training, run_of, start_from_runs, views_text
from runner_core.cli.evaluate import make_folder
from runner_core.cli.load import load_network
from runner_core.cli.options import PredictOptions
from runner_core.cli.predict_parts import Written, divided
from runner_core.cli.start import Started, refuse_url
from runner_core.contract import Infer
from runner_core.contract.project import Project, views_of
from runner_core.contract.records import AnyRecord, Decoded, Record
from runner_core.contract.run import collect_left_out
from runner_core.contract.setup import Setup
from runner_core.data.pairs.content import holds_classes
from runner_core.data.pipeline import CroppedRecord, RecordPipeline, local
from runner_core.output.evaluations import remove_leftovers, write_whole
from runner_core.output.label_tables import write_label_tables
from runner_core.plugins.builtin import is_builtin, statement
from runner_core.training.ensembles import Ensemble, counting, predict_with

_WORTH_SAYING = 20.0
"""Shortest work (seconds) whose duration is announced."""


def predict(name: str, arguments: Sequence[str]) -> int:
    """Predict every input that can be predicted; name the others, and then return exit code 2."""
    members = start_from_runs(name, "predict", PredictOptions, arguments)
    started = members[0]
    options, setup = started.options, started.setup
    network, checkpoints = load_predictor(members)  # first: `inputs` may use statistics
    if options.disagreement:
        refuse_alone(network)
    if options.label_tables:
        refuse_no_labels(setup.project)
    Part.of(options.part)  # refuses another form
    records, failed = _inputs(setup, options)
    if not records:
        return _exit_code(failed) or BadInput.exit_code
    make_folder(options.out)
    remove_leftovers(options.out)
    if options.label_tables:
        print("labels:", *write_label_tables(setup.project.pictures().labels, options.out))
    print(f"{counted(len(records), 'record')} with {label(members, checkpoints)}{views_text(setup.project)}")
    for run in {run_of(member).path for member in members}:
        if is_builtin(run):
            print(statement(run))
    for note in notes_of_training(members, records) if len(members) > 1 else ():
        print(f"NOTE: {note}")
    large, records = split_off_blocks(setup.project, records)
    failed += predict_in_blocks(members, network, checkpoints, large)
    if not options.part or not records:
        written = Written(setup.project, options.out)
        return _exit_code(failed + (_predict_whole(members, network, records, written) if records else 0))
    with divided(members, checkpoints, records) as part:
        return _exit_code(failed + _predict_whole(members, network, part.left, part))


def _predict_whole(
    members: Sequence[Started[PredictOptions]],
    network: Infer | Ensemble,
    records: Sequence[AnyRecord],
    written: Written,
) -> int:
    """Predict records that memory holds, and return how many could not be predicted."""
    options, setup = members[0].options, members[0].setup
    pipeline, failed = RecordPipeline.of(setup), 0
    collect, check = setup.project.judging().collect, setup.project.checks().prediction
    masks = 0
    with record_bar("predicting", len(records), sys.stdout, partial(print, flush=True)) as bar:
        network = counting(_estimate(setup.project, records, len(members)), counting(bar, network))
        for record in records:
            bar.begin(record.key)
            try:
                with local(setup.project, record) as here:
                    cropped = CroppedRecord(pipeline, here, partial(refuse_mask, setup.project, record, options.inputs))
                    if options.disagreement and isinstance(network, Ensemble):
                        prediction, disagreement = network.predict_with_spread(cropped)
                        further = partial(write_disagreement, disagreement, here.key)
                    else:
                        prediction, further = predict_with(setup.project, cropped, network), None
                    del cropped
                    files = write_prediction(setup.project, here, prediction, options.out, further)
                    written.add(record, files)
                    remarks = () if check is None else tuple(check(here, prediction))
            except MaskFound as error:
                masks += 1
                written.add(record, ())
                print(f"note: left out: {error}")
                continue
            except BadInput as error:
                failed += 1
                written.add(record, (), str(error))
                print(f"warning: not predicted: {error}", file=sys.stderr)
                continue
            finally:
                bar.done()
            print(record.key if collect else f"{record.key}: {', '.join(map(str, files))}")
            for finding in remarks:
                print(f"{finding.level}: {record.key}: {finding.message}")
    written.end()
    _report_masks(masks, len(records), bool(options.part))
    return failed


def _estimate(project: Project, records: Sequence[Record], networks: int) -> Estimate:
    """Return what says how long the networks' calls will take, if the project counts them."""
    calls, combining = 0, project.combining()
    for record in records:
        with suppress(BadInput):  # told when it is predicted
            calls += combining.calls(record) if combining and combining.calls else 0
    calls *= networks * (1 + len(views_of(project)))

    def say(seconds: float, each: float) -> None:
        if seconds >= _WORTH_SAYING:
            text = f"about {duration(seconds)} for {calls:,} calls of the network, {each:.2g} s each"
            print(f"{text}; post-processing comes on top", flush=True)

    return Estimate(calls, say)


def _report_masks(masks: int, count: int, part: bool) -> None:
    """Say below a long list how many of `count` records were left out as masks; raise BadInput if all were.

    They may all be masks in a part of the records.
    """
    if masks == count and not part:
        raise BadInput("nothing was predicted: all files found look like masks (see above)")
    if masks:
        print(f"note: {counted(masks, 'file')} of {count:,} left out as masks (see above)", file=sys.stderr)


class MaskFound(BadInput):
    """An image that was found in a folder looks like a mask."""


def refuse_mask(project: Project, record: AnyRecord, places: Sequence[object], decoded: Decoded) -> None:
    """Raise MaskFound if a record looks like a mask; not if the user named the file itself, or a table of files."""
    pairs, files = project.dataset.pairs, _files(record)
    if pairs is None or not pairs.labelled:
        return
    named = {Path(str(place)).absolute() for place in places}
    if named.isdisjoint(files) and any(place.is_dir() for place in named) and holds_classes(decoded):
        raise MaskFound(
            f"{files[0]} holds only a few whole numbers, as a mask does; if it is an image, name the file itself"
        )


def load_predictor(members: Sequence[Started[Any]]) -> tuple[Infer | Ensemble, list[str]]:
    """Return the network of one run or of several, and their checkpoints."""
    if len(members) > 1:
        return load_ensemble(members)
    trained, checkpoint = load_network(members[0], members[0].named)
    return trained.infer, [checkpoint]


def refuse_alone(network: Infer | Ensemble) -> None:
    """Raise BadInput if there is no disagreement to write."""
    if not isinstance(network, Ensemble):
        raise BadInput("--disagreement needs several runs: name a cross-validation or a repetition, or --with RUN")
    network.refuse_without_map()


def refuse_no_labels(project: Project) -> None:
    """Raise BadInput if predictions hold no labels of which a table could be written."""
    if not project.pictures().labels:
        raise BadInput(f"--label-tables: {project.name} names no labels (Pictures.labels): leave it out")


def write_disagreement(write: Callable[[Path], Sequence[Path]], key: str, folder: Path) -> Sequence[Path]:
    """Write KEY_disagreement in the project's formats."""
    stem = folder / f"{key}_disagreement"
    stem.parent.mkdir(parents=True, exist_ok=True)
    return write(stem)


def write_prediction(
    project: Project,
    record: Record,
    prediction: Any,
    out: Path,
    further: Callable[[Path], Sequence[Path]] | None = None,
) -> list[Path]:
    """Write a prediction's files, and those of `further`, into a folder, all or none, and return them."""

    def write(folder: Path) -> Sequence[Path]:
        written = _write(project, record, prediction, folder)
        return written if further is None else [*written, *further(folder)]

    return write_whole(out, write)


def _exit_code(failed: int) -> int:
    """Report how many inputs failed, and return the exit code."""
    if failed:
        print(f"runner: {counted(failed, 'input')} could not be predicted (see above)", file=sys.stderr)
    return BadInput.exit_code if failed else 0


def _write(project: Project, record: Record, prediction: Any, folder: Path) -> Sequence[Path]:
    """Return the files that the project's `write` wrote. Raises BadInput if it does not return them."""
    written = project.write(record, prediction, folder)
    if isinstance(written, Sequence) and all(isinstance(path, Path) for path in written):
        return written
    raise BadInput(
        f"project {project.name}: `write` must return the files that it wrote, a list of Path, not {shortened(written)}"
    )


def _inputs(setup: Setup, options: PredictOptions) -> tuple[list[AnyRecord], int]:
    """Return the records of every input, each once, and the number of inputs that failed."""
    if not options.inputs:
        raise BadInput("name the files or folders to predict after the run")
    records: dict[str, AnyRecord] = {}
    failed = 0
    for place in map(location, options.inputs):
        try:
            for record in find_inputs(setup, place):
                _add(records, record, options.out)
        except BadInput as error:
            failed += 1
            print(f"warning: not predicted: {error}", file=sys.stderr)
    return list(records.values()), failed


def find_inputs(setup: Setup, place: Location) -> Sequence[AnyRecord]:
    """Return the records of a file, a folder or a URL; notes name the files that are left out."""
    if isinstance(place, Url):
        refuse_url(setup.project, place, blocks_of(setup.project) is not None)
    elif not refuse_special_file(place).exists():
        raise BadInput(f"{place}: there is no such file or folder")
    with collect_left_out() as left_out:
        records = setup.project.inputs(place)
    for finding in left_out:
        print(f"note: {finding.message}")
    return records


def _add(records: dict[str, AnyRecord], record: AnyRecord, out: Path) -> None:
    """Add a record, unless its predictions would overwrite others or lie beside the input files."""
    files = _files(record)
    for place in files:
        if isinstance(place, Url):
            refuse_secrets(place)
    refuse_beside(record, out)
    other = records.setdefault(record.key, record)
    if _files(other) != files:
        first = next(iter(other.files.values()))
        raise BadInput(f"{files[0]} has the same name as {first} ({record.key}); predict it into another folder")


def refuse_beside(record: AnyRecord, out: Path) -> None:
    """Raise BadInput if predictions written to `out` would lie beside the record's own files."""
    files = _files(record)
    if any(isinstance(file, Path) and file.resolve().parent == out.resolve() for file in files):
        raise BadInput(f"{files[0]} is in the output folder {out}; name another with --out, so that no file is lost")


def _files(record: AnyRecord) -> list[Location]:
    return [file.absolute() if isinstance(file, Path) else file for file in record.files.values()]
