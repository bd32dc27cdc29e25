"""Each of the core's rules finds its fault in a training of the toy, with either engine, and is silent without it."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent / "engine_toy"))
import engine_toy as toy
import keras_toy
from runner_core.base.errors import Unhealthy
from runner_core.contract import Finding, HealthEvent
from runner_core.engines.gradient_norms import MEASURED_AT, GradientLog, Measured, parts_of_loss
from runner_core.engines.validation import mark_weights
from runner_core.health import (
    AlwaysClipped,
    BelowLeast,
    Health,
    IgnoredIsLearned,
    InputIgnored,
    RateZero,
    SavedAsValidated,
    Starved,
    StillPredictions,
    StillWeights,
    TermWithoutGradient,
    Uninformed,
    Unmoved,
    WithoutGradient,
    announce,
)
from runner_core.health.reads import leaked_records, noting, records_read
from runner_core.health.speed import Idle

KINDS = [
    pytest.param(kind, marks=pytest.mark.skipif(find_spec(needs) is None, reason=f"{needs} is not installed"))
    for kind, needs in ((toy.Toy, "torch"), (keras_toy.KerasToy, "keras"))
]
engines = pytest.mark.parametrize("kind", KINDS)


def told(folder: Path, kind, **settings) -> dict[str, str]:
    """Level by rule of what a run's rules say; a run that is stopped is one too."""
    try:
        summary = toy.run(toy.small(**settings), folder, project=kind)
    except Unhealthy as error:
        summary = error.summary
    return {finding["rule"]: finding["level"] for finding in summary["health"]}


def log(step: int, **facts) -> HealthEvent:
    return HealthEvent("log", step, 0, facts)


def validation(step: int, **facts) -> HealthEvent:
    return HealthEvent("validation", step, 0, facts)


def ops(kind):
    """The few functions that both engines have, by the same names."""
    if kind.framework == "keras":
        import keras

        return keras.ops
    import torch

    return torch


@engines
def test_a_sound_run_is_silent(kind, tmp_path):
    assert told(tmp_path, kind, train__epochs=8, train__clip=0.5, train__ema=0.9) == {}


@engines
def test_the_same_samples_whatever_the_network_sees(kind, tmp_path):
    class Blind(kind):
        def on_device(self, batch, statistics, rng):
            batch = super().on_device(batch, statistics, rng)
            image = batch["image"]
            shape = tuple(image.shape[1:])
            ramp = np.linspace(-2, 2, int(np.prod(shape)), dtype=np.float32).reshape(shape)
            return {**batch, "image": image * 0 + (ramp if kind.framework == "keras" else ops(kind).from_numpy(ramp))}

    found = told(tmp_path, Blind, train__epochs=4, health__constant_steps=0)
    assert "error" in (found.get("input ignored"), found.get("constant prediction"))


@pytest.mark.parametrize("marked, level", [((0.5, 0.5), "warning"), ((0.5, 0.6), None), ((None, None), None)])
def test_decisions_that_are_the_same_for_every_sample(marked, level):
    rule = InputIgnored(2, 10)
    names = ("decision_mark_min", "decision_mark_max")
    facts = {"decision_min": 0.0, "decision_max": 1.0, **dict(zip(names, marked, strict=True))}
    found = rule.observe(validation(5, **facts))
    assert (found and found.level) == level
    found = rule.observe(validation(50, **facts))
    assert (found and found.level) == (level and "error")
    assert (rule.observe(HealthEvent("end", 50, 1, {})) is not None) == (level is not None)


def test_marks_tell_samples_apart_whose_means_are_the_same():
    weights = mark_weights((4, 5))
    assert weights.dtype == np.float32
    assert np.abs(weights).max() <= 1
    one = np.zeros((4, 5))
    one[0, 0], other = 1, one.copy()[:, ::-1]
    assert (one * weights).mean() != (other * weights).mean()
    assert len(np.unique(mark_weights((1000,)))) > 990


# ------------------------------------------------------------ what is ignored


def ignoring(kind, learned: bool, counted: bool):
    """A toy that says that the upper half is ignored; it is `learned` and `counted` all the same, or not."""

    class Half(kind):
        def ignored(self, batch):
            mask = batch["mask"]
            rows = ops(kind).arange(toy.SIDE) < toy.SIDE // 2
            shape = (1, toy.SIDE, 1, 1) if kind.framework == "keras" else (1, 1, toy.SIDE, 1)
            return ops(kind).broadcast_to(ops(kind).reshape(rows, shape), mask.shape)

        def step(self, model, batch, progress):
            step = super().step(model, batch, progress)
            o = ops(kind)
            seen = ~self.ignored(batch) if kind.framework == "torch" else o.logical_not(self.ignored(batch))
            weight = seen * 1.0 if kind.framework == "torch" else o.cast(seen, "float32")
            error = (step.prediction - (batch["mask"] > 0) * 1.0 if kind.framework == "torch"
                     else step.prediction - o.cast(batch["mask"], "float32")) ** 2  # fmt: skip
            loss = o.mean(error) if learned else o.mean(error * weight)
            return step._replace(loss=loss, terms={"mse": loss})

        def metrics(self):
            if counted:
                return super().metrics()

            def accuracy(prediction, batch):
                right = (prediction > 0) == (batch["mask"] > 0)
                seen = self.ignored(batch)
                if kind.framework == "torch":
                    return (right & ~seen).float().mean()
                return ops(kind).mean(ops(kind).cast(right & ops(kind).logical_not(seen), "float32"))

            (metric,) = super().metrics()
            return [type(metric)("accuracy", accuracy)]

    return Half


@engines
@pytest.mark.parametrize("learned, counted", [(True, False), (False, True), (False, False)])
def test_a_loss_or_metric_that_looks_at_ignored_voxels(kind, learned, counted, tmp_path):
    found = told(tmp_path, ignoring(kind, learned, counted), train__epochs=2)
    assert found.get("ignored voxels") == ("error" if learned or counted else None)


def test_what_is_said_of_ignored_voxels():
    rule = IgnoredIsLearned()
    assert rule.observe(log(1, ignored={"share": 0.5, "gradient": 1e-9, "metrics": []})) is None
    assert rule.observe(log(1)) is None
    found = rule.observe(log(1, ignored={"share": 0.5, "gradient": 0.25, "metrics": ["dice", "iou"]}))
    assert found.level == "error"
    for part in ("50% of the voxels", "0.25 of the largest", "dice and iou change"):
        assert part in found.message


# ------------------------------------------------------------ terms without gradient


def with_term(kind, compute):
    """A toy whose loss has one term more: `compute(ops, prediction)`."""

    class More(kind):
        def step(self, model, batch, progress):
            step = super().step(model, batch, progress)
            more = compute(ops(kind), step.prediction)
            return step._replace(loss=step.loss + more, terms={"bce": step.terms["bce"], "more": more})

    return More


def flat(o, prediction):
    return o.mean(o.relu(prediction * 0 - 1.0))


def cut(o, prediction):
    decided = prediction > 0
    return o.mean(decided.float() if hasattr(decided, "float") else o.cast(decided, "float32"))


def smooth(o, prediction):
    return o.mean(prediction * prediction) * 1e-3


@engines
@pytest.mark.parametrize("compute, silent", [(flat, True), (cut, True), (smooth, False)])
def test_a_term_that_teaches_nothing(kind, compute, silent, tmp_path):
    """Its gradient is zero, or it has none; either way it counts in the loss."""
    if kind.framework == "keras" and find_spec("tensorflow") is None:
        pytest.skip("JAX has no such measurement")
    found = told(tmp_path, with_term(kind, compute), train__epochs=4, log__every=10)
    assert found.get("loss without gradient") == ("warning" if silent else None)


def test_a_term_without_gradient_is_said_once():
    rule = TermWithoutGradient()
    found = [rule.observe(log(step, gradient_norms={"dice": [2, 0.0], "bce": [2, 0.1]})) for step in range(1, 9)]
    assert [step for step, finding in enumerate(found, 1) if finding] == [3]
    assert "the term dice has no gradient" in found[2].message
    assert rule.observe(log(9, gradient_norms={"dice": [1, 0.2]})) is None
    later = [rule.observe(log(step, gradient_norms={"dice": [5, 0.0]})) for step in range(10, 13)]
    assert [finding is not None for finding in later] == [True, False, False]
    assert "the terms a and b are part" in rule.observe(log(13, detached=["a", "b"])).message


def test_parts_of_the_loss_are_told_from_what_only_informs():
    rng = np.random.default_rng(0)
    a, b, c = rng.random((3, 20))
    values = {"loss": a + 2 * b, "a": a, "b": b, "c": c, "margin": 3 - b, "constant": np.ones(20)}
    assert parts_of_loss(values, ["c", "constant"]) == []
    assert parts_of_loss({"loss": a + 2 * b, "a": a, "b": b}, ["b"]) == ["b"]
    assert parts_of_loss(values, ["b", "margin"]) == []  # each says what the other does
    assert parts_of_loss({"loss": a + 0.003 * b, "a": a, "b": b}, ["b"]) == ["b"]  # exact: a small weight is told
    drift = a + 1e-4 * np.linspace(0, 1, len(a)) * b
    assert parts_of_loss({"loss": drift, "a": a, "b": b}, ["b"]) == []  # weights change: it is not
    assert parts_of_loss({**values, "loss": a * b}, ["b"]) is None
    assert parts_of_loss({name: column[:3] for name, column in values.items()}, ["b"]) is None


def test_what_was_measured_survives_a_checkpoint():
    one, other = GradientLog(), GradientLog()
    one.add(Measured({"dice": 0.5}, ["told"], {"share": 0.1, "gradient": 0.0, "metrics": []}))
    one.add(Measured({"dice": 0.25, "wild": float("inf")}, [], {"share": 0.2, "gradient": 0.5, "metrics": ["iou"]}))
    one.look({"a": 3, "b": 4})
    one.look({"b": 4})
    other.load(one.state())
    assert one.take({}) == other.take({}) == {
        "gradient_norms": {"dice": [2, 0.5]},
        "ignored": {"share": 0.2, "gradient": 0.5, "metrics": ["iou"]},
        "weights_without_gradient": {"weights": {"b": 4}, "looks": 2},
    }  # fmt: skip
    assert one.take({}) == {}
    other.load({})
    assert other.state()["gradient_norms"] == {}


@pytest.mark.torch
def test_a_term_in_half_precision_is_measured_too():
    """Gradients are taken of a multiple of it, which must be finite itself."""
    import torch
    from runner_core.engines.torch.gradient_norms import gradient_norm

    prediction = torch.ones(4, dtype=torch.float16, requires_grad=True)
    assert gradient_norm(prediction.mean(), [prediction]) == pytest.approx(0.5)


@pytest.mark.skipif(find_spec("keras") is None, reason="keras is not installed")
def test_of_volumes_one_is_looked_at():
    from runner_core.engines.keras.gradient_norms import _few

    volumes = {"image": np.zeros((4, 3_000_000), np.uint8), "mask": np.zeros((4, 3_000_000), bool), "n": np.float32(1)}
    assert [t.shape for t in _few(volumes).values()] == [(1, 3_000_000), (1, 3_000_000), ()]
    assert _few({"image": np.zeros((4, 64, 64, 3), np.uint8)})["image"].shape == (4, 64, 64, 3)


def test_it_is_measured_ever_more_rarely():
    assert {0, 1, 2, 3, 4, 9, 19, 49, 99, 199, 499, 999} < MEASURED_AT
    assert len([step for step in MEASURED_AT if step < 100_000]) < 25


def test_a_detached_term_is_found_however_often_the_log_is_written():
    """A line of two steps says too little of two terms: those before it count too, after a resume as well."""
    rng = np.random.default_rng(0)
    a, b = rng.random((2, 8))
    norms, found = GradientLog(), []
    norms.add(Measured({"a": 0.5}, ["b"]))
    for i in range(0, 8, 2):
        line = {"loss": a + 2 * b, "a": a, "b": b, "gradient_norm": np.full(8, np.inf)}
        found.append(norms.take({name: column[i : i + 2].tolist() for name, column in line.items()}).get("detached"))
        norms, before = GradientLog(), norms.state()
        norms.load(before)
    assert found == [None, None, ["b"], None]


@engines
def test_weights_that_no_loss_reaches(kind, tmp_path):
    class Detached(kind):
        def step(self, model, batch, progress):
            if kind.framework == "keras":
                import keras

                logits = keras.ops.cast(_last(model)(keras.ops.stop_gradient(_first(model, batch["image"]))), "float32")
                loss = keras.ops.mean((logits - keras.ops.cast(batch["mask"], "float32")) ** 2)
            else:
                logits = model[4](model[:4](batch["image"]).detach())
                loss = ((logits - batch["mask"].float()) ** 2).mean()
            return super().step(model, batch, progress)._replace(loss=loss, terms={}, prediction=logits)

    found = told(tmp_path, Detached, train__epochs=4)
    assert found["weights without gradient"] == "warning"
    if kind.framework == "keras" and find_spec("tensorflow") is not None:
        found = told(tmp_path / "blocks", Detached, train__epochs=4, train__steps_per_execution=2)
        assert found["weights without gradient"] == "warning"


@pytest.mark.torch
def test_frozen_weights_may_be_in_the_optimizer(tmp_path):
    class Frozen(toy.Toy):
        def model(self, precision):
            network = super().model(precision)
            network[0].requires_grad_(False)
            return network

        def parameter_groups(self, model):
            return [{"params": list(model.parameters())}]

    assert told(tmp_path, Frozen, train__epochs=4) == {}


def _last(model):
    return model.layers[-1]


def _first(model, image):
    for layer in model.layers[:-1]:
        image = layer(image)
    return image


def test_weights_are_named_that_had_no_gradient_at_any_look():
    rule = WithoutGradient()
    assert rule.observe(log(1, weights_without_gradient={"weights": {"a": 10, "b": 5}, "looks": 1})) is None
    found = rule.observe(log(5, weights_without_gradient={"weights": {"b": 5, "c": 1}, "looks": 4}))
    assert "b should be trained (5 numbers)" in found.message
    assert rule.observe(log(9, weights_without_gradient={"weights": {"b": 5}, "looks": 4})) is None


@engines
@pytest.mark.parametrize("sign", [1, -1])
def test_a_loss_of_the_wrong_sign_ends_the_run(kind, sign, tmp_path):
    class Signed(kind):
        lower_bounds: ClassVar = {"bce": 0}

        def step(self, model, batch, progress):
            step = super().step(model, batch, progress)
            return step._replace(loss=sign * step.loss, terms={"bce": sign * step.terms["bce"]})

    found = told(tmp_path, Signed, train__epochs=1)
    assert found.get("impossible loss") == (None if sign > 0 else "error")


def test_a_loss_below_what_it_can_be():
    rule = BelowLeast({"dice": 0.0})
    assert rule.observe(log(1, dice=0.0)) is None
    assert rule.observe(log(1, bce=-1.0)) is None
    assert rule.observe(log(1, dice=-1e-6)) is None  # rounding
    assert rule.observe(HealthEvent("end", 1, 0, {"dice": -0.5})) is None
    found = rule.observe(validation(1, dice=-0.5))
    assert found.level == "error"
    assert "dice is -0.5, which cannot be below 0" in found.message


# ------------------------------------------------------------ what does not move


@engines
def test_a_learning_rate_of_zero(kind, tmp_path):
    class Still(kind):
        def schedule(self, progress):
            return 0.0 * progress.step

    found = told(tmp_path, Still, train__epochs=5)
    assert found["learning rate zero"] == "error"
    assert "weights unchanged" not in found


def test_a_learning_rate_that_becomes_zero():
    rule = RateZero()
    rates = [0.0, 0.1, 0.1, *[0.0] * 20]
    found = [rule.observe(log(step, learning_rate=rate)) for step, rate in zip(range(5, 120, 5), rates, strict=True)]
    assert [finding.level for finding in found if finding] == ["warning"]
    assert "for 50 steps, since step 15" in next(finding for finding in found if finding).message
    assert rule.observe(HealthEvent("end", 120, 1, {})) is None


@engines
def test_an_optimizer_that_does_nothing(kind, tmp_path):
    class Idles(kind):
        def optimizer(self, groups):
            if kind.framework == "keras":
                import keras

                class Nothing(keras.optimizers.SGD):
                    def update_step(self, gradient, variable, learning_rate):
                        pass

                return Nothing(0.1)
            import torch

            class Nothing(torch.optim.SGD):
                def step(self, closure=None):
                    pass

            return Nothing(groups, lr=0.1)

    assert told(tmp_path, Idles, train__epochs=4)["weights unchanged"] == "error"


def test_weights_that_change_are_no_finding():
    rule = StillWeights()
    first = HealthEvent("first_step", 1, 0, {"weights": 7})
    assert [rule.observe(e) for e in (first, validation(3, weights=7), validation(9, weights=8))] == [None] * 3
    assert rule.observe(validation(12, weights=8)) is None
    assert rule.observe(validation(14, weights=8)).level == "error"
    assert rule.observe(validation(20, weights=None)) is None


def test_predictions_that_stay_while_the_weights_change():
    def seen(step, weights, low=0.25, mark=0.5):
        names = ("min", "max", "mark_min", "mark_max")
        values = dict(zip(names, (low, 1.0, mark, 0.75), strict=True))
        return validation(step, weights=weights, **{f"decision_{name}": value for name, value in values.items()})

    rule = StillPredictions()
    assert rule.observe(seen(10, 1)) is None
    assert rule.observe(seen(20, 1)) is None  # nor did the weights
    assert rule.observe(seen(30, 2)).level == "warning"
    assert rule.observe(seen(40, 3)) is None  # said once
    masks = StillPredictions()
    assert [masks.observe(seen(step, step, low=0.0)) for step in (10, 20, 30)] == [None] * 3


def test_gradients_that_are_always_clipped():
    def run(norm, clipped, until):
        rule = AlwaysClipped(1.0)
        found = [rule.observe(log(step, gradient_norm=norm, clipped=clipped)) for step in range(10, until, 10)]
        return [10 * (i + 1) for i, finding in enumerate(found) if finding]

    assert run(2.0, 1.0, 1500) == [1000]
    assert run(200.0, 1.0, 1500) == [50]
    assert run(200.0, 0.99, 1500) == []
    assert AlwaysClipped(None).observe(log(5000, gradient_norm=9.0)) is None


@engines
def test_gradients_far_longer_than_what_clips_them(kind, tmp_path):
    assert told(tmp_path, kind, train__epochs=20, train__clip=1e-5)["gradients clipped"] == "warning"


@pytest.mark.parametrize("loss, warned", [(0.69, True), (0.72, True), (0.5, False)])
def test_a_loss_that_stays_where_nothing_is_known(loss, warned):
    rule = Uninformed(lambda: {"bce": 0.6931, "dice": 0.0})
    losses = [0.1, *[0.7] * 9, *[loss] * 50]  # the first line is one batch alone
    found = [rule.observe(log(1 + 10 * i, bce=value)) for i, value in enumerate(losses)]
    assert [1 + 10 * i for i, finding in enumerate(found) if finding] == ([501] if warned else [])
    assert rule.observe(HealthEvent("end", 600, 1, {})) is None


def test_at_the_end_of_a_short_training_too():
    for steps, warned in ((40, False), (60, True)):
        rule = Uninformed(lambda: {"bce": 0.6931})
        for step in range(1, steps + 1, 5):
            rule.observe(log(step, bce=0.69))
        assert (rule.observe(HealthEvent("end", steps, 1, {})) is not None) == warned


def test_a_loss_that_is_always_the_same():
    for spread, warned in ((1e-5, [50]), (1e-2, [])):
        rule = Unmoved()
        found = [rule.observe(log(step, loss=2 + spread * (step % 20 == 0))) for step in range(10, 100, 10)]
        assert [10 * (i + 1) for i, finding in enumerate(found) if finding] == warned


# ------------------------------------------------------------ splits


@pytest.mark.torch
@pytest.mark.parametrize("honest", [True, False], ids=["samples say so", "samples read in secret"])
@pytest.mark.parametrize("split", ["train", "validation"])
def test_a_split_that_reads_the_other_ends_the_run_before_its_first_step(split, honest, tmp_path):
    class Leaks(toy.Toy):
        def samples(self, store, records, wanted):
            if wanted != split:
                return super().samples(store, records, wanted)
            found = super().samples(store, range(len(store.keys)), wanted)
            if not honest:
                found.record_of_sample = np.full_like(found.record_of_sample, records[0])
            return found

    with pytest.raises(Unhealthy, match=f"{'training' if split == 'train' else 'validation'} reads") as stopped:
        toy.run(toy.small(), tmp_path, project=Leaks)
    assert stopped.value.summary["steps"] == 0
    assert not list((tmp_path / "checkpoints").glob("step-*"))
    summary = toy.run(toy.small(health__mode="warn"), tmp_path / "warned", project=Leaks)
    assert [finding["rule"] for finding in summary["health"]] == ["splits"]


def test_what_samples_read_is_noted_and_the_store_left_as_it_was():
    store = toy.MemoryStore()
    samples = toy.Toy(toy.small()).samples(store, [1, 4], "train")
    del samples.record_of_sample  # nothing but what is read tells
    found = set()
    with noting(store, found):
        store.arrays["image"].read(3)
        store.arrays["mask"].take(np.array([0, 7, 21]), np.empty((3, toy.SIDE, toy.SIDE), np.uint8))
    assert found == {0, 1, 2, 3}
    assert not {"read", "take"} & vars(store.arrays["image"]).keys()
    whole = toy.Toy(toy.small()).samples(store, [1, 4], "train")
    assert records_read(whole, store).tolist() == [1, 4]
    assert leaked_records({"train": whole, "validation": whole}, {"train": [1], "validation": [4, 5]}, store) == {
        "train": ["r4"],
        "validation": ["r1"],
    }


# ------------------------------------------------------------ checkpoints


def losing(what: str, engine: str):
    """Make checkpoints lack the average, or a BatchNorm's running mean, from now on."""

    def flatten(tree):
        if what == "ema":
            return {**tree, "ema": None}
        names = {
            name: value for name, value in tree["model"].items() if "running_mean" in name or "moving_mean" in name
        }
        return {**tree, "ema": None, "model": {**tree["model"], **{name: value * 0 for name, value in names.items()}}}

    return flatten


@engines
@pytest.mark.parametrize("what", ["ema", "mean"])
def test_a_checkpoint_that_gives_back_another_network(kind, what, tmp_path, monkeypatch):
    from importlib import import_module

    trainer = import_module(f"runner_core.engines.{kind.framework}.trainer")
    flatten, lose = trainer.flatten, losing(what, kind.framework)
    monkeypatch.setattr(trainer, "flatten", lambda tree, **words: flatten(lose(tree), **words))
    settings = {"train__ema": 0.9} if what == "ema" else {}
    found = told(tmp_path, kind, **settings)
    assert found["saved is not validated"] == "error"


@engines
def test_what_is_in_no_checkpoint_is_found_by_its_predictions(kind, tmp_path):
    class Remembers(kind):
        scale = 1.0

        def step(self, model, batch, progress):
            step = super().step(model, batch, progress)
            return step._replace(prediction=step.prediction * self.statistics.get("scale", 1.0))

        def fit(self, store, training):
            return {**super().fit(store, training), "scale": np.float64(2.0)}

    assert "saved is not validated" not in told(tmp_path / "kept", Remembers)
    from importlib import import_module

    trainer = import_module(f"runner_core.engines.{kind.framework}.trainer")
    flatten = trainer.flatten

    def lose(tree, **words):
        return flatten({**tree, "statistics": {**tree["statistics"], "scale": np.float64(1.0)}}, **words)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "flatten", lose)
        assert told(tmp_path / "lost", Remembers)["saved is not validated"] == "error"


@engines
def test_looking_at_a_checkpoint_changes_nothing_of_the_training(kind, tmp_path):
    """A run with rules and one without have the same weights, generators and log, bit for bit."""
    settings = {"train__ema": 0.9, "train__epochs": 3, "checkpoint__every_steps": 2}
    toy.run(toy.small(**settings), tmp_path / "on", project=kind)
    toy.run(toy.small(**settings, health__mode="off"), tmp_path / "off", project=kind)
    (_, one), (_, other) = toy.final_state(tmp_path / "on"), toy.final_state(tmp_path / "off")
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert np.array_equal(np.asarray(tensor), np.asarray(other[name])), name
    assert toy.log_lines(tmp_path / "on") == toy.log_lines(tmp_path / "off")


def test_a_checkpoint_is_no_business_of_rules_that_count():
    class Counts:
        name = "counts"

        def __init__(self):
            self.memory = {"seen": 0}

        def observe(self, event):
            self.memory["seen"] += 1

    counts = Counts()
    health = Health([counts, SavedAsValidated()], "stop", lambda *_: None)
    error = health.observe(HealthEvent("checkpoint", 3, 1, {"weights_differ": ["a"], "prediction_differs": 0.0}))
    assert "a is not what the network had" in str(error)
    assert counts.memory == {"seen": 0}
    assert (
        "cannot be used: torn"
        in SavedAsValidated().observe(HealthEvent("checkpoint", 3, 1, {"refused": "torn"})).message
    )
    assert SavedAsValidated().observe(
        HealthEvent("checkpoint", 3, 1, {"weights_differ": [], "prediction_differs": 0.001})
    ) is None  # fmt: skip


# ------------------------------------------------------------ by the clock


def test_training_that_waits_for_data_is_warned_of_once_for_as_long_as_it_does():
    rule = Starved()
    shares = [0.9, 0.8, 0.8, 0.8, 0.8, 0.1, 0.8, 0.8, 0.8]
    found = [rule.observe(log(10 * i, data_wait_share=share, seconds=4.0)) for i, share in enumerate(shares)]
    assert [i for i, finding in enumerate(found) if finding] == [3, 8]
    assert found[3].timed
    assert "80% of the time" in found[3].message
    quick = Starved()
    assert not any(quick.observe(log(i, data_wait_share=0.9, seconds=0.1)) for i in range(30))


def test_a_gpu_that_stands_still():
    rule = Idle()
    found = [rule.observe(log(i, gpu_busy=0.1, seconds=10.0)) for i in range(6)]
    assert [i for i, finding in enumerate(found) if finding] == [3]
    assert found[3].timed
    assert not any(Idle().observe(log(i, seconds=10.0)) for i in range(6))


def test_what_follows_from_the_clock_is_logged_apart():
    lines = []
    finding = Finding("data starved", "warning", "80% of the time", timed=True)
    announce(finding, 7, 1, lambda text: None, lambda *event: lines.append(event))
    words = {"rule": "data starved", "level": "warning", "message": "80% of the time"}
    assert lines == [("speed", 7, {"epoch": 1, "timing": words})]
    health = Health([], "stop", lambda *_: None)
    health.tell(finding, 7, 1)
    assert (health.findings, health.timed) == ([], [finding])


@pytest.mark.torch
def test_a_starved_run_says_so_in_its_summary_and_in_no_checkpoint(tmp_path, monkeypatch):
    from time import sleep

    class Slow(toy.Toy):
        def augment(self, sample, rng):
            sleep(0.004)

    monkeypatch.setattr(Starved, "SECONDS", 0.05)
    summary = toy.run(toy.small(train__epochs=3), tmp_path, project=Slow)
    assert [finding["rule"] for finding in summary["health"]] == ["data starved"]
    assert toy.final_state(tmp_path)[0]["loop"]["findings"] == []
    assert "speed" not in {line["event"] for line in toy.log_lines(tmp_path)}
    assert '"speed"' in (tmp_path / "log.jsonl").read_text()
