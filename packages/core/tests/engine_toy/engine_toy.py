"""A small torch project on generated arrays, and what a run of it needs: no files, no plugins, no command line.

Worker processes import this module: it imports no framework at its top.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
from runner_core.config import RunConfig
from runner_core.contract import Step
from runner_core.contract.facets import Health, Learning, Pictures
from runner_core.contract.project import Project
from runner_core.contract.records import Record
from runner_core.contract.setup import Data
from runner_core.contract.start import StartWeights
from runner_core.contract.team import ALONE, Team
from runner_core.data.samples import RowSamples
from runner_core.engines.device import default_precision
from runner_core.health import default_rules
from runner_core.output.display import Display
from runner_core.output.runfolder import RunFolder
from runner_core.output.sinks import JsonlSink, Sinks

SIDE = 8

NOTHING_LEARNED = (
    (lambda step: None, r"`step` must return Step\(loss, terms, prediction\); it returned NoneType"),
    (tuple, "it returned tuple"),
    (lambda step: step._replace(loss=step.prediction[:, 0]), r"must be one number .* it has shape \(7,\)"),
    (lambda step: step._replace(loss=1.0), "it is of type float"),
)
"""Changes of a good Step (of 7 samples) that no engine takes, and the message of each."""


class Rows:
    """`StoredArray` in memory: records of some rows each."""

    def __init__(self, arrays):
        self._whole = np.concatenate(arrays)
        self.shapes = [a.shape for a in arrays]
        self.dtype = self._whole.dtype
        self._begin = np.cumsum([0, *(len(a) for a in arrays)])

    def read(self, record, region=None):
        whole = self._whole[self._begin[record] : self._begin[record + 1]]
        return whole if region is None else whole[region]

    def take(self, rows, out):
        np.take(self._whole, rows, axis=0, out=out, mode="clip")


class MemoryStore:
    def __init__(self, records=6, rows=7, device=False, seed=0):
        rng = np.random.default_rng(seed)
        images = [rng.integers(0, 255, (rows + i % 2, SIDE, SIDE), dtype=np.uint8) for i in range(records)]
        self.arrays = {"image": Rows(images), "mask": Rows([(i > 128).astype(np.uint8) for i in images])}
        self.keys = [f"r{i}" for i in range(records)]
        self.meta = [{} for _ in range(records)]
        self.device = device
        self.identity = f"{records} records of {rows} rows, seed {seed}"

    def close(self):
        pass


@dataclass
class NetConfig:
    dropout: float = 0.3
    batchnorm: bool = True


@dataclass
class ToyConfig(RunConfig):
    net: NetConfig = field(default_factory=NetConfig)


def small(**settings) -> ToyConfig:
    """A config of a few steps; settings by dotted name with __ for the dot."""
    config = ToyConfig()
    base = {
        "train__epochs": 3,
        "train__batch_size": 8,
        "train__learning_rate": 5e-2,
        "train__device": "cpu",
        "log__every": 2,
        "checkpoint__keep": 2,
        "health__memory": "off",  # tests count calls of `step`; test_memory has it on
    }
    for name, value in {**base, **settings}.items():
        section, _, key = name.partition("__")
        part = getattr(config, section)
        assert hasattr(part, key), name
        setattr(part, key, value)
    return config


class Fields(Project):
    """A project that has the fields of its facets as members of its class: a test's class replaces one of them."""

    def learning(self):
        return _of(self, Learning)

    def health(self):
        return _of(self, Health)

    def pictures(self):
        return _of(self, Pictures)


def _of(project, kind):
    return kind(**{f.name: getattr(project, f.name) for f in fields(kind) if hasattr(project, f.name)})


class Toy(Fields):
    """Segment bright pixels, with everything random that a project may use: dropout, augment, on_device."""

    name = "enginetoy"
    framework = "torch"
    Config = ToyConfig
    presets: ClassVar = {"default": ToyConfig, "demo": ToyConfig}
    monitor = ("accuracy", "max")
    splittable = True  # BatchNorm would forbid it, but here nobody asks what accumulation learns

    def samples(self, store, records, split):
        return RowSamples(store, {"image": (-1, 0), "mask": (0,)}, records)

    def fit(self, store, training):
        return {"mean": np.float64(127.5), "weights": np.array([1.0, 2.0])}

    def augment(self, sample, rng):
        if rng.random() < 0.5:
            for name in ("image", "mask"):
                sample[name][...] = sample[name][..., ::-1].copy()

    def on_device(self, batch, statistics, rng):
        import torch

        image = (batch["image"].float() - float(statistics["mean"])) / 64
        if rng is not None:
            image = image + 0.1 * torch.randn(image.shape, generator=rng, device=image.device)
        return {**batch, "image": image}

    def model(self, precision):
        from torch import nn

        width = 4
        return nn.Sequential(
            nn.Conv2d(2, width, 3, padding=1),
            nn.BatchNorm2d(width) if self.config.net.batchnorm else nn.Identity(),
            nn.ReLU(),
            nn.Dropout(self.config.net.dropout),
            nn.Conv2d(width, 1, 1),
        )

    def step(self, model, batch, progress):
        from torch.nn import functional as F

        logits = model(batch["image"])
        target = batch["mask"].float()
        loss = F.binary_cross_entropy_with_logits(logits, target)
        return Step(loss, {"bce": loss, "spread": logits.float().std()}, logits)

    def decision(self, prediction):
        return prediction > 0

    def watch(self, model):
        last = [*model.parameters()][-1].detach()
        return {"last": last.cpu().numpy(), "largest": last.abs().max().cpu().numpy()}

    def metrics(self):
        from runner_core.engines.torch.metrics import TorchFunctionMetric

        return [TorchFunctionMetric("accuracy", lambda p, b: ((p > 0) == (b["mask"] > 0)).float().mean())]


@dataclass
class ToySetup:
    """`setup.Setup` without plugins."""

    project: Project
    rules: list | None = None
    plugins: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(versions={"core": "0"}))
    team: Team = ALONE
    start: StartWeights | None = None

    @property
    def config(self):
        return self.project.config

    @property
    def name(self):
        return self.project.name

    @cached_property
    def engine(self):
        from runner_core.plugins.defaults import runner_engine

        return runner_engine(self.project, self.config)

    @cached_property
    def device(self):
        return self.engine.device()

    @cached_property
    def precision(self):
        return default_precision(self.project, self.config, self.device)

    @property
    def checkpoint_format(self):
        from runner_core.plugins.defaults import runner_checkpoint

        return runner_checkpoint(self.project, self.config)

    def metrics(self):
        return list(self.project.metrics())

    def health_rules(self):
        return default_rules(self.project, self.config) if self.rules is None else self.rules


class Quiet(Display):
    """A display that shows nothing and remembers what was said."""

    def __init__(self):
        super().__init__(silent=True)
        self.said: list[str] = []
        self.updates = 0

    def due(self, step):
        return True

    def update(self, step, epoch, values, validations=0.0):
        self.updates += 1

    def say(self, text):
        self.said.append(text)


def make_data(project, store=None, validation=True) -> Data:
    store = store or MemoryStore()
    numbers = list(range(len(store.keys)))
    splits = {"train": numbers[:-2], "validation": numbers[-2:]} if validation else {"train": numbers}
    data = Data([Record(k, k, {}) for k in store.keys], splits, store)
    data.statistics = project.fit(store, splits["train"])
    return data


def run(config, folder: Path, *, resume=False, project=Toy, data=None, rules=None, display=None, team=ALONE):
    """Train in `folder`; the summary."""
    from runner_core.training.run import train

    made = project(config)
    place = RunFolder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    sinks = Sinks([JsonlSink(folder / "log.jsonl")] if team.first else [])
    setup = ToySetup(made, rules, team=team)
    try:
        return train(setup, data or make_data(made), place, sinks, display or Quiet(), resume=resume)
    finally:
        sinks.close()


def that_notes_statistics(kind):
    """The project, which notes what `statistics` were when `model` was called."""

    class Notes(kind):
        seen = None

        def model(self, precision):
            self.seen = self.statistics
            return super().model(precision)

    return Notes


def assert_statistics_known(kind, state, folder: Path) -> None:
    """`model` knows the statistics: the data's in training, the checkpoint's (whose mean is altered here) after it."""
    notes = that_notes_statistics(kind)
    assert notes(small()).statistics == {}
    setup = ToySetup(notes(small(train__ema=0.9)))
    data = make_data(setup.project)
    trainer = setup.engine.trainer(setup, data, 3)
    assert setup.project.seen is setup.project.statistics is data.statistics
    part = state.values[kind.framework]
    assert part["statistics"]["mean"] == 127.5
    part["statistics"]["mean"] = 3.5
    trainer.load_state(state)
    assert setup.project.statistics["mean"] == 3.5
    for use in (lambda setup: setup.engine.load(setup, state), lambda setup: setup.engine.export(setup, state, folder)):
        setup = ToySetup(notes(small(train__ema=0.9)))
        use(setup)
        assert setup.project.seen["mean"] == setup.project.statistics["mean"] == 3.5
        assert setup.project.statistics["weights"].tolist() == [1.0, 2.0]


def assert_initialised_for_a_training_alone(kind, state, folder: Path) -> None:
    """`initialise` is given the network that a training begins with, also where that is made anew to be compared with;
    none that gets a checkpoint's weights, whose pretrained ones need not be there any more."""

    class Pretrained(kind):
        begun = None

        def initialise(self, model):
            assert self.begun is None
            self.begun = model

    def fresh():
        return ToySetup(Pretrained(small(train__ema=0.9)))

    setup = fresh()
    trainer = setup.engine.trainer(setup, make_data(setup.project), 3)
    assert trainer.network is setup.project.begun
    setup = fresh()
    assert setup.engine.untrained(setup, state).network is setup.project.begun
    for use in (lambda setup: setup.engine.load(setup, state), lambda setup: setup.engine.export(setup, state, folder)):
        setup = fresh()
        use(setup)
        assert setup.project.begun is None


def log_lines(folder: Path) -> list[dict]:
    """log.jsonl without what may differ between equal runs."""
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    for line in lines:
        line.pop("timing", None)
    return [line for line in lines if line["event"] != "speed"]


def final_state(folder: Path):
    """(values, tensors) of the newest checkpoint, without timing."""
    from runner_core.engines.checkpoint import STATE
    from runner_core.training.checkpoints import Checkpoints

    def formats():
        if "keras" in json.loads(next((folder / "checkpoints").glob(f"step-*/{STATE}")).read_text())["values"]:
            from runner_core.engines.keras.checkpoint import ArraysFormat

            return ArraysFormat()
        from runner_core.engines.torch.checkpoint import SafetensorsFormat

        return SafetensorsFormat()

    checkpoints = Checkpoints(folder / "checkpoints", formats(), project="enginetoy")
    path, _ = checkpoints.latest()
    state = checkpoints.load(path)
    state.values.pop("timing")
    return state.values, state.tensors


def assert_equal_runs_after(one: Path, other: Path) -> None:
    """Bit for bit at the end, as `assert_equal_runs`; the lines of the start may differ."""
    (values, tensors), (values2, tensors2) = final_state(one), final_state(other)
    assert values == values2
    assert all(np.array_equal(np.asarray(tensor), np.asarray(tensors2[name])) for name, tensor in tensors.items())


def assert_equal_runs(one: Path, other: Path) -> None:
    """Bit for bit: weights, optimizer, average, generators, best, counters, log lines, the best checkpoint."""
    (values, tensors), (values2, tensors2) = final_state(one), final_state(other)
    assert values == values2
    assert tensors.keys() == tensors2.keys()
    for name, tensor in tensors.items():
        assert np.array_equal(np.asarray(tensor), np.asarray(tensors2[name])), name
    assert log_lines(one) == log_lines(other)
    best = "checkpoints/best.json"
    assert (one / best).read_text() == (other / best).read_text()


if __name__ == "__main__":  # python engine_toy.py FOLDER RESUME SETTINGS: a run that a test may kill
    import torch

    torch.set_num_threads(1)
    run(small(**json.loads(sys.argv[3])), Path(sys.argv[1]), resume=sys.argv[2] == "resume")
