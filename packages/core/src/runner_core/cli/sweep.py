"""`runner PROJECT sweep`: search settings by trials, and judge the best on records that the search never looked at."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from runner_core.base.calling import runner
from runner_core.base.errors import BadInput
from runner_core.base.location import shell_word
from runner_core.base.text import counted
from runner_core.base.writing import replace_json, replace_text
from runner_core.cli.evaluate import evaluate_with
from runner_core.cli.experiment import Plan, claimed, going_on, shared_words, start
from runner_core.cli.json_output import show_json
from runner_core.cli.options import EvaluateOptions, SweepOptions
from runner_core.cli.start import Started, start_from_run
from runner_core.config.values import flat, overlay_named
from runner_core.contract.records import AnyRecord
from runner_core.contract.setup import Setup
from runner_core.data.sampling import order
from runner_core.data.splits import SPLITS, nearest_share, split
from runner_core.engines.process import undisturbed
from runner_core.experiments.folds import refuse_ambiguous
from runner_core.experiments.members import Runner
from runner_core.experiments.result import SUMMARY_FILE
from runner_core.experiments.sweep import GIVEN_UP, SPLIT, UNFINISHED, Space, Sweep, parse_space
from runner_core.experiments.sweep_page import notes, result_page, tables
from runner_core.output.experiments import ExperimentFolder, Member
from runner_core.output.report.page import lines
from runner_core.plugins.settings import save
from runner_core.tools.uncertainty import difference
from runner_core.training.data import records_seen
from runner_core.training.evaluation import Scores

BEST_FILE = "best.yaml"
_TRIALS, _HOLDOUT = 20, 0.2


def sweep(name: str, arguments: Sequence[str]) -> int:
    started, folder = start(name, "sweep", SweepOptions, arguments)
    setup, options = started.setup, started.options
    if options.minutes is not None and not options.minutes > 0:
        raise BadInput(f"--minutes is {options.minutes:g}; it must be above 0")
    if sum(word == "--vary" or word.startswith("--vary=") for word in arguments) > 1:
        raise BadInput("--vary is given twice, and the last would count alone: name all settings after one --vary")
    about = {} if folder is None else folder.about
    vary, trials = options.vary or about.get("vary") or (), options.trials or about.get("trials") or _TRIALS
    if not isinstance(vary, (list, tuple)) or not isinstance(trials, int):
        raise BadInput(f"{folder and folder.path}: experiment.json is damaged")
    space = parse_space([str(word) for word in vary], setup.config, type(setup.project))
    with claimed(started, folder, "sweep", _plan) as found:
        return _search(found, started, space, trials)


def _search(folder: ExperimentFolder, started: Started[SweepOptions], space: Space, trials: int) -> int:
    """Train the trials, judge the best, and write and show the result."""
    setup, options = started.setup, started.options
    found = Sweep(
        folder,
        space,
        setup.project.monitor[0],
        setup.project.monitor[1] == "max",
        setup.config.train.seed,
        {name: flat(setup.config)[name] for name in space},
        trials,
        math.inf if options.minutes is None else time.monotonic() + 60 * options.minutes,
    )
    trainer = Runner(folder, shared_words(started), setup, print)

    def ended(member: Member, problem: str) -> None:
        state = found.ended(member, problem)
        best = found.best()
        if state == GIVEN_UP:
            print(f"{member.name}: given up, it lags behind the other trials")
        elif best is not None and best.name == member.name:
            print(f"{member.name} is the best so far")

    with going_on(folder, options):
        trainer.processes(trainer.count(options.at_once, trials), found.following, ended, found.stops)
        result = _result(found, setup)
        _keep(found, started, result)  # hours of trials: before anything else can fail
        judged = _judged(found, setup.name)
        scores = {which: {"records": len(each.rows), "scores": each.means} for which, each in judged.items()}
        result |= {"judged": scores, "difference": _difference(judged)}
    return _conclude(found, started, result)


# ---------------------------------------------------------------- records


def _plan(started: Started[SweepOptions], records: Sequence[AnyRecord]) -> Plan:
    """Return one split for all trials: train and validation as a training would have them, and records to judge by."""
    refuse_ambiguous(records)
    setup, options = started.setup, started.options
    config = setup.config
    holdout = _HOLDOUT if options.holdout is None else options.holdout
    if not 0 <= holdout < 1:
        raise BadInput(f"--holdout is {holdout:g}; it must lie between 0 and 1")
    seen = records_seen(setup, started.before, records, print)
    numbers = split(records, config.data, config.train.seed, seen)
    splits = {name: [records[n] for n in numbers[name]] for name in SPLITS}
    if not splits["validation"]:
        raise BadInput("a sweep compares trials by their validation, and no record validates: see data.split")
    if not splits["test"] and holdout:
        fresh = [record for record in splits["train"] if not seen(record)]
        chosen = _held_out(fresh, len(fresh) < len(splits["train"]), holdout * len(records), config.train.seed)
        splits["test"] = [record for record in splits["train"] if record.group in chosen]
        splits["train"] = [record for record in splits["train"] if record.group not in chosen]
    if not splits["test"]:
        print("NOTE: no records are held out, so nothing can be said of the best settings beyond the search itself")
    parts = ", ".join(f"{counted(len(found), 'record')} {name}" for name, found in splits.items() if found)
    print(f"split of all trials: {parts.replace(' train', ' to train on').replace(' test', ' to judge by')}")
    about = {"vary": list(options.vary), "holdout": holdout, "trials": options.trials or _TRIALS}
    return Plan([], {SPLIT: splits}, about)


def _held_out(records: Sequence[AnyRecord], others: bool, wanted: float, seed: int) -> set[str]:
    """Return groups of `records` with about `wanted` of them; none if nothing would be left to train on.

    `others` says that other records train too.
    """
    groups = sorted({record.group for record in records})
    if len(groups) < 2:
        return set(groups) if others and groups else set()
    shuffled = [groups[n] for n in order(seed, 4, len(groups), len(groups), shuffle=True)]
    sizes = [sum(record.group == group for record in records) for group in shuffled]
    return {shuffled[n] for n in nearest_share(sizes, wanted)}


# ---------------------------------------------------------------- result


def _judged(found: Sweep, name: str) -> Mapping[str, Scores]:
    """Return the scores of the best trial and of the settings without the search, on the records held out."""
    best = found.best()
    if best is None or not (found.experiment.path / SPLIT).read_text(encoding="utf-8").count("test:"):
        return {}
    base = found.base_member()
    wanted = {"best": best, **({} if base is None or base.name == best.name else {"base": base})}
    scores = {}
    for which, member in wanted.items():
        run = found.experiment.run(member).path
        print(f"\n{which} settings ({member.name}) on the records that the search did not look at")
        with undisturbed() as framework:
            evaluation = start_from_run(name, "evaluate", EvaluateOptions, [str(run), "--split", "test"])
            framework(evaluation.setup.project.framework)
            scores[which], _ = evaluate_with([evaluation])
    return scores


def _result(found: Sweep, setup: Setup) -> dict[str, Any]:
    """Return what summary.json holds before the best trial is judged."""
    best = found.best()
    rows = found.table()
    return {
        "kind": "sweep",
        "project": setup.name,
        "preset": setup.preset,
        "data": "phantom" if setup.source is None else str(setup.source),
        "metric": found.metric,
        "direction": "max" if found.maximise else "min",
        "status": "done" if sum(state != UNFINISHED for _, state, _ in rows) >= found.trials else "unfinished",
        "best": None if best is None else best.name,
        "settings": {} if best is None else {n: v for n, v in best.settings.items() if n in found.space},
        "importance": found.importance(),
        "judged": {},
        "difference": None,
        "trials": [
            {"name": m.name, "state": state, "value": value, "settings": dict(m.settings)} for m, state, value in rows
        ],
    }


def _difference(judged: Mapping[str, Scores]) -> dict[str, Any] | None:
    """Return the difference of the headline score, best less base, with its interval over groups."""
    if len(judged) < 2:
        return None
    rows = {which: {row.record.key: row for row in scores.rows} for which, scores in judged.items()}
    name = next(iter(judged["best"].names), "")
    keys = [k for k in rows["best"] if k in rows["base"] and all(name in rows[w][k].scores for w in rows)]
    values = {w: np.array([[rows[w][key].scores[name] for key in keys]], np.float64) for w in rows}
    known = np.isfinite(values["base"][0]) & np.isfinite(values["best"][0])
    if not name or not known.any():
        return None
    groups = [rows["best"][key].record.group for key, use in zip(keys, known, strict=True) if use]
    found = difference(values["base"][:, known], values["best"][:, known], groups)
    low, high = (end if math.isfinite(end) else None for end in found.interval())
    return {"score": name, "value": found.value, "low": low, "high": high}


def _keep(found: Sweep, started: Started[SweepOptions], result: Mapping[str, Any]) -> None:
    """Write summary.json, report.html and the settings of the best trial."""
    folder, best = found.experiment.path, found.best()
    replace_json(folder / SUMMARY_FILE, result)
    if best is not None:
        own = {name: value for name, value in best.settings.items() if name in found.space}
        save(folder / BEST_FILE, overlay_named(started.setup.config, own, "the best trial"), started.head)
    replace_text(folder / "report.html", result_page(found, result))


def _conclude(found: Sweep, started: Started[SweepOptions], result: dict[str, Any]) -> int:
    folder, setup, best = found.experiment.path, started.setup, found.best()
    _keep(found, started, result)
    for table in tables(found, result):
        print(f"\n{table.title}")
        for line in lines([table]):
            print(line)
    for note in notes(result):
        print(f"NOTE: {note}")
    if best is not None:
        print(f"settings of the best trial: {folder / BEST_FILE}   report: {folder / 'report.html'}")
        print(f"next: {runner()} {setup.name} train --config {shell_word(folder / BEST_FILE)}")
    if started.options.json:
        show_json({"folder": folder, **result})
    if best is None:
        raise BadInput(f"no trial came to its end; their logs are in {folder}/trial-*/train.log")
    return 0
