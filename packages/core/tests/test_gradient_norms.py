"""How large the gradient of each loss term is: measured right, logged once, the same after a kill."""

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
from runner_core import Step  # noqa: E402
from runner_core.contract import HostBatch  # noqa: E402
from runner_core.engines.torch.gradient_norms import GradientNorms, gradient_norm  # noqa: E402
from runner_core.health import Health  # noqa: E402
from torch.nn import functional as F  # noqa: E402


def norm(*gradients):
    return torch.cat([g.flatten().double() for g in gradients]).norm().item()


# ---------------------------------------------------------------- measuring


def test_the_norm_is_that_of_the_gradient_at_the_prediction():
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(3, 4, generator=generator, requires_grad=True)
    logits = torch.randn(5, 3, generator=generator) @ weights
    target = torch.rand(5, 4, generator=generator)
    value = F.binary_cross_entropy_with_logits(logits, target)
    by_hand = (logits.sigmoid() - target) / logits.numel()
    assert gradient_norm(value, [logits]) == pytest.approx(norm(by_hand.detach()), rel=1e-6)
    value.backward(retain_graph=True)  # its graph is still there, and nothing was added yet
    alone = torch.autograd.grad(F.binary_cross_entropy_with_logits(logits, target), weights)[0]
    assert torch.equal(weights.grad, alone)


def test_of_several_answers_the_norm_is_of_all():
    fine, coarse, unused = (torch.full((n,), 2.0, requires_grad=True) for n in (6, 3, 2))
    value = fine.square().sum() + 0.5 * coarse.square().sum()
    found = gradient_norm(value, [fine, coarse, unused])
    assert found == pytest.approx(norm(2 * fine.detach(), coarse.detach()), rel=1e-6)


def test_a_term_that_depends_on_no_answer_has_no_norm():
    one, other = (torch.ones(3, requires_grad=True) for _ in range(2))
    assert gradient_norm(one.sum(), [other]) is None


def test_small_gradients_do_not_vanish_in_float16():
    exact = torch.linspace(-4, 4, 1_000_000, requires_grad=True)
    half = exact.detach().half().requires_grad_()
    one, other = (gradient_norm(z.float().sigmoid().mean(), [z]) for z in (exact, half))
    assert one > 0
    assert other == pytest.approx(one, rel=1e-3)


def test_double_precision_is_measured_too():
    logits = torch.full((4,), 3.0, dtype=torch.float64, requires_grad=True)
    assert gradient_norm(logits.square().sum(), [logits]) == 12


def test_outputs_say_where_gradients_are_measured():
    """Measured are the gradients at `outputs`, or else at the prediction."""
    fine, coarse = (torch.full((n,), 2.0, requires_grad=True) for n in (4, 4))
    terms = {"both": (fine + coarse).sum(), "told": torch.tensor(1.0)}
    for outputs, expected in ((None, 2.0), ([fine, coarse], 8**0.5), ({"fine": fine}, 2.0)):
        for alone in (True, False):
            norms = GradientNorms(toy.Toy(toy.small()), (), alone)
            norms.measure(0, Step(terms["both"], terms, fine, outputs), {})
            assert norms.take({})["gradient_norms"] == {"both": [1, pytest.approx(expected)]}


def test_a_term_that_begins_late_is_measured_in_its_first_steps():
    """Its health rule needs five measurements, whenever they are; a kill in between changes nothing."""
    norms, measured = GradientNorms(toy.Toy(toy.small()), (), True), []
    prediction = torch.ones(3, requires_grad=True)
    for number in range(70):
        late = {"late": 2 * prediction.sum()} if number > 20 and number % 7 == 6 else {}
        norms.measure(number, Step(prediction.sum(), {"always": prediction.sum(), **late}, prediction), {})
        if "late" in norms.take({}).get("gradient_norms", {}):
            measured.append(number)
        before, norms = norms, GradientNorms(toy.Toy(toy.small()), (), True)
        norms.load(before.state())
    assert measured == [27, 34, 41, 48, 55]


# ---------------------------------------------------------------- from the step to the log


class Measuring(toy.Toy):
    """The gradient of `twice` is twice as long."""

    def step(self, model, batch, progress):
        logits = model(batch["image"])
        value = F.binary_cross_entropy_with_logits(logits, batch["mask"].float())
        return Step(value, {"bce": value, "twice": 2 * value}, logits)


def losses(folder):
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    for before, line in itertools.pairwise(lines):
        assert line["event"] != "losses" or (before["event"], before["step"]) == ("train", line["step"])
    return [line for line in lines if line["event"] == "losses"]


def test_they_are_logged_once_after_the_train_line(tmp_path):
    toy.run(toy.small(train__epochs=4, log__every=5), tmp_path, project=Measuring)
    found = losses(tmp_path)
    assert [line["step"] for line in found] == [1, 5, 10]  # nothing was measured between the lines of step 10 and 12
    for line in found:
        assert line.keys() == {"event", "step", "epoch", "gradient_norm"}
        assert line["gradient_norm"]["bce"] > 0
        assert line["gradient_norm"]["twice"] == pytest.approx(2 * line["gradient_norm"]["bce"], rel=1e-5)


def test_health_rules_see_the_norms_since_the_last_validation(tmp_path, monkeypatch):
    seen = []
    observe = Health.observe
    monkeypatch.setattr(Health, "observe", lambda self, event: (seen.append(event), observe(self, event))[1])
    toy.run(toy.small(train__epochs=4, log__every=5, validate__every=2), tmp_path, project=Measuring)
    norms = [event.facts["gradient_norms"]["bce"] for event in seen if event.moment == "validation"]
    logged = [line["gradient_norm"]["bce"] for line in losses(tmp_path)]
    assert norms == [[5, max(logged[:2])], [1, logged[2]]]


@pytest.mark.parametrize("overflowed", [np.inf, np.nan])
def test_a_gradient_that_overflowed_is_not_taken_for_one_of_nothing(tmp_path, monkeypatch, overflowed):
    seen = []
    observe = Health.observe
    monkeypatch.setattr(Health, "observe", lambda self, event: (seen.append(event), observe(self, event))[1])
    monkeypatch.setattr("runner_core.engines.torch.gradient_norms.gradient_norm", lambda *given: overflowed)
    toy.run(toy.small(train__epochs=4, log__every=5, validate__every=2), tmp_path, project=Measuring)
    assert [event.facts["gradient_norms"] for event in seen if event.moment == "validation"] == [{}, {}]
    assert losses(tmp_path) == []


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


def test_of_micro_batches_it_is_the_first():
    class Counting(Measuring):
        calls = 0

        def step(self, model, batch, progress):
            Counting.calls += 1
            step = super().step(model, batch, progress)
            return step._replace(terms={"x": Counting.calls * step.prediction[0, 0, 0, 0]})

    ours, data = trainer(Counting, train__accumulate=3, train__batch_size=6)
    ours.train_step(batch(data), 0)
    assert ours.read_log()["facts"]["gradient_norms"] == {"x": [1, 1.0]}
    assert "gradient_norms" not in ours.read_log()["facts"]


@pytest.mark.parametrize("name", ["gradient_norms", "pulls"])
def test_a_checkpoint_from_before_is_read(name):
    ours, data = trainer()
    ours.train_step(batch(data), 0)
    state = ours.state()
    kept = state.values["torch"].pop("gradient_norms")
    state.values["torch"][name] = {**kept, name: kept.pop("gradient_norms")}
    again, _ = trainer()
    again.load_state(state)
    assert again.read_log()["facts"]["gradient_norms"].keys() == {"bce", "twice"}
    del state.values["torch"][name]
    empty, _ = trainer()
    empty.load_state(state)
    assert "gradient_norms" not in empty.read_log()["facts"]


def test_the_loop_of_a_run_from_before_goes_on():
    from runner_core.training.keeping import LoopState

    state = LoopState.from_json({"step": 3, "pulls": {"bce": [2, 0.5]}})
    state.add_gradient_norms({"bce": (1, 0.75), "dice": (1, 0.25)})
    assert state.gradient_norms == {"bce": [3, 0.75], "dice": [1, 0.25]}
