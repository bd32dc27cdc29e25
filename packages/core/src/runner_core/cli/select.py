"""`runner PROJECT select RUN`: choose settings of the decision, views and networks on out-of-fold predictions."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import yaml

from runner_core.base.calling import runner
from runner_core.base.errors import BadInput
from runner_core.base.files import refuse_full_folder
from runner_core.base.location import shell_word
from runner_core.base.progress import record_bar
from runner_core.base.text import counted
from runner_core.base.writing import replace_csv, replace_json, replace_text, to_json
from runner_core.cli.ensembles import (
    SELECTED,
    folder_of,
    label,
    load_ensemble,
    run_of,
    runs_of,
    seen_by,
    start_from_runs,
)
from runner_core.cli.evaluate import make_folder, split_records
from runner_core.cli.json_output import show_json
from runner_core.cli.options import SelectOptions
from runner_core.cli.start import Started
from runner_core.config import PredictConfig
from runner_core.config.bounds import refuse_out_of_bounds
from runner_core.config.extensions import faults
from runner_core.config.values import flat, plain
from runner_core.contract.facets import Combining
from runner_core.contract.project import Project, views_of
from runner_core.contract.records import AnyRecord
from runner_core.data.cache.folder import cache_root
from runner_core.data.cache.identity import Identities, whole_digests
from runner_core.experiments.choosing import Choice, Chooser, Space
from runner_core.experiments.chosen import choose, page, settings_file, tables, trial_rows
from runner_core.experiments.folds import column_of, groups_by
from runner_core.experiments.soft import Scored, SoftOutputs, mark_of, with_settings
from runner_core.output.experiments import ExperimentFolder
from runner_core.output.report.page import lines
from runner_core.output.runfolder import claimed, free_path
from runner_core.plugins.builtin import is_builtin
from runner_core.training.seen import SavedSplit, joined_split, read_split

STORED = "soft"
"""Folder of the stored outputs, in that of the run or the experiment."""
_EVERY_SUBSET = 4
"""Largest number of arms of which every subset is tried."""


def select(name: str, arguments: Sequence[str]) -> int:
    members = start_from_runs(name, "select", SelectOptions, arguments)
    result = select_with(members)
    if members[0].options.json:
        show_json(result)
    return 0


def select_with(members: Sequence[Started[SelectOptions]]) -> dict[str, Any]:
    """Search, show and write the result, and return what select.json holds."""
    options, name = members[0].options, members[0].setup.name
    if options.out is not None:  # hours before it is written
        refuse_full_folder(options.out, "name another with --out")
    place, column = folder_of(members, options.run), _column(members)
    if is_builtin(place):
        raise BadInput(f"{place} lies in a package, where `select` must not write: name a run that you trained first")
    outputs, records = _outputs(members, place / STORED)
    with _going_on(outputs):
        result = _chosen(outputs, records, column)
    with claimed(name, "select", options.out or free_path(place / f"select-{time.strftime('%Y-%m-%d-%H%M%S')}")) as out:
        result |= {"project": name, "folder": out, "stored": outputs.folder, "runs": [run_of(m).path for m in members]}
        result |= {"notes": [*_notes(members, result)], "command": _command(name, members, outputs.arms, result, out)}
        _write(out, result)
    for table in tables(result):
        print(f"\n{table.title}")
        print(*lines([table]), sep="\n")
    print(f"\n{result['text']}")
    for note in result["notes"]:
        print(f"NOTE: {note}")
    if result["changed"]:
        print(f"use: {result['command']}")
    if _keep(place, members, outputs.arms, result):
        print(f"`predict {shell_word(place)}` uses these settings by itself from now on: {place / SELECTED}")
    print(f"report: {out / 'report.html'}")
    return result


def _outputs(members: Sequence[Started[SelectOptions]], folder: Path) -> tuple[SoftOutputs, Sequence[AnyRecord]]:
    """Return where soft outputs are stored, and the records that some network did not train on."""
    started = members[0]
    sides = joined_split([read_split(run_of(member).path) for member in members])
    ensemble, checkpoints = load_ensemble(members)  # first: `records` may use statistics
    choices = ensemble.combining.choices
    _refuse_nothing_to_choose(ensemble.members[0].project, ensemble.combining)
    everything, records = split_records(started, "all" if started.options.data else "validation", sides)
    if started.options.data:
        records = _without_test(records, sides if started.own_data else None)
    _, seen = seen_by(members, everything, records)
    ensemble = ensemble.knowing(seen)
    records = [record for record in records if not ensemble.trained_on(record)]
    if not records:
        raise BadInput("every run was trained on all of these records: name others with --data")
    paths = [run_of(m).checkpoints / checkpoint for m, checkpoint in zip(members, checkpoints, strict=True)]
    versions = started.setup.plugins.versions
    marks = [mark_of(m, path, [*choices], versions) for m, path in zip(ensemble.members, paths, strict=True)]
    print(f"{counted(len(records), 'record')} with {label(members, checkpoints)}, each by runs not trained on it")
    make_folder(folder)
    contents = whole_digests(Identities(cache_root(started.setup.config.cache.dir)), records)
    return SoftOutputs(folder, ensemble, _arms(members), marks, contents), records


def _without_test(records: Sequence[AnyRecord], sides: SavedSplit | None) -> Sequence[AnyRecord]:
    """Return the records that belong to no test split: the data set's own, and that of the runs (`sides`)."""
    names = frozenset((sides or {}).get("test", ()))
    kept = [record for record in records if record.split != "test" and record.key not in names]
    if not kept:
        raise BadInput("these are test records only, on which nothing is chosen: name others with --data")
    if len(kept) < len(records):
        print(f"{counted(len(records) - len(kept), 'test record')} left out: nothing is chosen on them")
    return kept


def _column(members: Sequence[Started[SelectOptions]]) -> str:
    """Return the column by which the runs' cross-validation kept records together, "" for groups alone."""
    places = dict.fromkeys(run_of(member).path.absolute().parent for member in members)
    columns = {column_of(ExperimentFolder.open(place).about) for place in places if ExperimentFolder.at(place)} - {""}
    if len(columns) > 1:
        raise BadInput(
            f"these runs were split by different columns ({', '.join(sorted(columns))}): name runs of one only"
        )
    return next(iter(columns), "")


say = partial(print, flush=True)
"""Show a line of progress at once, also in a file."""


def _chosen(outputs: SoftOutputs, records: Sequence[AnyRecord], column: str) -> dict[str, Any]:
    """Predict what is not stored yet, search, and return the result.

    Records of equal value in `column` are one group, as in the cross-validation: no choice is judged by the plate that
    it was made on.
    """
    project = outputs.ensemble.members[0].project
    space = _space(project, records, outputs)
    if len({*groups_by(records, column).values()}) < 2:
        print(
            "NOTE: all these records are of one group, so the search can show what scores best on them, but recommend "
            "nothing: name a cross-validation, or records of more groups with --data"
        )
    with record_bar("predicting", len(records), sys.stdout, say) as bar:
        errors = outputs.fill(records, space.views, bar)
    for error in errors.values():
        print(f"warning: left out: {error}", file=sys.stderr)
    records = [record for record in records if record.key not in errors]
    if not records:
        raise BadInput("no record could be read (see above)")
    scored = Scored(outputs, records, partial(record_bar, stream=sys.stdout, say=say))
    if column:
        print(f"groups: records with the same {column}, as in the cross-validation")
    chooser = Chooser(space, scored, groups_by(records, column), project.judging(), larger=project.monitor[1] == "max")
    if not chooser.headline:
        raise BadInput(f"project {project.name} has no scores of single records, by which something could be chosen")
    return choose(chooser, {views: outputs.seconds(records, views) for views in space.views})


@contextmanager
def _going_on(outputs: SoftOutputs) -> Iterator[None]:
    """Add to an interruption that the same command goes on."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as stop:
        stop.add_note(f"the same command goes on: it uses what is stored in {outputs.folder}")
        raise


def _refuse_nothing_to_choose(project: Project, combining: Combining) -> None:
    if not (combining.choices or combining.views):
        raise BadInput(f"project {project.name} declares neither views nor choices: there is nothing to select")
    if combining.kind == "embeddings":
        raise BadInput(f"project {project.name} embeds records: no score of single records could choose anything")
    known = flat(project.config)
    for name in combining.choices:
        if name not in known:
            raise BadInput(f"project {project.name}: `choices` names {name!r}, which is no setting")
    if combining.views and not isinstance(getattr(project.config, "predict", None), PredictConfig):
        raise BadInput(f"project {project.name} declares views: its section `predict` must subclass PredictConfig")


def _arms(members: Sequence[Started[SelectOptions]]) -> list[str]:
    """Return what each run belongs to: what the user named, or of one experiment the seed, if its folds have several.

    Runs of one arm are never parted.
    """
    options = members[0].options
    named = [options.run, *options.with_]
    if len(named) > 1:
        return [str(place) for place in named for _ in runs_of(place)]
    if not ExperimentFolder.at(options.run):
        return [str(options.run)]
    found = ExperimentFolder.open(options.run).members
    if len(found) == len({member.fold for member in found}):
        return [str(options.run)] * len(found)
    seeds = sorted({member.seed for member in found})
    return [f"seed {seeds.index(member.seed) + 1}" for member in found]


def _space(project: Project, records: Sequence[AnyRecord], outputs: SoftOutputs) -> Space:
    combining, arms = outputs.ensemble.combining, outputs.arms
    known = flat(project.config)
    settings = {name: _with_own(known[name], values) for name, values in combining.choices.items()}
    own = tuple(view.name for view in views_of(project))
    every = tuple(view.name for view in combining.views)
    views = list(dict.fromkeys([own, (), every]))
    names = tuple(dict.fromkeys(arms))
    sizes = range(1, len(names)) if len(names) <= _EVERY_SUBSET else (1, len(names) - 1)
    subsets = [some for size in sizes for some in combinations(names, size)]
    usable = [some for some in subsets if all(outputs.numbers(record, some) for record in records)]
    current = Choice(tuple((name, known[name]) for name in settings), own, names)
    return Space(current, settings, views, [names, *usable], partial(_fits, project))


def _with_own(own: Any, values: Sequence[Any]) -> list[Any]:
    """Return the candidates, the current value first."""
    return [own, *(value for value in values if value != own)]


def _fits(project: Project, choice: Choice) -> bool:
    """Return whether the settings of a choice can be together."""
    config = with_settings(project, dict(choice.settings)).config
    try:
        refuse_out_of_bounds(config)
    except BadInput:
        return False
    return next(iter(faults(config)), None) is None


def _notes(members: Sequence[Started[SelectOptions]], result: Mapping[str, Any]) -> Iterator[str]:
    if not members[0].options.data:
        whose = "the run's best checkpoint was" if len(members) == 1 else "the runs' best checkpoints were"
        yield f"{whose} chosen on these validation records, so all these figures may be too good"
    nest = result["nested"]
    if nest is not None:
        different = len({str(fold) for fold in nest["folds"]})
        chose = "all chose the same" if different == 1 else f"chose {different} different settings"
        yield f"the {counted(len(nest['folds']), 'fold')} of groups {chose}"
    if len({*result["current"]["runs"]}) > len({*result["recommended"]["runs"]}):
        yield "fewer networks are recommended; the command below names them"
    slow, quick = (pick(entry["seconds"] for entry in result["views"]) for pick in (max, min))
    if len(result["views"]) > 1 and quick > 0:
        yield f"views cost time: {slow / quick:.1f} times that of the quickest, for a record"


def _command(
    name: str, members: Sequence[Started[SelectOptions]], arms: Sequence[str], result: Mapping[str, Any], out: Path
) -> str:
    """Return the command line that predicts as recommended."""
    options, kept = members[0].options, result["recommended"]["runs"]
    named = [options.run, *options.with_]
    if {*kept} != {*arms}:
        named = [run_of(member).path for member, arm in zip(members, arms, strict=True) if arm in kept]
    first, *others = map(shell_word, named)
    further = "".join(f" --with {other}" for other in others)
    return f"{runner()} {name} predict {first}{further} INPUT… --out DIR --config {shell_word(out / 'settings.yaml')}"


def _keep(
    place: Path, members: Sequence[Started[SelectOptions]], arms: Sequence[str], result: Mapping[str, Any]
) -> bool:
    """Write the recommended settings into the folder that the user named, where `predict` finds them; return whether.

    Older ones are removed. Settings for other networks than all of that folder are not kept.
    """
    file = place / SELECTED
    if members[0].options.with_:
        return False
    if not result["changed"] or {*result["recommended"]["runs"]} != {*arms}:
        file.unlink(missing_ok=True)
        return False
    replace_text(file, _settings_text(result))
    return True


def _write(out: Path, result: dict[str, Any]) -> None:
    replace_text(out / "settings.yaml", _settings_text(result))
    replace_json(out / "select.json", to_json(result))
    replace_csv(out / "trials.csv", trial_rows(result))
    replace_text(out / "report.html", page(result))


def _settings_text(result: Mapping[str, Any]) -> str:
    head = f"# {result['text']}\n# {result['command']}\n"
    return head + yaml.safe_dump(plain(settings_file(result)), sort_keys=False)
