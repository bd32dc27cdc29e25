"""What losses cost and how hard they pull: measured right, logged once, the same after a kill."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

sys.path.insert(0, str(Path(__file__).parent / "engine_toy"))
import engine_toy as toy  # noqa: E402
from runner_core import BadInput, Cost, Step  # noqa: E402
from runner_core.contract import HostBatch  # noqa: E402
from runner_core.engines.torch.costs import Costs, measured  # noqa: E402
from runner_core.health import Health  # noqa: E402
from torch.nn import functional as F  # noqa: E402


def norm(*gradients):
    return torch.cat([g.flatten().double() for g in gradients]).norm().item()


# ---------------------------------------------------------------- measuring


def test_the_norm_is_that_of_the_weighted_gradient_at_the_prediction():
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(3, 4, generator=generator, requires_grad=True)
    logits = torch.randn(5, 3, generator=generator) @ weights
    target = torch.rand(5, 4, generator=generator)
    value, cost = measured(lambda: F.binary_cross_entropy_with_logits(logits, target), logits, -3.0)
    assert isinstance(cost, Cost)
    by_hand = (logits.sigmoid() - target) / logits.numel()
    assert float(cost.gradient) == pytest.approx(3 * norm(by_hand.detach()), rel=1e-6)
    assert cost.seconds > 0
    value.backward(retain_graph=True)  # its graph is still there, and nothing was added yet
    alone = torch.autograd.grad(F.binary_cross_entropy_with_logits(logits, target), weights)[0]
    assert torch.equal(weights.grad, alone)


def test_of_several_answers_the_norm_is_of_all():
    fine, coarse, unused = (torch.full((n,), 2.0, requires_grad=True) for n in (6, 3, 2))
    _, cost = measured(lambda: fine.square().sum() + 0.5 * coarse.square().sum(), [fine, coarse, unused])
    assert float(cost.gradient) == pytest.approx(norm(2 * fine.detach(), coarse.detach()), rel=1e-6)


def test_where_nothing_pulls_the_norm_is_zero():
    logits = torch.ones(3, requires_grad=True)
    assert float(measured(lambda: torch.tensor(2.0), logits)[1].gradient) == 0
    with torch.no_grad():  # a network that is to be compiled is first run like this
        value, cost = measured(logits.sum, logits)
    assert (float(value), float(cost.gradient)) == (3, 0)


def test_small_gradients_do_not_vanish_in_float16():
    exact = torch.linspace(-4, 4, 1_000_000, requires_grad=True)
    half = exact.detach().half().requires_grad_()
    costs = [measured(lambda z=z: z.float().sigmoid().mean(), z)[1] for z in (exact, half)]
    assert float(costs[0].gradient) > 0
    assert float(costs[1].gradient) == pytest.approx(float(costs[0].gradient), rel=1e-3)


def test_double_precision_is_measured_too():
    logits = torch.full((4,), 3.0, dtype=torch.float64, requires_grad=True)
    _, cost = measured(lambda: logits.square().sum(), logits)
    assert (cost.gradient.dtype, float(cost.gradient)) == (torch.float32, 12)


# ---------------------------------------------------------------- from the step to the log


class Measuring(toy.Toy):
    """Measures in steps 1, 4, 7, …"""

    def step(self, model, batch, progress):
        logits = model(batch["image"])
        target = batch["mask"].float()
        if progress.step % 3 or not model.training:
            return Step(F.binary_cross_entropy_with_logits(logits, target), {}, logits)
        value, cost = measured(lambda: F.binary_cross_entropy_with_logits(logits, target), logits, 2.0)
        return Step(value, {}, logits, {"bce": cost, "number": Cost(float(progress.step), torch.tensor(0.25))})


def losses(folder):
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    for before, line in itertools.pairwise(lines):
        assert line["event"] != "losses" or (before["event"], before["step"]) == ("train", line["step"])
    return [line for line in lines if line["event"] == "losses"]


def test_the_newest_are_logged_once_after_the_train_line(tmp_path):
    toy.run(toy.small(train__epochs=4, log__every=5), tmp_path, project=Measuring)
    found = losses(tmp_path)
    assert [(line["step"], line["gradient_norm"]["number"]) for line in found] == [(1, 0), (5, 3), (10, 9)]
    for line in found:  # nothing was measured between the lines of step 10 and 12
        assert line.keys() == {"event", "step", "epoch", "gradient_norm", "timing"}
        assert line["gradient_norm"]["bce"] > 0
        assert line["timing"]["milliseconds"]["bce"] > 0
        assert line["timing"]["milliseconds"]["number"] == 250


def test_health_rules_see_how_hard_losses_pulled_since_the_last_validation(tmp_path, monkeypatch):
    seen = []
    observe = Health.observe
    monkeypatch.setattr(Health, "observe", lambda self, event: (seen.append(event), observe(self, event))[1])
    toy.run(toy.small(train__epochs=4, log__every=5, validate__every=2), tmp_path, project=Measuring)
    pulls = [event.facts["pulls"] for event in seen if event.moment == "validation"]
    assert [pull["number"] for pull in pulls] == [[2, 3], [1, 9]]


@pytest.mark.parametrize("overflowed", [np.inf, np.nan])
def test_a_gradient_that_overflowed_is_not_taken_for_one_of_nothing(tmp_path, monkeypatch, overflowed):
    class Overflowing(Measuring):
        def step(self, model, batch, progress):
            step = super().step(model, batch, progress)
            return step._replace(costs={name: Cost(overflowed, cost.seconds) for name, cost in step.costs.items()})

    seen = []
    observe = Health.observe
    monkeypatch.setattr(Health, "observe", lambda self, event: (seen.append(event), observe(self, event))[1])
    toy.run(toy.small(train__epochs=4, log__every=5, validate__every=2), tmp_path, project=Overflowing)
    assert [event.facts["pulls"] for event in seen if event.moment == "validation"] == [{}, {}]


EVERYTHING = {"train__epochs": 4, "train__accumulate": 3, "checkpoint__every_steps": 2, "log__every": 5}


@pytest.mark.parametrize("calls", [5, 18, 29])
def test_those_that_were_not_logged_yet_survive_a_kill(tmp_path, calls):
    """Measured in step 4, saved after it, killed in step 5 (of three micro-batches each), after which they are due."""

    class Kill(BaseException):
        pass

    class Mortal(Measuring):
        left = calls

        def step(self, model, batch, progress):
            Mortal.left -= 1
            if not Mortal.left:
                raise Kill
            return super().step(model, batch, progress)

    toy.run(toy.small(**EVERYTHING), tmp_path / "whole", project=Measuring)
    with pytest.raises(Kill):
        toy.run(toy.small(**EVERYTHING), tmp_path / "killed", project=Mortal)
    toy.run(toy.small(**EVERYTHING), tmp_path / "killed", project=Measuring, resume=True)
    assert len(losses(tmp_path / "whole")) == 3
    toy.assert_equal_runs(tmp_path / "whole", tmp_path / "killed")


def trainer(project=Measuring, **settings):
    setup = toy.ToySetup(project(toy.small(**settings)))
    data = toy.make_data(setup.project)
    data.samples = {"train": setup.project.samples(data.store, data.splits["train"], "train")}
    return setup.engine.trainer(setup, data, 9), data


def batch(data, count=6):
    samples = data.samples["train"]
    arrays = {name: np.empty((count, *spec.shape), spec.dtype) for name, spec in samples.spec.items()}
    samples.fill(np.arange(count), np.arange(count), 0, 0, arrays)
    return HostBatch(arrays, count, lambda: None)


def test_of_micro_batches_it_is_the_last():
    class Counting(Measuring):
        calls = 0

        def step(self, model, batch, progress):
            Counting.calls += 1
            return super().step(model, batch, progress)._replace(costs={"x": Cost(Counting.calls, 0.0)})

    ours, data = trainer(Counting, train__accumulate=3, train__batch_size=6)
    ours.train_step(batch(data), 0)
    assert ours.read_log()["losses"]["gradient_norm"] == {"x": 3}
    assert "losses" not in ours.read_log()


def test_a_checkpoint_without_costs_is_read():
    ours, data = trainer()
    ours.train_step(batch(data), 0)
    state = ours.state()
    costs = state.values["torch"].pop("costs")
    assert (costs["gradient"]["number"], costs["timing"]["number"]) == (0.0, 0.25)
    again, _ = trainer()
    again.load_state(state)
    assert "losses" not in again.read_log()


def test_what_is_no_cost_is_refused():
    costs = Costs(Measuring(toy.small()))
    costs.keep({})
    assert costs.take() is None
    with pytest.raises(BadInput, match=r"project enginetoy: .*Cost\(gradient, seconds\) by name; 'dice' is dict"):
        costs.keep({"dice": {"gradient": 1.0}})
