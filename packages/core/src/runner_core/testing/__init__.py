"""The contract test of a project, ours or a stranger's: what every part of the runner relies on.

    from runner_core.testing import check_project

    def test_contract(tmp_path):
        check_project("mine", tmp_path)

The project must be installed (its entry point is what is found). It takes about as long as a few training steps on
the phantom. A broken promise is an AssertionError that says which one.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from runner_core import discovery
from runner_core.config import RunConfig
from runner_core.config.resolve import dump, refuse_nonsense
from runner_core.config.values import overlay
from runner_core.evaluation import Scores, evaluate, write_png
from runner_core.loader import Loader
from runner_core.phantoms import write_phantom
from runner_core.plugins import Plugins
from runner_core.project import Project, Record
from runner_core.protocols import Arrays, Metric, Samples, State
from runner_core.runfolder import RunFolder
from runner_core.setup import Data, Setup
from runner_core.splits import split
from runner_core.testing.compare import assert_bad_input, assert_equal, sent

_FRAMEWORKS = ("torch", "tensorflow", "keras", "jax")
_STEPS = 2


class _Watched(Setup):
    """A setup that remembers the metrics it made, for what they hold after a validation."""

    made: Sequence[Metric] = ()

    def metrics(self) -> list[Metric]:
        self.made = found = super().metrics()
        return found


@dataclass
class _Case:
    """What the checks share: the project under preset demo on its phantom."""

    plugins: Plugins
    kind: type[Project]
    folder: Path
    made: dict[str, Any] = field(default_factory=dict)

    def setup(self) -> _Watched:
        config = self.kind.presets["demo"]()
        config.cache.dir = self.folder / "cache"
        config.train.epochs, config.train.steps_per_epoch = 1, _STEPS
        config.train.device, config.train.deterministic = "cpu", True
        config.train.warmup = 0.0  # else two steps might train at a learning rate of 0
        config.health.mode = "warn"  # two steps need not get anywhere
        return _Watched(self.kind(config), config, "demo", self.folder / "phantom", self.plugins)

    @property
    def records(self) -> Sequence[Record]:
        return self.setup().project.records(self.folder / "phantom")


def check_project(name: str, folder: Path) -> None:
    """Check the installed project `name`, writing into the empty `folder`. Raises AssertionError."""
    installed = list(discovery.extensions())
    plugins = Plugins.load(name, without=installed)
    case = _Case(plugins, plugins.project(), folder)
    assert case.kind.name == name, f"the class is named {case.kind.name!r}, its entry point {name!r}"
    for check in (_settings, _light_import, _phantom, _bad_files, _pure, _splits, _samples, _training, _use):
        check(case)


def _settings(case: _Case) -> None:
    """Every preset is sensible, survives YAML, and is made anew each time."""
    for preset, make in case.kind.presets.items():
        config = make()
        assert isinstance(config, case.kind.Config), f"preset {preset} is no {case.kind.Config.__name__}"
        assert isinstance(config, RunConfig), f"preset {preset}: Config must subclass RunConfig"
        refuse_nonsense(config)
        again = overlay(make(), yaml.safe_load(dump(config)), f"preset {preset}")
        assert again == config, f"preset {preset} changes when it is saved and read back"
        config.train.seed += 1
        assert make() != config, f"preset {preset} returns the same object each time: it must make a new one"


def _light_import(case: _Case) -> None:
    """The plugin's module imports no framework: `config`, `--help` and the cache's workers import it."""
    module = discovery.find_project(case.kind.name).entry.module
    code = f"import sys, {module}; print(*[m for m in {_FRAMEWORKS!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"`import {module}` fails alone:\n{done.stderr}"
    assert not done.stdout.split(), f"`import {module}` imports {done.stdout.strip()}: import it where it is used"


def _phantom(case: _Case) -> None:
    """The phantom is written, found, and the same each time; records have unique keys and at least two groups."""
    project = case.setup().project
    first = write_phantom(project, case.folder / "phantom")
    second = write_phantom(project, case.folder / "phantom again")
    records, again = project.records(first), project.records(second)
    keys = [r.key for r in records]
    assert len(set(keys)) == len(keys) > 1, f"the phantom needs two records or more, with unique keys: {keys}"
    assert len({r.group for r in records}) > 1, "the phantom needs two groups, so that it can be split"
    assert [r.key for r in again] == keys, "the phantom's records differ from one writing to the next"
    for record in records:
        for role, file in record.files.items():
            assert file.exists(), f"record {record.key}: its {role} {file} does not exist"
    one, other = project.decode(records[0]).arrays, project.decode(again[0]).arrays
    assert_equal(one, other, "phantom written twice from one seed")
    shutil.rmtree(second)


def _bad_files(case: _Case) -> None:
    """A missing or empty folder and truncated files are BadInput that names them."""
    project = case.setup().project
    empty = case.folder / "empty"
    empty.mkdir()
    for folder in (empty, case.folder / "missing"):
        assert_bad_input(partial(project.records, folder), folder)
    broken = case.folder / "broken"
    roles = [role for role, file in project.records(case.folder / "phantom")[0].files.items() if file.is_file()]
    for role in roles:
        shutil.copytree(case.folder / "phantom", broken)
        record = project.records(broken)[0]
        file = record.files[role]
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])

        def read(record: Record = record) -> Any:
            return project.decode(next(r for r in project.records(broken) if r.key == record.key))

        assert_bad_input(read, file)
        shutil.rmtree(broken)


def _pure(case: _Case) -> None:
    """Preparing a record depends on that record alone, in this process and in another (it is pickled)."""
    setup = case.setup()
    first, second = case.records[0], case.records[1]
    before = setup.pipeline(first)
    setup.pipeline(second)
    after = setup.pipeline(first)
    assert_equal(before.arrays, after.arrays, "prepare, called twice on one record")
    assert before.meta == after.meta, "prepare returns other meta for the same record"
    elsewhere = sent(setup.pipeline)(first)
    assert_equal(before.arrays, elsewhere.arrays, "prepare in another process")
    for name, array in before.arrays.items():
        assert array.dtype != object, f"prepared array {name!r} holds Python objects"
    assert list(setup.project.check(first)) is not None


def _splits(case: _Case) -> None:
    """The split is by group, and leaves records on both sides."""
    setup = case.setup()
    sides = split(case.records, setup.config.data, setup.config.train.seed)
    assert sides["train"], "the phantom under preset demo leaves nothing to train on"
    assert sides["validation"], "the phantom under preset demo leaves nothing to validate on"
    groups = {side: {case.records[n].group for n in numbers} for side, numbers in sides.items()}
    assert not groups["train"] & groups["validation"], f"groups on both sides: {groups}"
    store = setup.cache.open(setup.pipeline, case.records, _silent)
    case.made["data"] = Data(case.records, sides, store, setup.project.fit(store, sides["train"]))
    case.made["setup"] = setup


def _samples(case: _Case) -> None:
    """Samples are as their spec says, and a pure function of (seed, epoch, index), in another process too."""
    setup, data = case.made["setup"], case.made["data"]
    for side in ("train", "validation"):
        samples = setup.project.samples(data.store, data.splits[side], side)
        indices = np.arange(min(len(samples), 6), dtype=np.int64)
        assert len(indices), f"there are no {side} samples"
        one = _fill(samples, indices)
        assert_equal(one, _fill(samples, indices), f"{side} samples filled twice")
        backwards = {name: array[::-1] for name, array in _fill(samples, indices[::-1]).items()}
        assert_equal(one, backwards, f"{side} samples filled in another order")
        elsewhere: Samples = sent(samples)
        assert_equal(one, _fill(elsewhere, indices), f"{side} samples in another process")


def _training(case: _Case) -> None:
    """Two steps on the CPU: finite losses, weights that move, the monitored metric is there, metrics that stream."""
    from runner_core.training import train

    setup, data = case.made["setup"], case.made["data"]
    run = RunFolder.create(None, setup.name, case.folder / "run")
    fresh = setup.engine.trainer(setup, data, _STEPS)
    before = _weights(fresh.state())
    _assert_streams(setup, data, fresh)
    summary = train(setup, data, run, _NoSinks(), _NoDisplay(), False)
    metric = setup.project.monitor[0]
    assert summary["steps"] == _STEPS, summary
    assert metric in summary["metrics"], f"the monitored metric {metric!r} is not among {list(summary['metrics'])}"
    assert all(np.isfinite(v) for v in summary["metrics"].values()), summary["metrics"]
    from runner_core.checkpoint import Checkpoints

    checkpoints = Checkpoints(run.checkpoints, setup.checkpoint_format, project=setup.name)
    found = checkpoints.latest()
    assert found is not None, "no checkpoint was saved"
    state = checkpoints.load(found[0])
    assert _weights(state) != before, "two training steps changed no weight"
    case.made["state"] = state


def _use(case: _Case) -> None:
    """predict, write, remarks, scores, figure and export on a validation record, where the project has them."""
    setup, data = case.made["setup"], case.made["data"]
    project = setup.project
    out = case.folder / "out"
    out.mkdir()
    assert setup.engine.export(setup, case.made["state"], case.folder / "export"), "export wrote nothing"
    if type(project).predict is Project.predict:
        return
    trained = setup.engine.load(setup, case.made["state"])
    infer = trained.infer
    record = data.records[data.splits["validation"][0]]
    prediction = project.predict(record, infer)
    assert_equal(prediction, project.predict(record, infer), "predict, called twice")
    for path in project.write(record, prediction, out):
        assert path.is_file(), f"write says that it wrote {path}, which does not exist"
        assert out in path.parents, f"write wrote {path}, which is outside of {out}"
    _assert_scores(project, evaluate(project, infer, [record], trained.statistics))
    picture = project.figure(record, prediction)
    if picture is not None:
        write_png(out / "figure.png", picture)  # refuses what is no picture


def _assert_scores(project: Project, scores: Scores) -> None:
    """What `score`, `baseline`, `pooled`, `shown`, `tables` and `remarks` name fits together."""
    assert not scores.errors, scores.errors
    names = set(scores.rows[0].scores)
    assert set(scores.rows[0].baseline) in (set(), names), "the baseline is scored by other names than the network"
    assert set(scores.means) == names, f"pooled makes up scores: {set(scores.means) - names}"
    assert set(project.shown) <= names, f"shown names what is no score: {set(project.shown) - names}"
    for table in scores.tables:
        wrong = [row for row in table.rows if len(row) != len(table.columns)]
        assert not wrong, f"table {table.name!r} has rows that are not as long as its columns: {wrong[:3]}"
    for _, finding in scores.remarks:
        assert finding.level != "error", f"a remark is a note or a warning, not an error: {finding}"


def _assert_streams(setup: _Watched, data: Data, trainer: Any) -> None:
    """Validation metrics do not depend on how the samples are cut into batches (means of the loss may, a little)."""
    data.samples = {
        side: setup.project.samples(data.store, data.splits[side], side) for side in ("train", "validation")
    }
    found: list[Mapping[str, float]] = []
    for size in (3, 4):
        loader = Loader(data.samples["validation"], batch_size=size, seed=0, shuffle=False)
        found.append(trainer.validate(loader.batches(0)))
        loader.close()
    for name in (name for metric in setup.made for name in metric.compute()):  # filled by the validation above
        assert name in found[0], f"metric {name!r} is not among the validation's: {list(found[0])}"
        same = np.isclose(found[0][name], found[1][name], rtol=1e-3, atol=1e-4, equal_nan=True)
        assert same, f"metric {name!r} depends on the batch size: {found[0][name]} and {found[1][name]}"


def _fill(samples: Samples, indices: Any) -> Arrays:
    out = {name: np.empty((len(indices), *spec.shape), spec.dtype) for name, spec in samples.spec.items()}
    samples.fill(indices, np.asarray(indices), 3, 5, out)
    return out


def _weights(state: State) -> dict[str, bytes]:
    """The network's own tensors; counters, optimizer and generators change in any step."""
    return {n: np.asarray(t).tobytes() for n, t in state.tensors.items() if n.startswith("model.")}


def _silent(text: str) -> None:
    return None


class _NoSinks:
    def event(self, kind: str, step: int, values: Mapping[str, Any]) -> None: ...


class _NoDisplay:
    def start(self, total_steps: int, first_step: int, title: str) -> None: ...

    def update(self, step: int, epoch: int, values: Mapping[str, Any]) -> None: ...

    def say(self, text: str) -> None: ...

    def stop(self) -> None: ...
