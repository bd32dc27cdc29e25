"""Several runs on one command line: the members of an experiment's folder, and the runs of `--with`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from runner_core.base.errors import BadInput
from runner_core.base.text import counted, first_few
from runner_core.cli.load import load_network
from runner_core.cli.options import Parsed, PredictOptions
from runner_core.cli.start import Arguments, Started, seen_flags, start_from_run
from runner_core.config.values import flat_items
from runner_core.contract.project import Project, views_of
from runner_core.contract.records import AnyRecord
from runner_core.data.cache.folder import cache_root
from runner_core.data.cache.identity import Identities
from runner_core.data.duplicates import known_digests, read_digests
from runner_core.data.pipeline import RecordPipeline
from runner_core.output.experiments import ExperimentFolder
from runner_core.output.runfolder import RunFolder
from runner_core.plugins.builtin import named_run
from runner_core.plugins.settings import read_settings
from runner_core.training.checkpoints import read_manifest
from runner_core.training.ensembles import Ensemble, Member
from runner_core.training.seen import History, Seen

SELECTED = "selected.yaml"
"""File of the settings that `select` recommended, in the folder of the run or the experiment: `predict` uses it."""


def start_from_runs(name: str, command: str, kind: type[Parsed], arguments: Arguments) -> list[Started[Parsed]]:
    """Start a command that uses trained runs: the one that the user names first, and those of `--with`.

    Each has its own settings, and the flags of the command line over them.
    """
    seen = seen_flags(arguments)
    if seen.run is None or seen.help:
        return [start_from_run(name, command, kind, arguments)]
    return start_each(name, command, kind, arguments, (seen.run, *seen.with_))


def start_each(
    name: str, command: str, kind: type[Parsed], arguments: Arguments, named: Sequence[Path]
) -> list[Started[Parsed]]:
    """Start a command with each of these runs, and those of the experiments among them."""
    runs = [run for one in named for run in runs_of(named_run(name, one))]
    places = [RunFolder.open(run).path.resolve() for run in runs]
    if twice := [str(run) for run, place in zip(runs, places, strict=True) if places.count(place) > 1]:
        raise BadInput(f"{twice[0]} is named twice: name each run once")
    selected = _selected(named, kind, arguments)
    return [start_from_run(name, command, kind, arguments, run, selected) for run in runs]


def _selected(named: Sequence[Path], kind: type[Parsed], arguments: Arguments) -> Path | None:
    """Return the file of the settings that `select` recommended for what is named, if `predict` uses it, and say so.

    Whoever names several runs, or settings with --config, does not get them.
    """
    file = named[0] / SELECTED
    if not issubclass(kind, PredictOptions) or len(named) > 1 or seen_flags(arguments).config or not file.is_file():
        return None
    values = ", ".join(f"{key} {value}" for key, value in flat_items(read_settings(file).sections))
    print(f"settings that `select` chose: {values} ({file}; delete it, or use flags, for others)")
    return file


def runs_of(named: Path) -> list[Path]:
    """Return the runs of a cross-validation or a repetition; any other path alone.

    Raises BadInput for a sweep, whose runs answer another question, and for members that are not trained.
    """
    if not ExperimentFolder.at(named):
        return [named]
    experiment = ExperimentFolder.open(named)
    if experiment.kind == "sweep":
        raise BadInput(f"{named} is a sweep, whose runs differ on purpose: name those to average, RUN --with RUN …")
    if missing := [member.name for member in experiment.members if not experiment.done(member)]:
        raise BadInput(
            f"{named}: {counted(len(missing), 'run')} of {len(experiment.members)} not trained to the end "
            f"({first_few(missing)}): continue it with `--resume`, or name its runs one by one (--with)"
        )
    return [experiment.run(member).path for member in experiment.members]


def label(members: Sequence[Started[Any]], checkpoints: Sequence[str]) -> str:
    """Return text that names a run's checkpoint, or the runs that predict together with theirs."""
    if len(members) == 1:
        return f"{checkpoints[0]} of {run_of(members[0]).path}"
    names = [f"{run_of(m).path} ({checkpoint})" for m, checkpoint in zip(members, checkpoints, strict=True)]
    return f"{len(names)} runs together: {', '.join(names)}"


def weights_text(members: Sequence[Started[Any]], checkpoints: Sequence[str]) -> str:
    """Return text that no other networks have: the folds of two experiments have runs and steps of the same name."""
    runs = zip(map(run_of, members), checkpoints, strict=True)
    return ", ".join(f"{run.path.name}/{name} ({read_manifest(run.checkpoints / name).checksum})" for run, name in runs)


def views_text(project: Project) -> str:
    """Return text that says which views each prediction is averaged over, empty if over none."""
    views = views_of(project)
    return (
        f", averaged over {len(views) + 1} views ({', '.join(view.name for view in views)} and none)" if views else ""
    )


def folder_of(members: Sequence[Started[Any]], named: Path) -> Path:
    """Return the folder of the experiment that the user named, or of the first run."""
    return named if ExperimentFolder.at(named) else run_of(members[0]).path


def run_of(started: Started[Any]) -> RunFolder:
    assert started.run is not None
    return started.run


def seen_by(
    members: Sequence[Started[Any]], everything: Sequence[AnyRecord], records: Sequence[AnyRecord]
) -> tuple[dict[str, str | None], list[Seen]]:
    """Return the digests of the data's records, and for each run which of them it was trained on."""
    source = str(members[0].head["source"])
    histories = [
        History.of(run_of(member).path, str(member.head["source"]) if member.own_data else "") for member in members
    ]
    index = Identities(cache_root(members[0].setup.config.cache.dir))
    digests = dict(zip((record.key for record in everything), known_digests(index, everything), strict=True))
    read = everything if any(history.foreign(source) for history in histories) else records
    digests |= zip((record.key for record in read), read_digests(index, read), strict=True)
    return digests, [history.seen(everything, [*digests.values()], source) for history in histories]


def notes_of_training(members: Sequence[Started[Any]], records: Sequence[AnyRecord]) -> Iterator[str]:
    """Yield a note if some of the runs that predict together were trained on these very files."""
    trained = [
        {digest for one in History.of(run_of(member).path, "").runs for digest in one.contents.values()}
        for member in members
    ]
    index = Identities(cache_root(members[0].setup.config.cache.dir))
    digests = read_digests(index, records)
    counts = {r.key: sum(d in own for own in trained) for r, d in zip(records, digests, strict=True) if d is not None}
    if seen := [f"{key} by {count} of {len(members)} runs" for key, count in counts.items() if count]:
        yield f"networks predict files that they were trained on ({first_few(seen)}); `evaluate` leaves them out"


def load_ensemble(members: Sequence[Started[Any]]) -> tuple[Ensemble, list[str]]:
    """Return the networks of several runs as one, and the names of their checkpoints."""
    found, checkpoints = [], []
    for started in members:
        trained, checkpoint = load_network(started, started.named)
        pipeline = RecordPipeline.of(started.setup)
        found.append(Member(str(run_of(started).path), pipeline, trained.infer))
        checkpoints.append(checkpoint)
    return Ensemble(found), checkpoints
