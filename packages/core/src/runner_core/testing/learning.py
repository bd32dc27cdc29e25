"""Check what a project promises of its training: steps, metrics, resuming."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import SkipTest

import numpy as np

from runner_core.config.values import plain
from runner_core.contract import Divisible, State, Trainer
from runner_core.output.sinks import Sinks
from runner_core.plugins import discovery
from runner_core.testing.case import STEPS, Case
from runner_core.testing.forked import TORCH, Forked
from runner_core.tools.verify_resume import differences
from runner_core.tools.verify_resume.killable import STEP, Teller, train
from runner_core.training.assembly import TrainingSpec, assemble
from runner_core.training.snapshots import Snapshots

_KILLED_AT = 6  # between the checkpoints of steps 4 and 8; 3 is older
_PATIENCE = 3600.0  # seconds: a test's own limit comes first


def two_steps_train(case: Case) -> None:
    """Check two steps on the CPU: losses are finite, weights change, and the monitored metric exists."""
    before = _weights(case.setup.engine.trainer(case.setup, case.data, STEPS).state())
    summary, state = case.trained
    metric = case.project.monitor[0]
    assert summary["steps"] == STEPS, summary
    assert metric in summary["metrics"], f"the monitored metric {metric!r} is not among {list(summary['metrics'])}"
    assert all(np.isfinite(v) for v in summary["metrics"].values()), summary["metrics"]
    assert _weights(state) != before, "two training steps changed no weight"


def metrics_do_not_depend_on_the_batch_size(case: Case) -> None:
    """Check that metrics do not depend on how the samples are split into batches; the loss is not compared."""
    count = len(case.data.samples["validation"])
    if count == 1:
        raise SkipTest(f"the phantom of {case.kind.name} has one validation sample: there is nothing to cut")
    (small, names), (large, _, _) = case.validate(min(3, count - 1)), case.watched
    for name in names:
        assert name in small, f"metric {name!r} is not among those of validation: {list(small)}"
        same = np.isclose(small[name], large[name], rtol=1e-3, atol=1e-4, equal_nan=True)
        assert same, f"metric {name!r} depends on the batch size: {small[name]} and {large[name]}"


def metrics_of_two_processes_join(case: Case) -> None:
    """Check that metrics with `state` and `merge` have the same values when each process validates its share."""
    found, _, _ = case.watched
    if not any(isinstance(metric, Divisible) for metric in case.setup.metrics_made):
        raise SkipTest(f"no metric of {case.kind.name} has `state` and `merge`: each process validates everything")
    states = []
    for rank in range(2):
        case.validate(3, rank, ranks=2)
        joined = [metric for metric in case.setup.metrics_made if isinstance(metric, Divisible)]
        states.append([metric.state() for metric in joined])
    for metric, *parts in zip(joined, *states, strict=True):
        metric.merge(parts)
        for name, value in metric.compute().items():
            same = np.isclose(found[name], value, rtol=1e-3, atol=1e-4, equal_nan=True)
            assert same, f"metric {name!r} is {found[name]}; joined from two halves it is {value}"


def metrics_equal_numpy(case: Case) -> None:
    """Check that metrics equal those that `plain_metrics` computes from all predictions and batches at once."""
    found, names, watcher = case.watched
    if not names:
        raise SkipTest(f"{case.kind.name} has no metrics besides its loss")
    plain_metrics = case.project.checks().plain_metrics
    if plain_metrics is None:
        raise SkipTest(f"{case.kind.name} has no plain_metrics: nothing says what its metrics should be")
    assert watcher.batches, "step returned no prediction, so that its metrics saw nothing"
    plain = plain_metrics(_joined(watcher.predictions), _joined(watcher.batches))
    assert plain.keys() == set(names), f"plain_metrics gives {list(plain)}, the metrics {names}"
    for name in names:
        same = np.isclose(found[name], plain[name], rtol=1e-3, atol=1e-5, equal_nan=True)
        assert same, f"metric {name!r} is {found[name]}; recomputed with NumPy it is {plain[name]}"


def killed_and_resumed_equals_never_killed(case: Case) -> None:
    """Check that a run killed (kill -9) between two checkpoints and resumed equals an uninterrupted one.

    Log, weights and optimizer must be equal bit for bit. `runner verify-resume` tests more, at random moments.
    """
    assert case.records
    whole, killed = case.folder / "whole", case.folder / "killed"
    with Forked(os.environ, TORCH if case.project.framework == "torch" else ()) as forked:
        _run(forked, case, "whole", 0)
        _run(forked, case, "killed", _KILLED_AT, expected=-signal.SIGKILL)
        saved = case.newest(killed / "checkpoints").values["loop"]["step"]
        assert 0 < saved < _KILLED_AT, f"killed in step {_KILLED_AT}, its newest checkpoint is of step {saved}"
        _run(forked, case, "killed", 0)
    found = differences(whole, killed, case.setup.checkpoint_format.read)
    assert not found, (
        f"a run that was killed and resumed differs from one that was not, first in the {found[0].text()}: something "
        "random or remembered is in no checkpoint"
    )


def snapshots_leave_training_alone(case: Case) -> None:
    """Check that `snapshots` draws pictures and does not affect two training steps around them."""
    project = case.project
    pictures = project.pictures()
    if not pictures.snapshot_samples:
        assert pictures.snapshots is None, "`snapshots` draws nothing: `snapshot_samples` is 0"
        raise SkipTest(f"{project.name} draws no pictures while it trains")
    plain, drawing = _two_steps(case, lambda trainer, step: None), _two_steps(case, _Drawing(case))
    assert plain.tensors.keys() == drawing.tensors.keys()
    for name, tensor in plain.tensors.items():
        same = np.asarray(tensor).tobytes() == np.asarray(drawing.tensors[name]).tobytes()
        assert same, f"{name} differs where `snapshots` draws: it changes the network, or something remembered"


class _Drawing:
    """Draws the snapshots of a step into files."""

    def __init__(self, case: Case) -> None:
        self.folder = case.folder / "snapshots"
        setup = case.setup
        sinks, seed = Sinks([]), setup.config.train.seed
        self._snapshots = Snapshots(setup.project, case.data.samples, seed, self.folder, sinks, print)

    def __call__(self, trainer: Trainer, step: int) -> None:
        self._snapshots.draw(trainer, step)
        assert list(self.folder.glob(f"*-{step:08d}.png")), f"`snapshots` drew nothing after {step} steps"


def _two_steps(case: Case, between: Callable[[Trainer, int], None]) -> State:
    """Return the state after two steps, with `between` called before, between and after them."""
    parts = assemble(case.setup, case.data, case.folder, print, plans=False)
    try:
        between(parts.trainer, 0)
        for step, batch in enumerate(parts.loaders.training.batches(0)):
            parts.trainer.train_step(batch, step)
            between(parts.trainer, step + 1)
        return parts.trainer.state()
    finally:
        parts.loaders.close()


def _run(forked: Forked, case: Case, run: str, kill_at: int, expected: int = 0) -> None:
    words = [case.kind.name, str(case.folder), run, str(kill_at)]
    done = forked.run(words, Path.cwd(), os.environ, _PATIENCE, f"{__name__}:train_in_a_process")
    message = (
        f"training in a process of its own ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
    )
    assert done.returncode == expected, message


class _Killer(Teller):
    """Kills this process (kill -9) before a step, counted from 1; 0: never.

    A kill from outside cannot be aimed at a moment between two checkpoints.
    """

    def __init__(self, step: int) -> None:
        self._step = step

    def tell(self, step: int, phase: int) -> None:
        if step == self._step and phase == STEP:
            os.kill(os.getpid(), signal.SIGKILL)


def train_in_a_process() -> None:
    """Train the phantom in FOLDER into FOLDER/RUN, or resume there: two epochs of four steps, saved after every three.

    The words of the command line are PROJECT FOLDER RUN STEP; the process kills itself in STEP.
    """
    _, name, folder, run, step = sys.argv
    case = Case(name, Path(folder))
    config = case.setup.config
    config.train.epochs, config.train.steps_per_epoch = 2, 4
    config.checkpoint.every_steps, config.checkpoint.keep = 3, 9
    config.log.every, config.log.snapshots_every = 1, 2
    without = tuple(discovery.extensions())
    spec = TrainingSpec(name, "demo", str(case.phantom), plain(config), without=without)
    train(spec, Path(folder, run), _Killer(int(step)))


def _joined(parts: Sequence[Any]) -> Any:
    """Join batches along the first axis, inside their containers."""
    first = parts[0]
    if isinstance(first, dict):
        return {name: _joined([part[name] for part in parts]) for name in first}
    if isinstance(first, list):
        return [_joined([part[i] for part in parts]) for i in range(len(first))]
    return first if first.ndim == 0 else np.concatenate(parts)


def _weights(state: State) -> dict[str, bytes]:
    """Return the network's own tensors; counters, optimizer and generators change in any step."""
    return {n: np.asarray(t).tobytes() for n, t in state.tensors.items() if n.startswith("model.")}
