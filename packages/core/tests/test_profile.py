"""Profiles: the parts of a step add up to it, what is slow is what the profile says, and watching changes nothing."""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent / "engine_toy"))
import engine_toy as toy
from runner_core.base.errors import BadInput
from runner_core.cli import main
from runner_core.contract import HostBatch, Step
from runner_core.contract.phases import BACKWARD, FORWARD, LOSS, OPTIMIZER, PARTS, unnoticed
from runner_core.plugins.manager import Plugins
from runner_core.tools.measure import profiling
from runner_core.tools.measure.profile_report import lines
from runner_core.tools.measure.profiling import profile_run, remedies

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

SLOW = 0.02


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Measure everything besides steps for a moment only."""
    from runner_core.engines.torch import phases

    monkeypatch.setattr(profiling, "_LOADER_SECONDS", 0.05)
    monkeypatch.setattr(phases, "limits", partial(phases.limits, seconds=0.01))


class Setup(toy.ToySetup):
    preset, source = "demo", None


def profiled(project, **settings):
    made = project(toy.small(**{"train__batch_size": 4, **settings}))
    return profile_run(Setup(made), toy.make_data(made), steps=12, seconds=30)


def trainer(project=toy.Toy, **settings):
    made = project(toy.small(**settings))
    setup = Setup(made)
    return setup.engine.trainer(setup, toy.make_data(made), 30)


def phases_of(ours):
    return Setup(ours.project).engine.phases(ours)


def host_batch(count=8, seed=0):
    rng = np.random.default_rng(seed)
    image = rng.integers(0, 255, (count, 2, toy.SIDE, toy.SIDE), dtype=np.uint8)
    return HostBatch({"image": image, "mask": (image[:, :1] > 128).astype(np.uint8)}, count, lambda: None)


# ---------------------------------------------------------------- PyTorch


def test_the_parts_of_a_step_add_up_to_it():
    facts = profiled(toy.Toy)
    assert 0.95 < facts["covered"] < 1.05
    training = [facts["parts"][part] for part in (*PARTS, "other")]
    between = [event["seconds"] / event["every"] for event in facts["events"].values()]
    assert sum(facts["parts"].values()) == pytest.approx(sum(training) + sum(between))
    assert facts["seconds"] == pytest.approx(facts["step"] + sum(between))
    assert facts["seconds"] == pytest.approx(sum(facts["parts"].values())), "one length of a step, however it is told"
    assert set(facts["events"]) == {"logging", "metrics", "checkpoint"}
    assert facts["events"]["checkpoint"]["size"] > 0
    assert all(facts["parts"][part] > 0 for part in PARTS)
    assert set(facts["losses"]) == {"bce", "spread", "loss"}
    assert facts["work"]["flops"] > 0
    assert facts["bound"] in ("data", "compute", "bandwidth", "latency")
    json.dumps(facts, allow_nan=False)


class Nap(torch.autograd.Function):
    """The identity; `forward` and `backward` say which of them sleeps."""

    @staticmethod
    def forward(context, value, here, back):
        time.sleep(here)
        context.back = back
        return value.clone()

    @staticmethod
    def backward(context, gradient):
        time.sleep(context.back)
        return gradient, None, None


class Sleepy(nn.Module):
    def __init__(self, here, back):
        super().__init__()
        self.here, self.back = here, back

    def forward(self, value):
        return Nap.apply(value, self.here, self.back)


class SlowSamples:
    """Samples that take their time to be filled."""

    def __init__(self, samples, seconds):
        self._samples, self._seconds = samples, seconds
        self.spec = samples.spec

    def __len__(self):
        return len(self._samples)

    def fill(self, *given):
        time.sleep(self._seconds)
        self._samples.fill(*given)


def slow_in(where, **base):
    """A toy that sleeps in one part of its step."""

    class Slow(toy.Toy):
        def _sleep(self, part):
            if part == where:
                time.sleep(SLOW)

        def samples(self, store, records, split):
            return SlowSamples(super().samples(store, records, split), SLOW if where == "data wait" else 0)

        def on_device(self, batch, statistics, rng):
            self._sleep("augment")
            return super().on_device(batch, statistics, rng)

        def model(self, precision):
            here, back = SLOW * (where == FORWARD), SLOW * (where == BACKWARD)
            return nn.Sequential(*super().model(precision), Sleepy(here, back))

        def step(self, model, batch, progress):
            # its layers by themselves, as projects do that need what is in between
            value = batch["image"]
            for layer in model:
                value = layer(value)
            self._sleep(LOSS)
            loss = F.binary_cross_entropy_with_logits(value, batch["mask"].float())
            return Step(loss, {"bce": loss}, value)

        def after_step(self, model, progress):
            self._sleep(OPTIMIZER)

    return Slow


@pytest.mark.parametrize("part", [part for part in PARTS if part != "host to device"])
def test_what_is_slow_is_what_the_profile_says(part):
    facts = profiled(slow_in(part))
    steps = {name: facts["parts"][name] for name in PARTS}
    assert max(steps, key=steps.get) == part
    assert 0.95 < facts["covered"] < 1.05
    if part == "data wait":
        assert facts["bound"] == "data"


def test_parts_of_micro_batches_are_those_of_the_whole_batch():
    facts = profiled(slow_in(FORWARD), train__batch_size=6, train__accumulate=3)
    assert facts["parts"][FORWARD] > 2.9 * SLOW
    assert max(facts["parts"][part] for part in PARTS if part != FORWARD) < facts["parts"][FORWARD]


def test_watching_changes_nothing():
    """Steps that are taken apart train as others do, and nobody listens afterwards."""
    networks = []
    for watching in (False, True):
        ours = trainer()
        phases = phases_of(ours)
        ours.train_step(host_batch(), 0)
        if watching:
            assert phases.prepare(host_batch(seed=1), 1) == 1
            phases.watch()
        else:
            ours.train_step(host_batch(seed=1), 1)
        for step in range(2, 5):
            ours.train_step(host_batch(seed=step), step)
        if watching:
            assert [set(step) for step in phases.take()] == [set(PARTS)] * 3
        assert ours.phase is unnoticed
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in ours.network.modules())
        networks.append(ours.network.state_dict())
    for name, tensor in networks[0].items():
        assert torch.equal(tensor, networks[1][name]), name


def test_layers_that_are_recomputed_for_the_gradient_are_not_forward():
    from torch.utils.checkpoint import checkpoint

    class Recomputed(slow_in("")):
        def step(self, model, batch, progress):
            value = model[0](batch["image"])
            for layer in [*model][1:]:
                value = checkpoint(layer, value, use_reentrant=False)
            loss = F.binary_cross_entropy_with_logits(value, batch["mask"].float())
            return Step(loss, {}, value)

        def model(self, precision):
            layers = [*super().model(precision)]
            return nn.Sequential(*layers[:-2], nn.Sequential(Sleepy(SLOW, 0), layers[-2]))

    parts = profiled(Recomputed)["parts"]
    assert parts[FORWARD] < 1.7 * SLOW
    assert parts[BACKWARD] > 0.9 * SLOW


def test_what_the_gradient_of_each_term_is():
    class Two(toy.Toy):
        def on_device(self, batch, statistics, rng):
            return {"image": batch["image"].float() / 255, "mask": batch["mask"]}

        def model(self, precision):
            return nn.Conv2d(2, 1, 1)

        def step(self, model, batch, progress):
            logits = model(batch["image"])
            terms = {"square": logits.square().sum(), "sum": logits.sum(), "alone": logits.detach().sum()}
            return Step(terms["square"] + 3 * terms["sum"], terms, logits)

    ours = trainer(Two)
    phases = phases_of(ours)
    ours.train_step(host_batch(), 0)
    phases.prepare(host_batch(), 1)
    found = phases.losses(host_batch(), 2)
    with torch.no_grad():
        logits = ours.network(torch.from_numpy(host_batch().arrays["image"]).float() / 255)
    assert set(found) == {"square", "sum", "loss"}, "a term without a graph has no gradient to be told"
    assert found["square"].gradient == pytest.approx((2 * logits).norm().item(), rel=1e-5)
    assert found["sum"].gradient == pytest.approx(logits.numel() ** 0.5, rel=1e-5)
    assert found["loss"].gradient == pytest.approx((2 * logits + 3).norm().item(), rel=1e-5)
    assert found["loss"].forward
    assert found["sum"].forward


def test_terms_are_timed_by_themselves():
    """Work of the host between two operations counts for the term that needs it."""

    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(context, value):
            time.sleep(SLOW)
            return value.clone()

        @staticmethod
        def backward(context, gradient):
            return gradient

    class Three(toy.Toy):
        def step(self, model, batch, progress):
            logits = model(batch["image"].float())
            quick = logits.square().mean()
            sleepy = Slow.apply(logits.mean())
            awake = logits.abs()
            time.sleep(SLOW)
            terms = {"quick": quick, "sleepy": sleepy, "awake": awake.mean()}
            return Step(sum(terms.values()), terms, logits)

        def on_device(self, batch, statistics, rng):
            return batch

        def model(self, precision):
            return nn.Conv2d(2, 1, 1)

    found = phases_of(trainer(Three)).losses(host_batch(), 2)
    assert all(cost.forward for cost in found.values())
    assert found["quick"].seconds < 0.5 * SLOW
    assert SLOW <= found["sleepy"].seconds < 1.5 * SLOW
    assert SLOW <= found["awake"].seconds < 1.5 * SLOW
    assert 2 * SLOW <= found["loss"].seconds < 2.5 * SLOW


def test_nothing_is_left_behind(tmp_path):
    made = toy.Toy(toy.small())
    profile_run(Setup(made), toy.make_data(made), steps=2, folder=tmp_path)
    assert not list(tmp_path.iterdir())


def test_an_engine_that_cannot_take_its_steps_apart_is_refused(monkeypatch):
    from runner_core.engines.torch import TorchEngine

    monkeypatch.setattr(TorchEngine, "phases", lambda self, trainer: None)
    with pytest.raises(BadInput, match="cannot take its steps apart"):
        profiled(toy.Toy)


def test_remedies_of_all_plugins_the_best_first():
    from runner_core import Remedy, hookimpl
    from runner_core.plugins import defaults

    class Extension:
        @hookimpl
        def runner_remedies(self, project, report):
            return [Remedy("nothing", {}, "why not", 0.01), Remedy("everything", {}, report["bound"], 0.99)]

    plugins = Plugins()
    plugins.register(defaults, "core")
    plugins.register(Extension(), "fixing", kind="extension")
    setup = Setup(toy.Toy(toy.small()))
    setup.plugins = plugins
    facts = profiled(slow_in("data wait"))
    found = remedies(setup, facts)
    assert found[0].name == "everything"
    assert found[0].why == "data"
    assert [fix.saves or 0 for fix in found] == sorted((fix.saves or 0 for fix in found), reverse=True)


# ---------------------------------------------------------------- Keras


def keras_toy():
    pytest.importorskip("keras", reason="the keras engine is not installed (extra keras)")
    import keras_toy

    return keras_toy.KerasToy


@pytest.fixture
def few(monkeypatch):
    """Functions of a step are timed a few times only."""
    pytest.importorskip("keras")
    from runner_core.engines.keras import phases

    monkeypatch.setattr(phases, "_MOST", 8)
    monkeypatch.setattr(phases, "_LOSS_TIMES", 3)
    monkeypatch.setattr(phases, "limits", partial(phases.limits, seconds=0.01))


def test_the_parts_of_a_keras_step_add_up_to_it(few):
    facts = profiled(keras_toy())
    assert 0.95 < facts["covered"] < 1.05
    assert facts["engine"] == "keras"
    assert set(facts["losses"]) == {"bce", "spread", "loss"}
    assert facts["parts"][BACKWARD] + facts["parts"][OPTIMIZER] + facts["parts"][FORWARD] > 0
    assert facts["seconds"] == pytest.approx(sum(facts["parts"].values()))
    assert set(facts["events"]) == {"logging", "metrics", "checkpoint"}
    assert facts["work"]["flops"] > 0
    json.dumps(facts, allow_nan=False)


def test_a_term_of_a_keras_loss_is_timed_without_the_network(few, monkeypatch):
    """A term that sleeps is found, and the others are far below it."""
    tf = pytest.importorskip("tensorflow")
    keras = pytest.importorskip("keras")

    def napping(seconds):
        def nap(value):
            time.sleep(seconds)
            return value

        return lambda value: tf.ensure_shape(tf.numpy_function(nap, [value], tf.float32, stateful=False), value.shape)

    class Slow(keras_toy()):
        def step(self, model, batch, progress):
            made = super().step(model, batch, progress)
            still = keras.ops.stop_gradient(made.loss)
            return made._replace(terms={**made.terms, "slow": made.loss + 0 * napping(SLOW)(still)})

    ours = trainer(Slow)
    ours.train_step(host_batch(), 0)
    phases = phases_of(ours)
    phases.prepare(host_batch(), 1)
    monkeypatch.setattr(type(phases), "_usual", None)  # whole steps, whose difference would be noise, are not timed
    found = phases.losses(host_batch(), 2)
    assert set(found) == {"loss", "bce", "spread", "slow"}
    assert found["slow"].seconds > 0.9 * SLOW
    assert max(found[name].seconds for name in ("loss", "bce", "spread")) < 0.5 * SLOW


def test_a_slow_on_device_in_keras(few):
    tf = pytest.importorskip("tensorflow")

    class Slow(keras_toy()):
        def on_device(self, batch, statistics, rng):
            out = super().on_device(batch, statistics, rng)

            def nap(image):
                time.sleep(SLOW)
                return image

            image = tf.ensure_shape(tf.numpy_function(nap, [out["image"]], tf.float32), out["image"].shape)
            return {**out, "image": image}

    parts = profiled(Slow)["parts"]
    assert max(PARTS, key=parts.get) == "augment"


def test_keras_steps_that_go_to_the_device_at_once(few):
    facts = profiled(keras_toy(), train__steps_per_execution=2)
    assert 0.95 < facts["covered"] < 1.05
    assert sum(facts["parts"][part] for part in PARTS) > 0


def test_keras_micro_batches(few):
    facts = profiled(keras_toy(), train__batch_size=6, train__accumulate=3, net__batchnorm=False)
    assert 0.95 < facts["covered"] < 1.05
    assert facts["work"]["operations"] % 3 == 0


def test_operations_of_a_keras_step_are_those_of_its_convolutions():
    ours = trainer(keras_toy())
    ours.train_step(host_batch(), 0)
    flops = sum(one.flops for one in phases_of(ours).operations(host_batch(), 1))
    pixels = 8 * toy.SIDE * toy.SIDE
    first, second = 2 * pixels * 4 * (2 * 9), 2 * pixels * 4
    assert flops == 2 * first + 3 * second, "the first layer's input needs no gradient"


# ---------------------------------------------------------------- the command line


def test_the_command_says_it_and_writes_it(here, capfd):
    assert main(["toy", "profile", "--steps", "8", "--trace", "--out", "found"]) == 0
    said, complaints = capfd.readouterr()
    assert "gpuGetDeviceCount" not in complaints
    terms = "Each is timed by itself. A step counts their gradients as backward"
    watching = "the parts add up to that: their shares are of steps that were taken apart"
    for word in ("forward", "backward", "bound by", "report: found/report.html", "trace: found/trace", terms, watching):
        assert word in said
    facts = json.loads(Path("found/profile.json").read_text())
    assert facts["project"] == "toy"
    assert facts["steps"] == 8 or facts["steps"] == 4
    page = Path("found/report.html").read_text()
    assert '<svg class="bars"' in page
    assert "http" not in page.replace("http://www.w3.org", "")
    assert "traceEvents" in json.loads(Path("found/trace/trace.json").read_text())
    assert {path.name for path in Path("found").iterdir()} == {"profile.json", "report.html", "trace"}


@pytest.mark.parametrize(
    "words, said",
    [
        (["--at", "2"], "--at 2"),
        (["--steps", "1"], "--steps must be at least 2"),
        (["--minutes", "0"], "--minutes must be more than 0"),
        (["--train.devices", "2"], "one device"),
    ],
)
def test_what_cannot_be_profiled_is_refused(here, capsys, words, said):
    assert main(["toy", "profile", *words]) == 2
    assert said in capsys.readouterr().err


def test_a_folder_that_is_not_empty_is_left_alone(here, capsys):
    Path("found").mkdir()
    Path("found/mine").touch()
    assert main(["toy", "profile", "--out", "found"]) == 2
    assert "not empty" in capsys.readouterr().err


def test_the_profile_s_keys_are_those_that_its_docstring_names():
    facts = profiled(toy.Toy)
    for name in (
        *("parts", "events", "seconds", "step", "covered", "watching", "samples_per_second", "first_step", "loader"),
        *("host", "losses", "work", "roofline", "limits", "use", "memory", "bound", "reason", "asked", "took"),
    ):
        assert name in facts
        assert f"`{name}`" in profiling.profile_run.__doc__


def test_much_more_time_than_asked_for_is_said(tmp_path):
    facts = profiled(toy.Toy)
    assert "--minutes is for the steps" not in "\n".join(lines(facts, [], tmp_path))
    told = "\n".join(lines(facts | {"asked": 12.0, "took": 46.0}, [], tmp_path))
    assert "this took 0:46: --minutes is for the steps" in told
