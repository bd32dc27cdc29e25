"""Loads the trained network of a run or a checkpoint, for commands that use one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from runner_core.base.errors import BadInput
from runner_core.cli.start import Started
from runner_core.contract import Infer, State, Trained
from runner_core.contract.project import views_of
from runner_core.training.checkpoints import refuse_nan, restoring
from runner_core.training.start import keep_weights, reopen


def load_network(started: Started[Any], named: Path) -> tuple[Trained, str]:
    """Return the network of a checkpoint, and the checkpoint's name.

    `named` is the checkpoint or its run; of a run, the best checkpoint is used.
    """
    state, checkpoint = load_state(started, named)
    with restoring(checkpoint):
        trained = started.setup.engine.load(started.setup, state)
    views_of(started.setup.project)  # refuses unknown ones: it may need the checkpoint's statistics
    return trained, checkpoint.name


def load_networks(started: Started[Any], named: Path, say: Callable[[str], None]) -> tuple[Trained, Infer | None, str]:
    """Return the trained network, the untrained network, and the checkpoint's name.

    Like `load_network`, with the network before its first step if the project's `judge` wants it, else None. It is None
    too, and `say` tells why, where the weights that the run started from are gone or changed.
    """
    setup = started.setup
    state, checkpoint = load_state(started, named)
    judging = setup.project.judging()
    wanted = judging.untrained and judging.judge is not None
    if wanted and started.run is not None and (start := reopen(setup, started.run)) is not None:
        try:
            keep_weights(start)
        except (BadInput, OSError) as error:
            say(f"NOTE: no comparison with the network before its first step, which cannot be made again: {error}")
            wanted = False
        else:
            start.restored = False
            setup.start = start
    with restoring(checkpoint):
        trained = setup.engine.load(setup, state)
        views_of(setup.project)
        return trained, setup.engine.untrained(setup, state).infer if wanted else None, checkpoint.name


def load_state(started: Started[Any], named: Path) -> tuple[State, Path]:
    """Return the state of a checkpoint, and its folder.

    `named` is the checkpoint or its run; of a run, the best checkpoint is used.
    """
    from runner_core.training.checkpoints import Checkpoints

    setup, run = started.setup, started.run
    assert run is not None
    checkpoints = Checkpoints(run.checkpoints, setup.checkpoint_format, project=setup.name)
    path = run.checkpoint_of(named)
    if path is None:
        found = checkpoints.best()
        if found is None:
            raise BadInput(f"{run.path}: there is no usable checkpoint yet; train first, or continue with --resume")
        path = found[0]
    state = checkpoints.load(path)
    refuse_nan(state, path)
    return state, path
