"""`runner PROJECT export RUN`: write a trained network for use without runner, in a format that `--to` names.

The framework's own format is the engine's work. Others are functions of extensions, which get an `ExportJob`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from importlib.metadata import EntryPoint
from pathlib import Path

from runner_core.base.errors import BadInput, RunnerError, did_you_mean
from runner_core.base.files import refuse_full_folder
from runner_core.base.writing import replace_json
from runner_core.cli.ensembles import load_ensemble, run_of, start_from_runs, views_text
from runner_core.cli.evaluate import make_folder, split_records
from runner_core.cli.load import load_state
from runner_core.cli.options import ExportOptions
from runner_core.cli.start import Started
from runner_core.contract import Cropped
from runner_core.contract.exporting import ExportJob, FrameworkFormat, Write
from runner_core.contract.project import views_of
from runner_core.contract.records import Record
from runner_core.contract.run import State
from runner_core.data.pipeline import CroppedRecord, RecordPipeline, local
from runner_core.output.evaluations import remove_leftovers, write_whole
from runner_core.output.runfolder import IMPORTED
from runner_core.plugins.builtin import CARD
from runner_core.plugins.discovery import export_formats, find_project
from runner_core.tools.card import collect, write_card
from runner_core.tools.hub_folder import HUB_FOLDER, write_hub_folder
from runner_core.training.checkpoints import restoring
from runner_core.training.seen import read_split

CARDS = (CARD, "NOTICE")
"""What built-in weights bring along, which goes on with their export."""
ENSEMBLE_FILE = "ensemble.json"
"""Beside the exported networks of several runs: how they predict together."""
OWN_FORMATS = {"torch": "safetensors", "keras": "keras"}
"""The formats that the engines write."""
_INSTALL = "`uv pip install -e packages/export` in runner's repository"
SCRIPT = "predict.py"
"""The script of an export that predicts as the project does, with its views."""


def export(name: str, arguments: Sequence[str]) -> int:
    export_with(start_from_runs(name, "export", ExportOptions, arguments))
    return 0


def export_with(members: Sequence[Started[ExportOptions]]) -> Sequence[Path]:
    """Write the network for use without runner, and return the files; each of several into a folder of its own."""
    out = members[0].options.out
    write = _format(members[0])
    if write is None and members[0].options.data is not None:  # no error: the run's own data may have moved
        print("NOTE: nothing is compared on --data: only other formats of --to, such as onnx, are")
    remove_leftovers(out)
    refuse_full_folder(out, "name another with --out")
    if len(members) == 1:
        return _export(members[0], write, out)
    ensemble, checkpoints = load_ensemble(members)  # refuses runs that do not fit
    names = [f"{number}-{run_of(member).path.name}" for number, member in enumerate(members, 1)]
    written = [path for name, member in zip(names, members, strict=True) for path in _export(member, write, out / name)]
    about = {
        "project": ensemble.members[0].project.name,
        "how": ensemble.how,
        "views": [view.name for view in views_of(ensemble.members[0].project)],
        "members": [
            {"folder": name, "run": str(run_of(member).path), "checkpoint": checkpoint}
            for name, member, checkpoint in zip(names, members, checkpoints, strict=True)
        ],
    }
    replace_json(out / ENSEMBLE_FILE, about)
    print(f"{out / ENSEMBLE_FILE} says how the {len(names)} networks predict together")
    return [*written, out / ENSEMBLE_FILE]


def _format(started: Started[ExportOptions]) -> Write | None:
    """Return the function that writes the format of `--to`; None for the engine's own format and the Hub's folder.

    Where an extension compares the engine's own format, `--to` with its name asks for that. Raises BadInput, with what
    to do, for a format that is not installed, that is another framework's, or that the project refuses; this imports no
    framework.
    """
    asked, project = started.options.to, started.setup.project
    framework, own = project.framework, OWN_FORMATS[project.framework]
    if asked in ("", HUB_FOLDER):
        return None
    formats = {key: entry for key, entry in export_formats().items() if key not in {*OWN_FORMATS.values()} - {own}}
    if asked in formats:
        try:
            found: Write = formats[asked].load()
        except ImportError as error:
            raise BadInput(f"--to {asked}: {error}; {_INSTALL} installs what it needs") from error
        if isinstance(found, FrameworkFormat) and found.framework != framework:
            others = dict.fromkeys((own, HUB_FOLDER, *(key for key in formats if _takes(formats[key], framework))))
            raise BadInput(
                f"--to {asked}: project {project.name} uses {framework}, and this format is written from "
                f"{found.framework}'s networks alone: take one of {', '.join(others)}"
            )
        if reason := project.standalone().refused.get(asked):
            raise BadInput(f"--to {asked}: project {project.name} cannot be exported so: {reason}")
        return found
    if asked == own:
        return None
    if asked in OWN_FORMATS.values():
        raise BadInput(f"--to {asked}: project {project.name} has {framework}'s own, {own}")
    there = list(dict.fromkeys((own, HUB_FOLDER, *formats)))
    hint = did_you_mean(asked, there)
    more = "" if formats else f"; {_INSTALL} adds onnx, onnx-int8, openvino and torch-export"
    raise BadInput(f"--to {asked}: there is no such format here{hint} ({', '.join(there)}){more}")


def _takes(entry: EntryPoint, framework: str) -> bool:
    """Return whether a format can be imported here and takes networks of this framework."""
    with suppress(ImportError):
        found = entry.load()
        return not isinstance(found, FrameworkFormat) or found.framework == framework
    return False


def _export(started: Started[ExportOptions], write: Write | None, out: Path) -> Sequence[Path]:
    state, checkpoint = load_state(started, started.named)
    new = not out.exists()
    make_folder(out)
    try:
        with restoring(checkpoint):
            written = write_whole(out, partial(_exported, started, write, state, checkpoint))
    except RunnerError:
        if new:
            out.rmdir()
        raise
    print(f"{checkpoint.name}: {', '.join(str(path) for path in written)}")
    if (text := views_text(started.setup.project)) and out / SCRIPT not in written:
        print(f"NOTE: `predict` and `evaluate` use this network{text}; the export is the network alone")
    return written


def _exported(
    started: Started[ExportOptions], write: Write | None, state: State, checkpoint: Path, folder: Path
) -> Sequence[Path]:
    """Write the network, its card, and what the format adds.

    Raises BadInput for an unknown view, which a project may know only with its statistics.
    """
    setup, options = started.setup, started.options
    if write is None:
        written = setup.engine.export(setup, state, folder)
    else:
        written = write(_job(started, state, checkpoint, folder))
    views_of(setup.project)
    written = [*written, *_card(started, state, checkpoint, folder, written)]
    if options.to == HUB_FOLDER:
        written += write_hub_folder(setup, folder, options.license)
    return written


def _card(
    started: Started[ExportOptions], state: State, checkpoint: Path, folder: Path, exported: Sequence[Path]
) -> Sequence[Path]:
    """Write the network's card; of weights from elsewhere, copy the one that came with them."""
    setup, run, options = started.setup, run_of(started), started.options
    if run.read_summary().get("status") == IMPORTED:  # how it was trained is not known here
        return [Path(shutil.copyfile(run.path / name, folder / name)) for name in CARDS if (run.path / name).is_file()]
    task = find_project(setup.name).summary()
    facts = collect(setup, run, checkpoint, state, task, options.anonymous) | {"license": options.license}
    return write_card(run, facts, folder, exported)


def _job(started: Started[ExportOptions], state: State, checkpoint: Path, folder: Path) -> ExportJob:
    """Return what the function of a format gets: the network, and the records to compare on.

    These are the run's validation records; all records of `--data`, if that is not what the run was trained on; for
    weights that came without data the phantom's.
    """
    setup, run = started.setup, run_of(started)
    trained = setup.engine.load(setup, state)
    imported = run.read_summary().get("status") == IMPORTED
    side = "validation" if started.own_data and not imported else "all"
    _, records = split_records(started, side, read_split(run.path))
    pipeline = RecordPipeline.of(setup)

    def each() -> Iterator[tuple[Record, Cropped]]:
        for record in records:
            with local(setup.project, record) as here:
                yield here, CroppedRecord(pipeline, here)

    place = " of the phantom" if setup.source is None else " of --data" if started.options.data is not None else ""
    source = f"records{place}" if side == "all" else f"validation records{place}"
    own = partial(setup.engine.export, setup, state, folder)
    return ExportJob(setup.project, trained, checkpoint.name, each, [r.key for r in records], source, folder, own)
