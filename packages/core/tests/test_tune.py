"""Which remedies tuning keeps, of trials whose speed and losses are given; and the command itself, on the toy."""

from __future__ import annotations

import json
import math
import random
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parent / "engine_toy"))
from measure_toy import ready
from runner_core import Learning
from runner_core.base.errors import BadInput
from runner_core.base.writing import json_text
from runner_core.cli import main
from runner_core.config import RunConfig
from runner_core.config.values import flat
from runner_core.contract import Remedy
from runner_core.contract.project import Project
from runner_core.tools.measure import tune
from runner_core.tools.measure.agreement import same_samples, same_steps
from runner_core.tools.measure.process import TrialFailed
from runner_core.tools.measure.remedies import Candidate, Facts, LeftOut, systematic, with_remedies
from runner_core.tools.measure.trial import Doubt, Turn
from runner_core.tools.measure.tune import Tuning
from runner_core.tools.measure.tune_report import facts, lines, verdict
from runner_core.training.assembly import TrainingSpec


class World:
    """Trials without processes: what each setting does to the seconds of a sample, to the loss and to memory."""

    def __init__(self, noise=0.05, seed=0):
        self.random, self.noise = random.Random(seed), noise
        self.speed = {}
        """(setting, value) → times as fast."""
        self.bias = {}
        """(setting, value) → added to the losses."""
        self.host, self.fails = {}, {}
        """(setting, value) → bytes; the exception it raises at its start."""
        self.doubts = {}
        """(setting, value) → why its gradients cannot be trusted."""
        self.together = math.inf
        """Trials that have room at once."""
        self.alive = []
        self.drift = 1.0

    def trial(self, base, name, settings, **options):
        return FakeTrial(self, name, settings)


class FakeTrial:
    def __init__(self, world, name, settings):
        self.world, self.name, self.settings = world, name, dict(settings)
        self.ready, self.done, self.timeout = None, 0, None

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    @property
    def alive(self):
        return self in self.world.alive

    @property
    def batch(self):
        return self.settings.get("train.batch_size", 4)

    def _of(self, table, usual, combine):
        for item in self.settings.items():
            usual = combine(usual, table[item]) if item in table else usual
        return usual

    def start(self):
        self.close()
        if len(self.world.alive) >= self.world.together:
            raise TrialFailed("no room", memory=True)
        error = self._of(self.world.fails, None, lambda _, error: error)
        if error is not None:
            raise error
        self.world.alive.append(self)
        self.done = 1
        self.ready = ready(loss=self._loss(0), batch=self.batch, host_bytes=self.memory()[0])
        return self.ready

    def close(self):
        if self.alive:
            self.world.alive.remove(self)

    def _loss(self, step):
        """Falls with the samples that were learned from."""
        return 1 / (1 + 0.01 * step * self.batch) + self._of(self.world.bias, 0.0, lambda a, b: a + b)

    def steps(self, count):
        world, first = self.world, self.done
        world.drift *= math.exp(world.random.gauss(0, 0.04))  # a machine that is now fast and now slow
        self.done += count + 1
        each = 0.01 / self._of(world.speed, 1.0, lambda a, b: a * b) * math.exp(world.random.gauss(0, world.noise))
        seconds = each * count * self.batch * world.drift
        return Turn(seconds, count * self.batch, count, 0.0, first, [self._loss(s) for s in range(first, self.done)])

    def doubt(self):
        return self._of(self.world.doubts, None, lambda before, doubt: doubt)

    def evaluate(self, samples):
        return {"loss": self._loss(self.done - 1)}

    def memory(self):
        return self._of(self.world.host, 1000, max), 0


@pytest.fixture
def world(monkeypatch):
    made = World()
    monkeypatch.setattr(tune, "Trial", made.trial)
    monkeypatch.setattr(tune, "available_ram", lambda: 1 << 40)
    return made


BASE = TrainingSpec("toy", "demo", None, {"train": {"batch_size": 4}})
SETTINGS = {"train.workers": 0, "train.channels_last": "auto", "train.batch_size": 4, "train.compile": "auto"}


def tuned(*fixes, minutes=10.0, memory=None):
    with Tuning(BASE, 60 * minutes, memory) as tuning:
        tuning.begin()
        tuning.try_all(SETTINGS, [Candidate(fix) for fix in fixes], [])
        return tuning.finish()


def outcome(found, name):
    return next(row for row in found.rows if row.name == name)


WORKERS = Remedy("workers", {"train.workers": 2}, "")
LAYOUT = Remedy("layout", {"train.channels_last": "on"}, "")
COMPILE = Remedy("compile", {"train.compile": "on"}, "")
BATCH = Remedy("batch", {"train.batch_size": 8}, "", same=False)


def test_what_is_faster_is_kept_and_the_rest_is_not(world):
    world.speed = {("train.workers", 2): 1.4, ("train.channels_last", "on"): 0.7}
    found = tuned(WORKERS, LAYOUT, COMPILE)
    assert found.settings == {"train.workers": 2}
    assert [row.outcome for row in found.rows] == ["kept", "given up", "no faster"]
    assert [row.reason for row in found.rows][1:] == ["slower in each of 3 rounds", ""]
    assert found.final.low > 1
    assert found.final.ratio == pytest.approx(1.4, rel=0.1)
    assert not world.alive


def test_remedies_add_up(world):
    world.speed = {("train.workers", 2): 1.3, ("train.compile", "on"): 1.3}
    found = tuned(WORKERS, COMPILE)
    assert found.settings == {"train.workers": 2, "train.compile": "on"}
    assert outcome(found, "compile").comparison.ratio == pytest.approx(1.3, rel=0.1)
    assert found.final.ratio == pytest.approx(1.69, rel=0.1)


def test_noise_is_not_kept(world):
    """Equals, in a machine whose speed wanders: what is written is never what chance favoured."""
    written = 0
    for seed in range(40):
        world.random.seed(seed)
        written += bool(tuned(WORKERS, LAYOUT, COMPILE).settings)
    assert written <= 1


def test_chance_does_not_pass_twice(world, monkeypatch):
    """A remedy that was lucky once: the last comparison gives the settings back."""
    real = FakeTrial.steps

    def lucky(self, count):
        turn = real(self, count)
        last = any(trial.name == "the settings as they were" for trial in world.alive)
        if "train.workers" in self.settings and not last:
            turn = Turn(turn.seconds / 1.5, turn.samples, turn.steps, 0.0, turn.first, turn.losses)
        return turn

    monkeypatch.setattr(FakeTrial, "steps", lucky)
    found = tuned(WORKERS)
    assert outcome(found, "workers").outcome == "kept"
    assert (found.settings, found.dropped) == ({}, {"train.workers": 2})
    assert "measured once more" in verdict(found)


def test_faster_but_learning_otherwise_is_not_kept(world):
    world.speed = {("train.workers", 2): 2.0}
    world.bias = {("train.workers", 2): 0.2}
    found = tuned(WORKERS)
    assert found.settings == {}
    assert outcome(found, "workers").outcome == "learns otherwise"
    assert "mean loss" in outcome(found, "workers").reason


def test_faster_with_equal_losses_but_wrong_gradients_is_not_kept(world):
    world.speed = {("train.compile", "on"): 2.0, ("train.workers", 2): 1.5}
    world.doubts = {("train.compile", "on"): Doubt("wrong", "train.compile computes the gradient of a bias wrongly")}
    found = tuned(COMPILE, WORKERS)
    assert found.settings == {"train.workers": 2}
    assert outcome(found, "compile").outcome == "wrong gradients"
    assert "bias" in outcome(found, "compile").reason


def test_faster_with_equal_losses_but_gradients_that_nobody_compared_is_not_kept(world):
    world.speed = {("train.compile", "on"): 2.0, ("train.workers", 2): 1.5}
    world.doubts = {("train.compile", "on"): Doubt("unchecked", "not compared with plain float32: no memory")}
    found = tuned(COMPILE, WORKERS)
    assert found.settings == {"train.workers": 2}
    assert outcome(found, "compile").outcome == "unchecked gradients"
    assert "no memory" in outcome(found, "compile").reason


def test_what_fails_is_a_row(world):
    world.fails = {("train.compile", "on"): TrialFailed("no compiler", output="cc1plus: not found")}
    world.speed = {("train.workers", 2): 1.5}
    found = tuned(COMPILE, WORKERS)
    row = outcome(found, "compile")
    assert (row.outcome, row.reason, row.output) == ("failed", "no compiler", "cc1plus: not found")
    assert found.settings == {"train.workers": 2}


def test_what_takes_more_memory_than_allowed_is_a_row(world):
    world.speed = {("train.workers", 2): 1.5}
    world.host = {("train.workers", 2): 5000}
    found = tuned(WORKERS, memory=3000)
    assert outcome(found, "workers").outcome == "too large"
    assert "--memory-gb" in outcome(found, "workers").reason
    assert found.settings == {}
    with pytest.raises(BadInput, match=r"cannot be measured: takes 1\.0 kB"):
        tuned(WORKERS, memory=500)


def test_trials_that_do_not_fit_together_run_one_after_another(world):
    world.together = 1
    world.speed = {("train.workers", 2): 1.5}
    world.fails = {("train.compile", "on"): TrialFailed("out of memory", memory=True)}
    found = tuned(WORKERS, COMPILE)
    row = outcome(found, "workers")
    assert (row.outcome, row.apart) == ("kept", True)
    assert outcome(found, "compile").outcome == "too large"
    assert found.settings == {"train.workers": 2}


@pytest.mark.parametrize("together", [math.inf, 1])
def test_another_batch_size_must_learn_as_much_of_as_many_samples(world, together):
    world.together = together
    world.speed = {("train.batch_size", 8): 1.5}
    found = tuned(BATCH)
    assert found.settings == {"train.batch_size": 8}
    assert "samples the loss is" in outcome(found, "batch").agreement.text
    world.bias = {("train.batch_size", 8): 0.3}
    found = tuned(BATCH)
    assert outcome(found, "batch").outcome == "learns otherwise"
    assert found.settings == {}


def test_without_time_nothing_is_tried(world, tmp_path):
    found = tuned(WORKERS, minutes=0.01)
    assert outcome(found, "workers").outcome == "not tried"
    text = "\n".join(lines(found, tmp_path, "toy"))
    assert "Nothing was tried, since 0.01 minutes did not suffice for any remedy: the settings stay. About" in text
    assert "--minutes 1 would do for all that was left out" in text
    assert "next:" not in text


def test_a_short_time_is_used_for_the_first_remedy(world):
    """If nothing could be tried otherwise, it uses the time kept for the last comparison, but not for a profile."""
    said = []
    with Tuning(BASE, 14.0, None, said.append) as tuning:
        tuning.begin()
        tuning.ready = replace(tuning.ready, seconds=1.0)
        assert tuning.remedies() == []
        tuning.try_all(SETTINGS, [Candidate(WORKERS), Candidate(COMPILE)], [])
        found = tuning.finish()
    assert "no time for a profile" in said[0]
    assert outcome(found, "workers").outcome == "no faster"


def test_while_nothing_is_kept_less_is_put_aside_for_the_last_comparison(world):
    with Tuning(BASE, 60.0) as tuning:
        tuning.begin()
        before = tuning._final_seconds()
        tuning.kept = {"train.workers": 2}
        assert before == pytest.approx(tuning._final_seconds() / 2)


def test_slower_is_said_only_beyond_the_noise(world):
    world.speed = {("train.workers", 2): 0.7}
    world.random = SimpleNamespace(gauss=lambda *_: 0.0)
    row = outcome(tuned(WORKERS), "workers")
    assert (row.outcome, row.comparison.high < 1) == ("given up", False)
    world.speed = {("train.workers", 2): 0.97}
    row = outcome(tuned(WORKERS), "workers")
    assert (row.outcome, row.comparison.high < 1) == ("slower", True)


def test_where_there_is_nothing_to_try_no_time_is_asked_for(world):
    assert verdict(tuned()) == "Nothing was tried, since there is nothing to try: the settings stay."
    assert "--minutes" not in verdict(tuned(WORKERS))


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), SystemExit(143)])
def test_interrupted_it_tells_what_it_has_and_keeps_nothing(world, tmp_path, stop):
    """In the second remedy: what was kept before was not measured once more."""
    world.speed = {("train.workers", 2): 1.5}
    world.fails = {("train.channels_last", "on"): stop}
    with Tuning(BASE, 600.0) as tuning:
        tuning.begin()
        with pytest.raises(type(stop)):
            tuning.try_all(SETTINGS, [Candidate(fix) for fix in (WORKERS, LAYOUT, COMPILE)], [])
        found = tuning.stopped()
    assert not world.alive
    assert [(row.name, row.outcome) for row in found.rows] == [
        *(("workers", "kept"), ("layout", "not tried"), ("compile", "not tried"))
    ]
    assert (found.settings, found.dropped, found.final) == ({}, {"train.workers": 2}, None)
    text = "\n".join(lines(found, tmp_path, "toy"))
    assert "not tried: layout, compile (interrupted)" in text
    assert "the settings stay as they were (train.workers 2 was faster, but not yet measured once more)" in text
    assert facts(found, BASE)["interrupted"]


def test_settings_that_fail_from_the_start_are_refused(world, monkeypatch):
    monkeypatch.setattr(FakeTrial, "start", lambda self: (_ for _ in ()).throw(TrialFailed("no GPU here")))
    with pytest.raises(BadInput, match="cannot be measured: no GPU here"):
        tuned(WORKERS)


def test_what_is_so_already_is_not_tried(world):
    assert [row.name for row in tuned(Remedy("same", {"train.workers": 0}, ""), WORKERS).rows] == ["workers"]


def test_report_holds_all_that_was_found(world, tmp_path):
    world.speed = {("train.workers", 2): 1.4, ("train.channels_last", "on"): 0.7}
    found = tuned(WORKERS, LAYOUT)
    told = json.loads(json_text(facts(found, BASE)))
    assert told["settings"] == {"train.workers": 2}
    assert [row["outcome"] for row in told["tried"]] == ["kept", "given up"]
    text = "\n".join(lines(found, tmp_path, "toy"))
    assert "workers" in text
    assert "× (3 rounds)" in text
    assert "given up: slower in each of 3 rounds" in text
    assert f"runner toy train --config {tmp_path}/settings.yaml" in text


# ---------------------------------------------------------------- what is tried


class Plain(Project):
    name = "plain"
    framework = "torch"


class Augmenting(Plain):
    def learning(self):
        return Learning(augment=lambda sample, rng: None)


def listed(project=Plain, wait=0.0, step=0.5, settings=(), **told):
    config = RunConfig()
    found = Facts(project(config), {**flat(config), **dict(settings)}, ready(**told), wait, step, 1 << 30)
    tried, left = systematic(found)
    return {c.name: c for c in tried}, {one.name: one.reason for one in left}


def test_data_is_left_alone_where_training_does_not_wait():
    tried, left = listed(wait=0.001)
    assert not any("train.workers" in c.remedy.settings or "cache.mode" in c.remedy.settings for c in tried.values())
    assert "0.1%" in left["workers, prefetch, another cache"]
    tried, _ = listed(wait=0.3)
    assert "1 worker" in tried
    assert "cache in memory" in tried
    prefetch = tried["prefetch 4"]
    assert not prefetch.applies({"train.workers": 0, "train.prefetch": 2})
    assert prefetch.applies({"train.workers": 1, "train.prefetch": 2})


def test_device_decides_what_is_tried():
    cpu, _ = listed()
    gpu, _ = listed(kind="cuda", device_total=10**9, precision="bfloat16")
    assert "set on the GPU" in gpu
    assert "set on the GPU" not in cpu
    assert "bfloat16" in cpu
    assert "bfloat16" not in gpu
    _, left = listed(Augmenting, kind="cuda", device_total=10**9)
    assert left["set on the GPU"] == "samples are augmented on the host"
    _, left = listed(kind="cuda", device_total=2000)
    assert "more than 30%" in left["set on the GPU"]


def test_batch_size_doubles_only_after_it_was_kept():
    tried, _ = listed(batch=8, samples_per_epoch=1000, settings={"train.batch_size": 8, "train.steps_per_epoch": 100})
    assert tried["batch size 16"].remedy.settings == {"train.batch_size": 16, "train.steps_per_epoch": 50}
    assert not tried["batch size 16"].remedy.same
    assert tried["batch size 32"].applies({"train.batch_size": 16})
    assert not tried["batch size 32"].applies({"train.batch_size": 8})
    assert not tried["batch size 4"].applies({"train.batch_size": 16})
    tried, _ = listed(batch=8, samples_per_epoch=10)
    assert "batch size 16" not in tried


def test_remedies_of_a_profile_come_first_and_once():
    tried, _ = listed(wait=0.2)
    fixes = [
        Remedy("precision", {"precision.mode": "bfloat16"}, "products take half", 0.4, same=False),
        Remedy("own", {"model.fast": True}, "the project knows"),
        Remedy("validation less often", {"validate.every": 4}, "it takes 30%", 0.2),
    ]
    found, left = with_remedies(fixes, list(tried.values()))
    assert [c.name for c in found][:2] == ["bfloat16", "own"]
    assert found[0].remedy.why == "products take half"
    assert len(found) == len(tried) + 1
    assert left[0].name == "validation less often"
    assert "validate.every 4" in left[0].reason
    assert isinstance(left[0], LeftOut)


# ---------------------------------------------------------------- do they learn the same?


def test_losses_that_differ_by_rounding_agree():
    before = [1 / (1 + n) for n in range(40)]
    assert same_steps(before, [loss * 1.001 for loss in before]).agrees
    assert not same_steps(before, [loss * 1.15 for loss in before]).agrees
    assert not same_steps(before, [*before[:-1], math.nan]).agrees
    noise = random.Random(0)
    dropout = [loss + noise.gauss(0, 0.05) for loss in before]
    assert same_steps(before, dropout).agrees


def test_what_was_learned_must_be_visible():
    start, before = {"loss": 1.0}, {"loss": 0.5}
    assert same_samples(start, before, {"loss": 0.52}, 100).agrees
    assert not same_samples(start, before, {"loss": 0.7}, 100).agrees
    assert not same_samples(start, before, {"loss": math.inf}, 100).agrees
    found = same_samples(start, {"loss": 0.999}, {"loss": 0.9}, 100)
    assert not found.agrees
    assert "too little is learned" in found.text


# ---------------------------------------------------------------- the command


@pytest.mark.slow
@pytest.mark.torch
def test_command_writes_settings_that_train_takes(here, capsys, monkeypatch):
    """One remedy, which is much faster: what is written is what `train --config` then runs with."""
    slow = {"train.accumulate": 8, "train.epochs": 1, "train.steps_per_epoch": 20}
    monkeypatch.setattr(Tuning, "remedies", lambda self: [Remedy("whole batches", {"train.accumulate": 1}, "")])
    monkeypatch.setattr(tune, "SECONDS", 0.1)
    monkeypatch.setattr("runner_core.cli.measure.systematic", lambda found: ([], [LeftOut("more", "not here")]))
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in slow.items()]
    assert main(["toy", "tune", "--minutes", "3", "--out", "tuned", *flags, "--train.threads=1"]) == 0
    said = capsys.readouterr().out
    assert "whole batches" in said
    assert "not tried: more (not here)" in said
    written = yaml.safe_load((here / "tuned" / "settings.yaml").read_text())
    assert written["source"] == "phantom"
    assert written["train"] == {"epochs": 1, "steps_per_epoch": 20, "threads": 1}
    told = json.loads((here / "tuned" / "tune.json").read_text())
    assert told["final"]["low"] > 1
    assert "whole batches" in (here / "tuned" / "report.html").read_text()
    assert main(["toy", "config", "--config", "tuned/settings.yaml"]) == 0
    settings = yaml.safe_load(capsys.readouterr().out)
    assert (settings["train"]["accumulate"], settings["train"]["steps_per_epoch"]) == (1, 20)


@pytest.mark.torch
def test_interrupted_the_command_writes_what_it_has(here, world, capsys, monkeypatch):
    world.fails = {("train.accumulate", 2): KeyboardInterrupt()}
    monkeypatch.setattr(Tuning, "remedies", lambda self: [Remedy("halves", {"train.accumulate": 2}, "")])
    assert main(["toy", "tune", "--out", "tuned"]) == 130
    assert "Interrupted before the last comparison" in capsys.readouterr().out
    assert json.loads((here / "tuned" / "tune.json").read_text())["interrupted"]
    assert yaml.safe_load((here / "tuned" / "settings.yaml").read_text())["project"] == "toy"
    assert "Interrupted" in (here / "tuned" / "report.html").read_text()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--minutes", "0"], "--minutes must be more than 0"),
        (["--memory-gb", "-1"], "--memory-gb must be more than 0"),
        (["--devices", "2"], "tune measures one device"),
    ],
)
def test_nonsense_is_refused(here, capsys, flags, message):
    assert main(["toy", "tune", *flags]) == 2
    assert message in capsys.readouterr().err
    assert not (here / "runs").exists()
