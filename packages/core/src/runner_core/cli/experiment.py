"""`runner PROJECT crossval` and `repeat`: several trainings that answer one question, in one folder."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from runner_core.base.calling import runner
from runner_core.base.errors import BadInput, RunnerError, Stopped, Unhealthy
from runner_core.base.files import refuse_full_folder
from runner_core.base.location import shell_word
from runner_core.base.parts import Part
from runner_core.base.text import counted
from runner_core.base.writing import to_json, whole_folder
from runner_core.cli.json_output import show_json, written_result
from runner_core.cli.keywords import Keywords
from runner_core.cli.options import CrossvalOptions, ExperimentOptions, FolderOptions, RepeatOptions, TrainOptions
from runner_core.cli.parsing import AUTO, LATEST, Peek
from runner_core.cli.start import Arguments, Started, seen_flags, start_new
from runner_core.cli.train import train_with
from runner_core.contract import Json
from runner_core.contract.records import AnyRecord
from runner_core.contract.run import collect_left_out
from runner_core.contract.setup import Setup
from runner_core.data.pipeline import RecordPipeline
from runner_core.data.splits import SPLITS, split
from runner_core.experiments.folds import column_of, groups_by, make_folds, refuse_ambiguous
from runner_core.experiments.members import Runner, Words, progress, write_split
from runner_core.experiments.result import SUMMARY_FILE, conclude
from runner_core.output.experiments import FILE, SETTINGS_FILE, ExperimentFolder, Member
from runner_core.output.pictures import file_name
from runner_core.output.runfolder import RUNS, free_path
from runner_core.plugins.settings import differences, save
from runner_core.training.data import data_folder, read_records, records_seen

_PLUGINS = ("extension", "no_extension")
_FOLDS, _SEEDS = "5", 5
Kind = TypeVar("Kind", bound=FolderOptions)


@dataclass(frozen=True)
class Plan:
    """The members of a new experiment, and what decides them.

    `splits` maps the names of split files, which are the members' `data.split`, to the records of each split.
    """

    members: Sequence[Member]
    splits: Mapping[str, Mapping[str, Sequence[AnyRecord]]]
    about: Mapping[str, Json]


Planner = Callable[[Started[Kind], Sequence[AnyRecord]], Plan]


def crossval(name: str, arguments: Sequence[str]) -> int:
    experiment_with(name, "crossval", arguments)
    return 0


def repeat(name: str, arguments: Sequence[str]) -> int:
    experiment_with(name, "repeat", arguments)
    return 0


def experiment_with(
    name: str, kind: str, arguments: Arguments, begun: Callable[[ExperimentFolder], None] = lambda folder: None
) -> None:
    """Start or continue an experiment, train its members, and pool their scores; `begun` gets its folder.

    Raises Unhealthy, after all that, if a member did not end well.
    """
    options, plan = _KINDS[kind]
    started, folder = start(name, kind, options, arguments)
    Part.of(started.options.part)  # refuses another form
    with claimed(started, folder, kind, plan, started.options.part) as found:
        begun(found)
        _train_members(found, started, new=folder is None)


def _train_members(folder: ExperimentFolder, started: Started[ExperimentOptions], *, new: bool) -> None:
    """Train the members that are not done, and pool the scores of all."""
    own = Part.of(started.options.part).share(folder.members)
    left = [member for member in own if not folder.done(member)]
    if len(left) < len(own):
        print(f"{len(own) - len(left)} of {counted(len(own), 'run')} done already")
    trainer = Runner(folder, shared_words(started), started.setup, print)
    with going_on(folder, started.options):
        try:
            failed = trainer.train_all(left, started.options.at_once, partial(_train, started.setup.name))
        except (Stopped, KeyboardInterrupt, SystemExit):
            raise
        except RunnerError as error:
            if any(map(folder.done, folder.members)):  # what there is until now
                conclude(folder, started.setup, print, folder.groups())
            elif new and isinstance(error, BadInput) and not started.options.part:
                _discard(folder)
            raise
    conclude(folder, started.setup, print, folder.groups())
    if started.options.json:
        show_json({"folder": folder.path, **written_result(folder.path / SUMMARY_FILE)})
    if failed:
        raise Unhealthy(f"{counted(len(failed), 'run')} did not end well:\n" + "\n".join(failed))


@contextmanager
def claimed(
    started: Started[Kind], folder: ExperimentFolder | None, kind: str, plan: Planner[Kind], part: str = ""
) -> Iterator[ExperimentFolder]:
    """Yield the experiment, new or continued; no other process trains these members meanwhile.

    Raises BadInput if one does, before any record is read.
    """
    held = folder or begin(started, kind, plan)
    with held.claimed(part):
        yield held if folder is None else continued(held, started)


def _discard(folder: ExperimentFolder) -> None:
    """Remove a new experiment if none of its runs has begun: its settings are refused, and would be at each start."""
    if not any(map(folder.begun, folder.members)):
        shutil.rmtree(folder.path, ignore_errors=True)


@contextmanager
def going_on(folder: ExperimentFolder, options: Kind) -> Iterator[None]:
    """Add to an interruption what is done, and the command that goes on in the same way."""
    try:
        yield
    except (Stopped, KeyboardInterrupt, SystemExit) as stop:
        given = {name: getattr(options, name, None) for name in ("trials", "minutes", "part", "at_once")}
        words = [f" --{name.replace('_', '-')} {value}" for name, value in given.items() if value]
        command = f"{runner()} {folder.project} {folder.kind} --resume {shell_word(folder.path)}{''.join(words)}"
        again = f"{progress(ExperimentFolder.open(folder.path))}; go on with: {command}"
        if isinstance(stop, Stopped):
            stop.args = (f"{str(stop).partition(chr(10))[0]}\n{again}",)
        else:
            stop.add_note(again)
        raise


def _train(name: str, words: Words) -> int:
    return train_with(start_new(name, "train", TrainOptions, words), lambda: words)


# ---------------------------------------------------------------- start or continue


def start(
    name: str, kind: str, options: type[Kind], arguments: Arguments
) -> tuple[Started[Kind], ExperimentFolder | None]:
    """Parse the command, a line or keywords; return the experiment to continue too, or None for a new one."""
    seen, folder = seen_flags(arguments), None
    if seen.resume == AUTO and seen.out is None and not seen.help:
        raise BadInput(f"--resume auto needs the folder: {runner()} {name} {kind} --resume auto --out DIR …")
    if seen.resume == AUTO:
        folder = ExperimentFolder.open(seen.out) if seen.out and ExperimentFolder.at(seen.out) else None
    elif seen.resume is not None:
        folder = _latest(name, kind) if seen.resume == LATEST else ExperimentFolder.open(Path(seen.resume))
    added: dict[str, Any] = {}
    if folder is not None:
        kept, typed = [folder.about.get(name, []) for name in _PLUGINS], [[*seen.extension], [*seen.no_extension]]
        if any(typed) and typed != kept:
            raise BadInput(f"{folder.path} was started with other extensions ({kept[0]}, without {kept[1]})")
        if not any(typed):
            added |= dict(zip(_PLUGINS, map(tuple, kept), strict=True))
        if (folder.project, folder.kind) != (name, kind):
            raise BadInput(
                f"{folder.path} is of `runner {folder.project} {folder.kind}`, not of `runner {name} {kind}`"
            )
        if seen.config is None and seen.preset is None:
            added["config"] = folder.settings_file
    started = start_new(name, kind, options, _without_resume(arguments, seen, added))
    for flag in ("seeds", "at_once", "trials"):
        number = getattr(started.options, flag, None)
        if number is not None and number < 1:
            raise BadInput(f"--{flag.replace('_', '-')} is {number}; it must be at least 1")
    return started, folder


def _without_resume(arguments: Arguments, seen: Peek, added: Mapping[str, Any]) -> Arguments:
    """Return the command with `added` (plugins and config) in place of resume, which names an experiment here."""
    if isinstance(arguments, Keywords):
        changes: dict[str, Any] = {"resume": None, **added}
        return replace(arguments, options=replace(arguments.options, **changes))
    kept = [word for word in seen.arguments if not word.startswith("--resume=")]
    if "--resume" in kept:
        place = kept.index("--resume")
        del kept[place : place + 2]
    kept += _plugin_words(*(added.get(name, ()) for name in _PLUGINS))
    return ["--config", str(added["config"]), *kept] if "config" in added else kept


def _latest(name: str, kind: str) -> ExperimentFolder:
    found = sorted(path.parent for path in (RUNS / name).glob(f"{kind}-*/{FILE}"))
    if not found:
        raise BadInput(f"{RUNS / name}: there is no {kind} of {name} to go on with; name one with --resume DIR")
    return ExperimentFolder.open(found[-1])


def continued(folder: ExperimentFolder, started: Started[Kind]) -> ExperimentFolder:
    """Return the folder. Raises BadInput if the command line asks for something else than what it holds."""
    options, setup = vars(started.options), started.setup
    kept = start_new(setup.name, folder.kind, type(started.options), ["--config", str(folder.settings_file)])
    changed = [f"{name} (it has {was})" for name, (was, _) in differences(kept.setup.config, setup.config).items()]
    if setup.source != kept.setup.source:
        changed.append(f"--data (it has {kept.setup.source or 'the phantom'})")
    about = {name: value for name, value in folder.about.items() if name not in (*_PLUGINS, "trials")}
    wanted = {name: to_json(options[name]) for name in about if options.get(name) not in (None, "", ())}
    changed += [f"--{n.replace('_', '-')} (it has {about[n]})" for n in wanted if wanted[n] != about[n]]
    if changed:
        raise BadInput(
            f"{folder.path} was started otherwise: {', '.join(changed)}. Its runs keep what they began with: leave "
            "these options out, or start a new one in another folder"
        )
    _records(setup)
    return folder


def _records(setup: Setup) -> Sequence[AnyRecord]:
    """Return the records. A project may learn its classes from them, which pooled scores need."""
    with collect_left_out():  # each member says what its data leave out
        return read_records(setup, data_folder(setup, print), print)


def begin(started: Started[Kind], kind: str, plan: Planner[Kind]) -> ExperimentFolder:
    """Choose the members, and write the folder whole or not at all."""
    setup = started.setup
    path = started.options.out or free_path(RUNS / setup.name / f"{kind}-{time.strftime('%Y-%m-%d-%H%M%S')}")
    if getattr(started.options, "part", "") and ExperimentFolder.at(path):  # another part of it was quicker
        return continued(ExperimentFolder.open(path), started)
    refuse_full_folder(path, "name another with --out, or --resume what it holds")
    records = _records(setup)
    found = plan(started, records)
    if len({m.name for m in found.members}) < len(found.members):
        raise BadInput("two folds would have the same folder: name them by letters, digits, - and _ that differ")
    try:
        with whole_folder(path) as new:
            save(new / SETTINGS_FILE, setup.config, started.head)
            for file, splits in found.splits.items():
                write_split(new / file, splits, records)
            plugins = {name: list(getattr(started.options, name)) for name in _PLUGINS}
            experiment = ExperimentFolder(new, kind, setup.name, found.members, {**found.about, **plugins})
            experiment.save()
            if column := column_of(found.about):
                experiment.save_groups(groups_by(records, column))
    except OSError as error:
        if started.options.out is None or not ExperimentFolder.at(path):
            raise BadInput(
                f"{path} cannot be written: {error.strerror or error}; name another folder with --out"
            ) from error
        return continued(ExperimentFolder.open(path), started)  # another part of it was quicker
    print(f"{kind} in {path}")
    return ExperimentFolder.open(path)


def shared_words(started: Started[Kind]) -> Words:
    """Return what a settings file does not hold, for the members' command lines."""
    options = started.options
    start = [] if started.setup.start is None else ["--from", started.setup.start.source]
    return [*_plugin_words(options.extension, options.no_extension), *start]


def _plugin_words(chosen: Sequence[str], without: Sequence[str]) -> list[str]:
    named = [("--extension", name) for name in chosen] + [("--no-extension", name) for name in without]
    return [word for pair in named for word in pair]


# ---------------------------------------------------------------- members


def _folds(started: Started[CrossvalOptions], records: Sequence[AnyRecord]) -> Plan:
    """Return a member for each fold and seed."""
    refuse_ambiguous(records)
    setup, options = started.setup, started.options
    if setup.config.data.split not in ("auto", "none"):
        raise BadInput(
            f"a cross-validation makes its own splits, and data.split is {setup.config.data.split}: leave it out, and "
            "name your own folds with --folds FILE.yaml"
        )
    rule, seeds, first = options.folds or _FOLDS, 1 if options.seeds is None else options.seeds, setup.config.train.seed
    _refuse_samples(setup, "cross-validation")
    seen = records_seen(setup, started.before, records, print)
    folds = make_folds(
        *(records, rule, first),
        group_by=options.group_by,
        sizes=_voxels(setup, records) if options.balance == "voxels" else None,
        trained_on=seen,
    )
    members, splits = [], {}
    for fold, validation in folds.items():
        stem, keys = f"fold-{file_name(fold)}", {record.key for record in validation}
        own = [record for record in records if record.key not in keys]
        tested = [record for record in own if record.split == "test"]
        training = [record for record in own if record.split != "test"]
        splits[f"{stem}.yaml"] = {"train": training, "validation": validation, "test": tested}
        for seed in range(first, first + seeds):
            name = stem if seeds == 1 else f"{stem}-seed-{seed}"
            members.append(Member(name, fold, seed, {"data.split": f"{stem}.yaml", "train.seed": seed}))
    for fold, validation in folds.items():
        groups = counted(len({record.group for record in validation}), "group")
        print(f"fold {fold}: {counted(len(validation), 'record')} of {groups} validate")
    about = {"folds": rule, "seeds": seeds, "group_by": options.group_by, "balance": options.balance or "records"}
    return Plan(members, splits, about)


def _refuse_samples(setup: Setup, what: str) -> None:
    """Raise BadInput if runs would score a sample of the validation records: each seed another one."""
    if setup.config.validate.records is not None:
        raise BadInput(
            f"a {what} scores every validation record, and validate.records is {setup.config.validate.records}: set "
            "it to none"
        )


def _voxels(setup: Setup, records: Sequence[AnyRecord]) -> dict[str, int]:
    """Return the number of values of each record's largest prepared array; the cache is built for it."""
    store = setup.cache(records).open(RecordPipeline.of(setup), records, print)
    try:
        sizes = [max(math.prod(array.shapes[n]) for array in store.arrays.values()) for n in range(len(records))]
        return dict(zip(store.keys, sizes, strict=True))
    finally:
        store.close()


def _seeds(started: Started[RepeatOptions], records: Sequence[AnyRecord]) -> Plan:
    """Return a member for each seed; all have the split of the first, so that their scores can be compared."""
    refuse_ambiguous(records)
    setup = started.setup
    config, seeds = setup.config, _SEEDS if started.options.seeds is None else started.options.seeds
    _refuse_samples(setup, "repetition")
    numbers = split(records, config.data, config.train.seed, records_seen(setup, started.before, records, print))
    splits = {name: [records[n] for n in numbers[name]] for name in SPLITS}
    members = [
        Member(f"seed-{seed}", "", seed, {"data.split": "split.yaml", "train.seed": seed})
        for seed in range(config.train.seed, config.train.seed + seeds)
    ]
    return Plan(members, {"split.yaml": splits}, {"seeds": seeds})


_KINDS: Mapping[str, tuple[type[ExperimentOptions], Planner[Any]]] = {
    "crossval": (CrossvalOptions, _folds),
    "repeat": (RepeatOptions, _seeds),
}


def options_of(kind: str) -> type[ExperimentOptions]:
    return _KINDS[kind][0]
