"""The functions that Python calls for several trainings: `crossval`, `repeat` and `compare`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from runner_core.api.calls import INTERRUPTED, AnyPath
from runner_core.api.experiment import Experiment
from runner_core.api.keywords import keywords
from runner_core.api.results import Comparison
from runner_core.api.run import Run
from runner_core.base.errors import BadInput, Stopped
from runner_core.engines.process import undisturbed
from runner_core.output.experiments import ExperimentFolder


def crossval(
    project: str, *, data: AnyPath | None = None, folds: int | AnyPath | None = None, seeds: int | None = None,
    group_by: str | None = None, balance: Literal["records", "voxels"] | None = None, preset: str | None = None,
    out: AnyPath | None = None, resume: AnyPath | Literal[True] | None = None, **settings: Any,
) -> Experiment:  # fmt: skip
    """Cross-validate as `runner PROJECT crossval` does, and return the experiment with its pooled scores.

    An interruption saves a checkpoint and returns the experiment; then `resume=experiment.path` goes on.

    Args:
        project: Its name, such as "brainunet".
        data: A folder or a URL. Default: a generated phantom.
        folds: A number, "groups", "column:NAME", or a YAML file with the folds. Default: 5.
        seeds: Number of runs of each fold. Default: 1.
        group_by: Column of the table whose values stay together in a fold.
        balance: What a number of folds makes equal. Default: records.
        preset: Named defaults.
        out: A new or empty folder. Default: runs/PROJECT/crossval-TIME.
        resume: An experiment to go on with; True for the latest, "auto" to start or go on in `out`.
        settings: Settings and further options, as for `train`.

    Raises:
        BadInput: Data or settings cannot be used.
        Unhealthy: A health rule stopped a run; the scores of the others are pooled before.
    """
    given = {"data": data, "seeds": seeds, "group_by": group_by, "balance": balance, "preset": preset, **settings}
    return _train(project, "crossval", {**given, "folds": None if folds is None else str(folds)}, out, resume)


def repeat(
    project: str, *, data: AnyPath | None = None, seeds: int | None = None, preset: str | None = None,
    out: AnyPath | None = None, resume: AnyPath | Literal[True] | None = None, **settings: Any,
) -> Experiment:  # fmt: skip
    """Train with several seeds on one split as `runner PROJECT repeat` does, and return the experiment.

    Keywords are those of `crossval`; `seeds` is 5 by default.
    """
    return _train(project, "repeat", {"data": data, "seeds": seeds, "preset": preset, **settings}, out, resume)


def _train(project: str, kind: str, given: Mapping[str, Any], out: Any, resume: Any) -> Experiment:
    from runner_core.cli.experiment import experiment_with, options_of

    with undisturbed():
        asked = keywords(options_of(kind), {**given, "out": out, "resume": resume})
        begun: list[ExperimentFolder] = []
        try:
            experiment_with(project, kind, asked, begun.append)
        except Stopped as stopped:
            if stopped.exit_code != INTERRUPTED or not begun:
                raise
            print(stopped)
    return Experiment(begun[0].path)


def compare(first: AnyPath | Run, *others: AnyPath | Run, out: AnyPath | None = None) -> Comparison:
    """Say whether runs or experiments are better than the first, as `runner compare` does.

    Args:
        first: A run, an experiment, or the folder of one.
        others: One or more of the same project.
        out: A new or empty folder for the page. Default: runs/PROJECT/compare-TIME.

    Raises:
        BadInput: There is nothing that can be compared.
    """
    from runner_core.cli.compare import compare_with

    if not others:
        raise BadInput("compare takes two runs or more")
    folders = [run.path if isinstance(run, Run) else Path(run).expanduser() for run in (first, *others)]
    return Comparison(compare_with(folders, None if out is None else Path(out).expanduser()))
