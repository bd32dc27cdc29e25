"""The torch trainer against plain PyTorch: gradients, clipping, averages, schedules, memory, precision."""

from __future__ import annotations

import copy
import math
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent / "engine_toy"))
import engine_toy as toy
from runner_core.base.errors import BadInput, OutOfSpace, Unhealthy
from runner_core.contract import Device, HostBatch, Precision, Progress, Step
from runner_core.contract.run import matches

torch = pytest.importorskip("torch")
from runner_core.engines.torch import engine, memory, parallel, precision, transfer  # noqa: E402
from runner_core.engines.torch.weights import Weights  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.optim.optimizer import register_optimizer_step_post_hook  # noqa: E402

CPU = torch.device("cpu")


class Linear(toy.Toy):
    """Least squares; no augmentation, nothing random."""

    splittable = True
    monitor = ("loss", "min")

    def on_device(self, batch, statistics, rng):
        return batch

    def model(self, precision):
        return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1))

    def optimizer(self, groups):
        return torch.optim.SGD(groups, lr=self.config.train.learning_rate)

    def step(self, model, batch, progress):
        prediction = model(batch["x"])
        loss = F.mse_loss(prediction.float(), batch["y"])
        return Step(loss, {"mse": loss, "constant": 2.0}, prediction)

    def decision(self, prediction):
        return prediction

    def metrics(self):
        return []


def config(**settings):
    base = {"train__schedule": "constant", "train__warmup": 0.0, "train__batch_size": 7, "train__epochs": 1}
    return toy.small(**{**base, **settings})


def trainer(project=Linear, steps=10, **settings):
    made = project(config(**settings))
    data = toy.make_data(made)
    setup = toy.ToySetup(made)
    return setup.engine.trainer(setup, data, steps)


def host_batch(seed=0, count=7, scale=1.0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, 6), dtype=np.float32) * np.float32(scale)
    released = Counter()
    batch = HostBatch({"x": x, "y": x.sum(1, keepdims=True) ** 2}, count, lambda: released.update(["released"]))
    return batch, released


def reference(network, batch, optimizer):
    loss = F.mse_loss(network(torch.from_numpy(batch.arrays["x"])), torch.from_numpy(batch.arrays["y"]))
    optimizer.zero_grad()
    loss.backward()
    return loss


def close(one, other, tolerance=1e-6):
    for (name, a), b in zip(one.state_dict().items(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, msg=name)


@pytest.mark.parametrize("accumulate", [1, 2, 3, 7, 20])
def test_accumulation_is_exact(accumulate):
    """Seven samples in micro-batches of 7, 4+3, 3+3+1, …: the gradient and the loss of the whole batch."""
    ours = trainer(train__accumulate=accumulate)
    plain = copy.deepcopy(ours.network)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.05)
    losses = []
    for step in range(5):
        batch, released = host_batch(step, count=7 if step < 4 else 5)
        losses.append(reference(plain, batch, optimizer).item())
        optimizer.step()
        ours.train_step(batch, step)
        assert released == {"released": 1}
    close(ours.network, plain)
    log = ours.read_log()
    assert log["loss"] == pytest.approx(np.mean(losses), rel=1e-6)
    assert log["mse"] == pytest.approx(np.mean(losses), rel=1e-6)
    assert log["constant"] == pytest.approx(2.0)


@pytest.mark.parametrize(
    "returned, said",
    [
        *toy.NOTHING_LEARNED,
        (lambda step: step._replace(loss=step.loss.detach()), "no weight changes it"),
    ],
)
def test_a_step_that_nothing_is_learned_from_is_refused(returned, said):
    class Wrong(Linear):
        def step(self, model, batch, progress):
            return returned(super().step(model, batch, progress))

    with pytest.raises(BadInput, match=f"project {Wrong.name}: .*{said}"):
        trainer(Wrong).train_step(host_batch()[0], 0)
    if "weight changes" not in said:  # nothing is learned in a validation
        with pytest.raises(BadInput, match=said):
            trainer(Wrong).validate([host_batch()[0]])


def test_clipping_and_its_norm():
    ours = trainer(train__clip=0.1)
    plain = copy.deepcopy(ours.network)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.05)
    norms = []
    for step in range(3):
        batch, _ = host_batch(step)
        reference(plain, batch, optimizer)
        gradients = torch.cat([p.grad.flatten() for p in plain.parameters()]).double()
        norms.append(gradients.norm().item())
        for p in plain.parameters():
            p.grad.mul_(min(1.0, 0.1 / norms[-1]))
        optimizer.step()
        ours.train_step(batch, step)
    close(ours.network, plain, 1e-5)
    assert ours.read_log()["gradient_norm"] == pytest.approx(np.mean(norms), rel=1e-5)


def test_average_of_the_weights():
    """Against the recurrence written out; validation and inference compute with it; training does not."""
    ours = trainer(train__ema=0.9, train__learning_rate=0.1)
    expected = {n: p.detach().double().clone() for n, p in ours.network.named_parameters()}
    for step in range(20):
        ours.train_step(host_batch(step)[0], step)
        decay = min(0.9, (1 + step + 1) / (10 + step + 1))
        for name, p in ours.network.named_parameters():
            expected[name] = decay * expected[name] + (1 - decay) * p.detach().double()
    own = copy.deepcopy(ours.network.state_dict())
    averaged = copy.deepcopy(ours.network)
    averaged.load_state_dict({n: t.float() for n, t in expected.items()})
    batch, _ = host_batch(99)
    with torch.no_grad():
        loss = F.mse_loss(averaged(torch.from_numpy(batch.arrays["x"])), torch.from_numpy(batch.arrays["y"]))
    assert ours.validate([batch])["loss"] == pytest.approx(loss.item(), rel=1e-4)
    assert all(torch.equal(own[n], t) for n, t in ours.network.state_dict().items())
    for name, tensor in ours.state().tensors.items():
        if name.startswith("ema."):
            torch.testing.assert_close(tensor, expected[name[4:]].float())


@pytest.mark.parametrize("schedule", ["constant", "cosine", "linear", "poly", "wsd"])
def test_schedules(schedule):
    ours = trainer(steps=10, train__schedule=schedule, train__warmup=0.4, train__learning_rate=2.0)
    seen = []
    for step in range(10):
        ours.train_step(host_batch(step, scale=0.0)[0], step)
        seen.append(ours.read_log()["learning_rate"])
    after = {
        "constant": [2.0] * 6,
        "cosine": [1 + math.cos(math.pi * i / 6) for i in range(6)],
        "linear": [2 - i / 3 for i in range(6)],
        "poly": [2 * (1 - i / 6) ** 0.9 for i in range(6)],
        "wsd": [2.0] * 5 + [1.0],  # the last fifth: 2 steps
    }
    assert seen == pytest.approx([0.5, 1.0, 1.5, 2.0, *after[schedule]])


def test_what_is_adjusted_of_the_groups_holds_for_that_step_alone():
    """A group that waits learns at its own rate again afterwards, though the schedule is constant."""

    class Adjusted(Linear):
        def parameter_groups(self, model):
            return [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.02}]

        def adjust(self, groups, progress):
            groups[0]["weight_decay"] = 0.1 * progress.step
            if progress.step < 2:
                groups[1]["lr"] = 0.0

    ours = trainer(Adjusted)
    last = []
    for step in range(4):
        ours.train_step(host_batch(step)[0], step)
        assert ours.optimizer.param_groups[0]["weight_decay"] == pytest.approx(0.1 * step)
        last.append(ours.network[2].weight.detach().clone())
        if step == 0:
            ours.load_state(ours.state())  # the optimizer has other groups now
    assert [group["lr"] for group in ours.optimizer.param_groups] == [0.05, 0.02]
    assert torch.equal(last[0], last[1])
    assert not torch.equal(last[1], last[2])


def test_a_projects_own_schedule_and_after_step():
    class Own(Linear):
        seen: list[Progress] = []  # noqa: RUF012

        def schedule(self, progress):
            return None if progress.step == 0 else 0.5**progress.step

        def after_step(self, model, progress):
            self.seen.append(progress)

    ours = trainer(Own, train__learning_rate=1.0)
    rates = []
    for step in range(3):
        ours.train_step(host_batch(step)[0], step)
        rates.append(ours.read_log()["learning_rate"])
    assert rates == [1.0, 0.5, 0.25]
    assert [p.step for p in Own.seen] == [0, 1, 2]
    assert Own.seen[0].steps == 10


def test_the_log_has_the_highest_learning_rate_of_all_groups_and_the_lowest():
    class Layerwise(Linear):
        def parameter_groups(self, model):
            first, *others = model.parameters()
            return [{"params": [first], "lr": 0.25}, {"params": others, "lr": 1.0}]

        def optimizer(self, groups):
            return torch.optim.SGD(groups)

    ours = trainer(Layerwise, train__schedule="constant", train__warmup=0.0)
    ours.train_step(host_batch(0)[0], 0)
    found = ours.read_log()
    assert (found["learning_rate"], found["learning_rate_lowest"]) == (1.0, 0.25)


@pytest.mark.parametrize(
    ("settings", "make"),
    [
        ({}, torch.optim.AdamW),
        ({"train__optimizer": "sgd", "train__momentum": 0.9}, partial(torch.optim.SGD, momentum=0.9, nesterov=True)),
        ({"train__optimizer": "sgd", "train__momentum": 0.0}, torch.optim.SGD),
    ],
)
def test_the_optimizer_is_that_of_the_setting(settings, make):
    class Default(Linear):
        def optimizer(self, groups):
            return None

    ours = trainer(Default, train__weight_decay=0.3, train__learning_rate=0.01, **settings)
    plain = copy.deepcopy(ours.network)
    optimizer = make(plain.parameters(), lr=0.01, weight_decay=0.3)
    for step in range(5):
        batch, _ = host_batch(step)
        reference(plain, batch, optimizer)
        optimizer.step()
        ours.train_step(batch, step)
    close(ours.network, plain)


def test_the_setting_is_refused_where_a_project_has_its_own_optimizer():
    with pytest.raises(BadInput, match=r"own optimizer: leave train\.optimizer out"):
        trainer(Linear, train__optimizer="sgd")


def test_the_optimizers_hooks_and_label_are_kept():
    """The trainer steps past PyTorch's wrapper, but not past those who look: hooks and profilers."""
    ours = trainer()
    ours.train_step(host_batch()[0], 0)
    calls = []
    hook = ours.optimizer.register_step_pre_hook(lambda *_: calls.append("own"))
    ours.train_step(host_batch()[0], 1)
    hook.remove()
    every = register_optimizer_step_post_hook(lambda *_: calls.append("global"))
    ours.train_step(host_batch()[0], 2)
    every.remove()
    ours.train_step(host_batch()[0], 3)
    assert calls == ["own", "global"]
    with torch.profiler.profile(acc_events=True) as profile:
        ours.train_step(host_batch()[0], 4)
    assert any(event.key.startswith("Optimizer.step") for event in profile.key_averages())


def test_accumulation_needs_a_project_that_may_be_cut():
    class Whole(Linear):
        splittable = False

    trainer(Whole)
    with pytest.raises(BadInput, match=r"train.accumulate 2: .*BatchNorm"):
        trainer(Whole, train__accumulate=2)


def test_only_batches_can_be_cut():
    """A constant in the batch is refused, not left whole by chance of its length."""

    class Constants(Linear):
        def on_device(self, batch, statistics, rng):
            return {**batch, "weights": torch.ones(3), "scale": torch.tensor(2.0), "name": "mm"}

    with pytest.raises(BadInput, match=r"'weights' of shape \(3,\) for a batch of 7 samples"):
        trainer(Constants, train__accumulate=2).train_step(host_batch()[0], 0)


# ---------------------------------------------------------------- validation


def test_validation_weights_by_samples_and_leaves_training_alone():
    """Batches of 7, 7 and 2: the mean over all 16 samples; modes and random streams as before."""

    class Random(Linear):
        def step(self, model, batch, progress):
            torch.rand(3)  # a project that draws in validation
            return super().step(model, batch, progress)

    ours = trainer(Random)
    ours.network[1].eval()  # a part that the project holds still
    batches = [host_batch(i, count)[0] for i, count in enumerate([7, 7, 2])]
    x = np.concatenate([b.arrays["x"] for b in batches])
    y = np.concatenate([b.arrays["y"] for b in batches])
    with torch.no_grad():
        out = ours.network(torch.from_numpy(x))
    before = torch.get_rng_state()
    values = ours.validate(batches)
    assert torch.equal(torch.get_rng_state(), before)
    assert values["loss"] == pytest.approx(F.mse_loss(out, torch.from_numpy(y)).item(), rel=1e-6)
    assert values["constant"] == 2.0
    assert (values["decision_min"], values["decision_max"]) == pytest.approx((out.min().item(), out.max().item()))
    assert [m.training for m in ours.network] == [True, False, True]


def test_metrics_may_keep_what_they_are_given():
    """A buffer of the ring is refilled after release; what a metric kept must not change with it."""

    class Keeps:
        def reset(self):
            self.kept = []

        def update(self, prediction, batch):
            self.kept.append(batch["x"])

        def compute(self):
            return {"sum": float(torch.cat(self.kept).sum())}

    class WithMetric(Linear):
        def metrics(self):
            return [Keeps()]

    buffer = np.zeros((4, 6), np.float32)

    def batches():
        for value in (1.0, 2.0, 3.0):
            buffer[...] = value
            yield HostBatch({"x": buffer, "y": np.zeros((4, 1), np.float32)}, 4, lambda: None)

    assert trainer(WithMetric).validate(batches())["sum"] == 24 * (1 + 2 + 3)


def test_buffers_are_read_anew_although_their_views_are_kept():
    ours, plain = trainer(), trainer()
    batch, _ = host_batch(0)
    for step in range(3):
        fresh, _ = host_batch(step)
        for name, array in batch.arrays.items():
            array[...] = fresh.arrays[name]
        ours.train_step(batch, step)
        plain.train_step(fresh, step)
    close(ours.network, plain.network, 0)


# ---------------------------------------------------------------- not finite


def test_nan_names_the_first_step_and_the_term():
    class Fails(Linear):
        def step(self, model, batch, progress):
            loss, terms, prediction, _ = super().step(model, batch, progress)
            bad = torch.log(torch.tensor(-1.0)) if progress.step in (3, 5) else torch.tensor(0.0)
            return Step(loss + bad, {**terms, "wrong": bad}, prediction)

    ours = trainer(Fails)
    for step in range(3):
        ours.train_step(host_batch(step)[0], step)
    ours.state()
    for step in range(3, 7):
        ours.train_step(host_batch(step)[0], step)
    with pytest.raises(Unhealthy, match="wrong was NaN or infinite in step 4"):
        ours.state()
    log = ours.read_log()
    assert (log["nonfinite_step"], log["nonfinite_term"]) == (4, "wrong")


def test_an_overflowing_gradient_is_caught_before_a_checkpoint():
    """The loss was finite, the weights are not."""

    class Overflows(Linear):
        def step(self, model, batch, progress):
            loss, *_ = super().step(model, batch, progress)
            return Step(loss + torch.sqrt(model[0].weight[0, 0] * 0))  # d√x at 0 is infinite

    ours = trainer(Overflows)
    ours.train_step(host_batch()[0], 0)
    with pytest.raises(Unhealthy, match=r"0.weight \(a weight\) became NaN or infinite while the loss was finite"):
        ours.state()


def test_buffers_that_are_infinite_by_design_are_fine():
    class Masked(Linear):
        def model(self, precision):
            network = super().model(precision)
            network.register_buffer("mask", torch.tensor([0.0, -math.inf]))
            return network

    ours = trainer(Masked)
    ours.train_step(host_batch()[0], 0)
    assert ours.state().tensors["model.mask"][1] == -math.inf


def test_empty_tensors_are_fine(tmp_path):
    class Empty(Linear):
        def model(self, precision):
            network = super().model(precision)
            network.register_buffer("nothing", torch.empty(0, 3))
            network.register_parameter("none", nn.Parameter(torch.empty(0)))
            return network

    ours = trainer(Empty, train__ema=0.9)
    ours.train_step(host_batch()[0], 0)
    files = toy.ToySetup(ours.project).checkpoint_format
    files.write(tmp_path, ours.state())
    trainer(Empty, train__ema=0.9).load_state(files.read(tmp_path))
    assert Weights({"nothing": torch.empty(0)}).first_nonfinite() is None


# ---------------------------------------------------------------- out of memory


@pytest.fixture
def runs_out(monkeypatch):
    """The CPU as a device whose memory runs out."""
    monkeypatch.setattr(memory, "runs_out", lambda device: True)


def hungry(limit: int, base=Linear):
    """A project that has memory for `limit` samples at once, and whose step changes what a retry must restore."""

    class Hungry(base):
        def model(self, precision):
            return nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.5), nn.BatchNorm1d(5), nn.Linear(5, 1))

        def step(self, model, batch, progress):
            result = super().step(model, batch, progress)
            if len(batch["x"]) > limit:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return result

    return Hungry


@pytest.mark.usefixtures("runs_out")
@pytest.mark.parametrize("accumulate", [1, 2])
def test_out_of_memory_halves_the_micro_batch(accumulate):
    """Then everything is as if the micro-batch had been that small from the start: buffers and dropout too."""
    both = []
    for micro_batches in (accumulate, 4):
        both.append(trainer(hungry(2), train__accumulate=micro_batches, train__batch_size=8))  # seeds the generators
        for step in range(3):
            both[-1].train_step(host_batch(step, 8)[0], step)
    ours, small = both
    assert ours.state().values["torch"]["micro"] == 2
    for (name, a), b in zip(ours.state().tensors.items(), small.state().tensors.values(), strict=True):
        assert torch.equal(a, b), name
    assert "in micro-batches of 2" in ours.notes()[-1]
    assert not ours.notes()


@pytest.mark.usefixtures("runs_out")
def test_out_of_memory_in_the_middle_of_accumulation():
    """The second micro-batch fails: the gradients of the first are not counted twice."""

    class Once(Linear):
        calls = 0

        def step(self, model, batch, progress):
            Once.calls += 1
            if Once.calls == 2:
                raise torch.OutOfMemoryError
            return super().step(model, batch, progress)

    ours = trainer(Once, train__accumulate=2)
    plain = copy.deepcopy(ours.network)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.05)
    batch, _ = host_batch()
    reference(plain, batch, optimizer)
    optimizer.step()
    ours.train_step(batch, 0)
    close(ours.network, plain)


def test_a_step_that_may_not_be_split_names_the_size_that_fits():
    class Whole(hungry(3)):
        splittable = False

    ours = trainer(Whole, train__batch_size=15)
    with pytest.raises(BadInput, match=r"a batch of 15 samples does not fit.*--train.batch-size 3 fits"):
        ours.train_step(host_batch(0, 15)[0], 0)


def test_nothing_is_kept_for_a_retry_that_cannot_come(monkeypatch):
    def mark(self):
        raise AssertionError

    monkeypatch.setattr(memory.Rewind, "mark", mark)
    trainer().train_step(host_batch()[0], 0)


def out_of_memory(*_, **__):
    raise torch.OutOfMemoryError


@pytest.mark.parametrize(
    "where, doing",
    [("_taken", "bringing the batch to the device"), ("_step_optimizer", "the optimizer's step")],
)
def test_out_of_memory_outside_of_the_network(where, doing):
    ours = trainer()
    setattr(ours if hasattr(ours, where) else ours.learning, where, out_of_memory)
    with pytest.raises(BadInput, match=rf"{doing}, with train.batch_size 7"):
        ours.train_step(host_batch()[0], 0)


def test_out_of_memory_in_on_device():
    class Hungry(Linear):
        on_device = out_of_memory

    with pytest.raises(BadInput, match=r"in on_device, with train.batch_size 7"):
        trainer(Hungry).train_step(host_batch()[0], 0)


def test_a_network_larger_than_the_memory(monkeypatch):
    monkeypatch.setattr(nn.Module, "to", out_of_memory)
    with pytest.raises(BadInput, match=r"the network alone .* whatever train.batch_size"):
        trainer()


def test_validation_goes_on_with_smaller_batches():
    """The numbers are the same, each sample is counted once, and each halving is reported."""

    class Hungry(Linear):
        splittable = False
        limit = 99

        def step(self, model, batch, progress):
            if len(batch["x"]) > self.limit:
                raise torch.OutOfMemoryError
            return super().step(model, batch, progress)

    ours = trainer(Hungry)
    sizes = [7, 7, 2]
    expected = ours.validate([host_batch(i, count)[0] for i, count in enumerate(sizes)])
    Hungry.limit = 2
    batches = [host_batch(i, count) for i, count in enumerate(sizes)]
    assert ours.validate([batch for batch, _ in batches]) == pytest.approx(expected, rel=1e-6)
    assert all(released == {"released": 1} for _, released in batches)
    assert [note.split("batches of ")[1][0] for note in ours.notes()] == ["4", "2"]
    Hungry.limit = 0
    with pytest.raises(BadInput, match=r"validate.batch_size 1"):
        ours.validate([host_batch()[0]])


def test_what_validation_has_to_say_is_logged(tmp_path):
    """After the last step too, when no train line follows."""

    class Hungry(toy.Toy):
        def step(self, model, batch, progress):
            if not model.training and len(batch["image"]) > 4:
                raise torch.OutOfMemoryError
            return super().step(model, batch, progress)

    summary = toy.run(toy.small(train__epochs=1), tmp_path, project=Hungry)
    assert [(f["rule"], f["level"]) for f in summary["health"]] == [("memory", "note")]


@pytest.mark.usefixtures("runs_out")
@pytest.mark.parametrize("splittable", [True, False])
def test_no_batch_fits(splittable):
    class Never(Linear):
        def step(self, model, batch, progress):
            raise torch.OutOfMemoryError

    Never.splittable = splittable
    with pytest.raises(BadInput, match="nor does any smaller one"):
        trainer(Never).train_step(host_batch()[0], 0)


# ---------------------------------------------------------------- precision


class Convs(toy.Toy):
    """Layers of which one must stay float32."""

    def model(self, precision):
        return nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Sequential(nn.Conv2d(4, 1, 1)))


class SgdConvs(Convs):
    splittable = True

    def optimizer(self, groups):
        return torch.optim.SGD(groups, lr=0.05)


def toy_batch(count=8):
    rng = np.random.default_rng(0)
    image = rng.integers(0, 255, (count, 2, 8, 8), dtype=np.uint8)
    return HostBatch({"image": image, "mask": (image[:, 1:] > 128).astype(np.uint8)}, count, lambda: None)


def mixed(monkeypatch, policy, project=Convs, **settings):
    made = project(config(train__batch_size=8, **settings))
    setup = toy.ToySetup(made)
    setup.__dict__["precision"] = policy
    return setup.engine.trainer(setup, toy.make_data(made), 10)


@pytest.mark.parametrize("compute", ["float32", "bfloat16", "float16"])
def test_what_layers_compute_in(monkeypatch, compute):
    ours = mixed(monkeypatch, Precision(compute))
    ours.train_step(toy_batch(), 0)
    assert ours.read_log()["precision_seen"] == {f"torch.{compute}": 2}
    assert {p.dtype for p in ours.network.parameters()} == {torch.float32}
    assert not any(m._forward_hooks for m in ours.network.modules())


def test_modules_that_stay_float32(monkeypatch):
    ours = mixed(monkeypatch, Precision("bfloat16", keep_float32=("2",)))
    ours.train_step(toy_batch(), 0)
    assert ours.read_log()["precision_seen"] == {"torch.bfloat16": 1}
    with pytest.raises(BadInput, match="no submodule 'head' to keep"):
        mixed(monkeypatch, Precision("bfloat16", keep_float32=("head",)))


def test_one_stray_float32_layer_is_found(monkeypatch):
    """Beside one that is kept in float32 on purpose."""

    class Stray(nn.Conv2d):
        def forward(self, image):
            with torch.autocast("cpu", enabled=False):
                return super().forward(image.float())

    class Strays(Convs):
        def model(self, precision):
            return nn.Sequential(*super().model(precision), nn.Conv2d(1, 1, 1), Stray(1, 1, 1))

    policy = Precision("bfloat16", keep_float32=("2",))
    ours = mixed(monkeypatch, policy, Strays)
    ours.train_step(toy_batch(), 0)
    seen = ours.read_log()["precision_seen"]
    assert seen == {"torch.bfloat16": 2, "torch.float32": 1}
    assert not matches(policy, seen)


def test_float16_scales_the_loss_and_resumes_the_scale(monkeypatch):
    """Gradients below float16's range survive; an overflow halves the scale and skips the step."""
    ours = mixed(monkeypatch, Precision("float16"))
    first = copy.deepcopy(ours.network.state_dict())
    ours.learning.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120)
    ours.train_step(toy_batch(), 0)
    assert all(torch.equal(first[n], t) for n, t in ours.network.state_dict().items())
    assert ours.learning.scaler.get_scale() == 2.0**119
    assert "nonfinite_step" not in ours.read_log()
    ours.learning.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    ours.train_step(toy_batch(), 1)
    assert not torch.equal(first["0.weight"], ours.network.state_dict()["0.weight"])
    again = mixed(monkeypatch, Precision("float16"))
    again.load_state(ours.state())
    assert again.learning.scaler.get_scale() == 2.0**10


@pytest.mark.parametrize("clip", [None, 0.05])
def test_float16_unscales_once(monkeypatch, clip):
    """Accumulated gradients are clipped at their true size: the scale changes nothing but rounding."""
    results = []
    for scale in (1.0, 2.0**12):
        ours = mixed(monkeypatch, Precision("float16"), SgdConvs, train__accumulate=3, train__clip=clip)
        ours.learning.scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        for step in range(3):
            ours.train_step(toy_batch(), step)
        results.append((ours.network, ours.read_log().get("gradient_norm")))
    close(results[0][0], results[1][0], 1e-3)
    if clip is not None:
        assert results[0][1] == pytest.approx(results[1][1], rel=0.01)


def test_a_step_that_float16_skips_leaves_the_average(monkeypatch):
    ours = mixed(monkeypatch, Precision("float16"), train__ema=0.5)
    with torch.no_grad():
        for tensor in ours.learning.average.state().values():
            tensor.add_(1.0)  # away from the weights
    before = copy.deepcopy(ours.learning.average.state())
    ours.learning.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120)
    ours.train_step(toy_batch(), 0)
    assert all(torch.equal(before[n], t) for n, t in ours.learning.average.state().items())
    ours.learning.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    ours.train_step(toy_batch(), 1)
    for name, tensor in ours.learning.average.state().items():
        expected = torch.lerp(before[name], ours.network.state_dict()[name], 1 - 3 / 12)
        torch.testing.assert_close(tensor, expected)


def test_mixed_precision_gradients_are_near_the_true_ones(monkeypatch):
    """bfloat16 has 8 bits of significand: two steps of training stay within a few of its units of float32's."""
    results = []
    for policy in (Precision("float32"), Precision("bfloat16")):
        ours = mixed(monkeypatch, policy)
        for step in range(2):
            ours.train_step(toy_batch(), step)
        results.append(ours.read_log()["loss"])
    assert results[0] != results[1]
    assert results[0] == pytest.approx(results[1], rel=0.02)


def test_tf32_is_forbidden_in_float32():
    precision.set_backends(Precision("tf32"))
    assert torch.backends.cudnn.allow_tf32
    assert torch.get_float32_matmul_precision() == "high"
    precision.set_backends(Precision("float32"))
    assert not torch.backends.cudnn.allow_tf32
    assert torch.get_float32_matmul_precision() == "highest"


def test_the_chosen_gpu_becomes_the_current_one(monkeypatch):
    chosen = []
    monkeypatch.setattr(torch.accelerator, "set_device_index", chosen.append)
    assert engine.torch_device(Device("cuda", 1)) == torch.device("cuda", 1)
    assert engine.torch_device(Device("cpu")) == CPU
    assert chosen == [torch.device("cuda", 1)]


def test_shared_memory_is_page_locked_while_it_is_there(monkeypatch):
    calls = []

    class Cudart:
        def cudaHostRegister(self, address, size, flags):
            calls.append(("lock", address, size, flags))
            return 0

        def cudaHostUnregister(self, address):
            calls.append(("unlock", address))

    monkeypatch.setattr(torch.cuda, "cudart", Cudart)
    memory = np.empty(4096, np.uint8)
    address = memory.ctypes.data
    owner = Linear(config())
    transfer.pin(memory, CPU, owner)
    assert not calls
    transfer.pin(memory, torch.device("cuda", 0), owner)
    del memory
    assert len(calls) == 1  # unmapped memory must not stay locked: its owner holds it
    del owner
    assert calls == [("lock", address, 4096, 0), ("unlock", address)]


# ---------------------------------------------------------------- the set on the device


def test_device_resident_rows_are_the_gathered_ones():
    from runner_core.data.loader import Loader
    from runner_core.data.samples import RowSamples
    from runner_core.engines.torch.transfer import DeviceRows

    host, device = toy.MemoryStore(), toy.MemoryStore(device=True)
    fields = {"image": (-2, 0, 1), "mask": (0,)}
    options = {"batch_size": 5, "seed": 3, "shuffle": True}
    one = Loader(RowSamples(host, fields, [1, 4, 5]), **options)
    samples = RowSamples(device, fields, [1, 4, 5])
    gather = DeviceRows(samples, CPU)
    for a, b in zip(one.batches(0), Loader(samples, **options).batches(0), strict=True):
        got = gather({name: torch.from_numpy(array) for name, array in b.arrays.items()})
        assert got.keys() == a.arrays.keys()
        for name, array in a.arrays.items():
            np.testing.assert_array_equal(got[name].numpy(), array)
        a.release(), b.release()


def test_a_run_with_the_set_on_the_device_is_the_same_run(tmp_path):
    class NoAugment(toy.Toy):
        augment = None

    for name, store in (("host", toy.MemoryStore()), ("device", toy.MemoryStore(device=True))):
        made = NoAugment(toy.small())
        toy.run(toy.small(), tmp_path / name, project=NoAugment, data=toy.make_data(made, store))
    toy.assert_equal_runs(tmp_path / "host", tmp_path / "device")


def test_a_set_larger_than_the_device(monkeypatch):
    from runner_core.data.samples import RowSamples
    from runner_core.engines.torch import transfer

    def full(*_, **__):
        raise torch.OutOfMemoryError

    samples = RowSamples(toy.MemoryStore(device=True), {"image": (0,)}, [0])
    monkeypatch.setattr(transfer.torch, "empty", full)
    with pytest.raises(OutOfSpace, match=r"use cache\.mode memmap"):
        transfer.DeviceRows(samples, CPU)
    with pytest.raises(BadInput, match="samples that are rows"):
        transfer.DeviceRows(object(), CPU)


# ---------------------------------------------------------------- memory layout, compile


def test_channels_last_learns_the_same_and_survives_a_checkpoint():
    """Convolutions over 2 and 3 axes; what resumes has the layout, of the optimizer's state too."""

    class Volumes(Linear):
        def model(self, precision):
            return nn.Sequential(
                nn.Unflatten(1, (2, 1, 3)),
                nn.Conv2d(2, 4, (1, 3), padding=(0, 1)),
                nn.Unflatten(2, (1, 1)),
                nn.Conv3d(4, 3, (1, 1, 3), padding=(0, 0, 1)),
                nn.Flatten(),
                nn.Linear(9, 1),
            )

        def optimizer(self, groups):
            return torch.optim.AdamW(groups, lr=0.01)

    last, plain = (trainer(Volumes, train__channels_last=setting) for setting in ("on", "auto"))
    last.network[1].weight.data.copy_(plain.network[1].weight)
    for name, tensor in plain.network.state_dict().items():
        last.network.state_dict()[name].copy_(tensor)
    for step in range(3):
        for one in (last, plain):
            one.train_step(host_batch(step)[0], step)
    close(last.network, plain.network, 1e-5)
    again = trainer(Volumes, train__channels_last="on")
    again.load_state(last.state())
    for one in (last, again):
        two, three = one.network[1].weight, one.network[3].weight
        assert two.is_contiguous(memory_format=torch.channels_last)
        assert three.is_contiguous(memory_format=torch.channels_last_3d)
        assert one.optimizer.state[three]["exp_avg"].stride() == three.stride() != plain.network[3].weight.stride()


@pytest.mark.parametrize("sides", [(3, 3), (3, 3, 3)])
def test_weights_of_one_input_channel_tell_their_layout_by_strides_on_a_gpu(sides):
    """They are contiguous in both layouts. The device meta stands for a GPU; on a CPU nothing changes."""
    one, two = (torch.empty(8, channels, *sides, device="meta") for channels in (1, 2))
    dense = 3 ** len(sides)
    assert parallel._channels_last(one).stride() == (dense, 1, *(3**n for n in reversed(range(len(sides)))))
    assert parallel._channels_last(two).stride()[:2] == (2 * dense, 1)
    there = torch.randn(8, 1, *sides)
    assert parallel._channels_last(there).stride() == there.stride()


@pytest.mark.slow
def test_compiled_training_equals_eager(tmp_path):
    """Observing the precision runs the network once before it is compiled, and leaves no trace of it."""
    losses = []
    for setting in ("off", "on"):
        ours = trainer(toy.Toy, train__compile=setting, train__batch_size=8)
        ours.network[3].p = 0.0
        for step in range(3):
            ours.train_step(toy_batch(), step)
        log = ours.read_log()
        assert log["precision_seen"] == {"torch.float32": 2}
        losses.append(log["loss"])
        assert not any("_orig_mod" in name for name in ours.state().tensors)
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
