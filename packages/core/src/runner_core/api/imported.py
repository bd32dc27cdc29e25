"""A run made of weights that another program trained."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from runner_core.api.keywords import keywords
from runner_core.api.run import Run
from runner_core.base.errors import BadInput
from runner_core.contract import State, Tensors
from runner_core.contract.records import Statistics
from runner_core.contract.run import OtherWeights
from runner_core.contract.setup import Setup
from runner_core.engines.process import undisturbed
from runner_core.output.runfolder import IMPORTED, RunFolder


def write_run(
    project: str,
    *,
    weights: Tensors,
    statistics: Statistics,
    preset: str,
    settings: Mapping[str, Any],
    source: Path,
    run_dir: str | os.PathLike[str] | None = None,
) -> Run:
    """Write a run that holds the weights of another program's network, and return it.

    `predict`, `evaluate`, `export`, ensembles and `train --from` use it as any other run.

    Args:
        project: Its name.
        weights: The tensors of the project's network, by name: all of them.
        statistics: What the project's `fit` would have learned, as far as predictions need it.
        preset: Named defaults.
        settings: Settings, which override those of the preset.
        source: The file that the weights come from.
        run_dir: A new or empty folder. Default: runs/PROJECT/TIME.

    Raises:
        BadInput: A setting cannot be, the weights do not fit the network, or the folder is not empty.
    """
    from runner_core.cli.options import TrainOptions
    from runner_core.cli.start import start_new
    from runner_core.plugins.settings import save
    from runner_core.training.checkpoints import Checkpoints

    with undisturbed() as framework:
        started = start_new(project, "train", TrainOptions, keywords(TrainOptions, {"preset": preset, **settings}))
        setup = started.setup
        framework(setup.project.framework)
        state = state_with(setup, weights, statistics, source)
        new = run_dir is None or not Path(run_dir).exists()
        run = RunFolder.create(None, setup.name, None if run_dir is None else Path(run_dir))
        with run.lock():
            try:
                checkpoints = Checkpoints(
                    run.checkpoints, setup.checkpoint_format, project=setup.name, plugins=setup.plugins.versions
                )
                checkpoints.save(state, 0, 0, None, True)
                about = {"project": setup.name, "status": IMPORTED, "steps": 0, "epochs": 0, "best_step": 0}
                run.write_summary({**about, "imported": str(source.absolute())})
                save(run.config_file, setup.config, started.head)
            except BaseException:
                shutil.rmtree(run.checkpoints, ignore_errors=True)
                run.summary_file.unlink(missing_ok=True)
                if new:  # nothing stays of a folder that was not there before
                    shutil.rmtree(run.path, ignore_errors=True)
                raise
    return Run(run.path)


def state_with(setup: Setup, weights: Tensors, statistics: Statistics, source: Path) -> State:
    """Return the state of a run whose network has just these weights; raise BadInput if they do not fit it."""
    state_of: Callable[..., State] | None = getattr(setup.engine, "state_of", None)
    if state_of is None:
        raise BadInput(f"{source}: the engine {setup.engine.name} cannot take over weights")
    try:
        return state_of(setup, weights, statistics)
    except OtherWeights as error:
        raise BadInput(f"{source}: {error}") from error
