"""`train.optimizer muon`: PyTorch's Muon for hidden matrices, AdamW for the rest; and gradients clipped in parts."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent / "engine_toy"))
import engine_toy as toy
from runner_core.base.errors import BadInput
from runner_core.contract import HostBatch, Step

torch = pytest.importorskip("torch")
from runner_core.engines.torch.memory import _of_twin  # noqa: E402
from runner_core.engines.torch.muon import MuonWithAdamW  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

needs_muon = pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="Muon came with PyTorch 2.9")


class Layers(toy.Toy):
    """Least squares through a hidden matrix."""

    monitor = ("loss", "min")

    def on_device(self, batch, statistics, rng):
        return batch

    def model(self, precision):
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 1))

    def step(self, model, batch, progress):
        prediction = model(batch["x"])
        return Step(F.mse_loss(prediction, batch["y"]), {}, prediction)

    def decision(self, prediction):
        return prediction

    def metrics(self):
        return []


class Hidden(Layers):
    def parameter_groups(self, model):
        others = [p for p in model.parameters() if p is not model[2].weight]
        return [{"params": others, "lr": 0.02}, {"params": [model[2].weight], "hidden": True}]


def trainer(project, **settings):
    base = {"train__schedule": "constant", "train__warmup": 0.0, "train__batch_size": 7, "train__epochs": 1}
    made = project(toy.small(**{**base, **settings}))
    setup = toy.ToySetup(made)
    return setup.engine.trainer(setup, toy.make_data(made), 10)


def batch(seed):
    x = np.random.default_rng(seed).standard_normal((7, 6), dtype=np.float32)
    return HostBatch({"x": x, "y": x.sum(1, keepdims=True) ** 2}, 7, lambda: None)


def gradients(network, seed):
    given = batch(seed).arrays
    network.zero_grad()
    F.mse_loss(network(torch.from_numpy(given["x"])), torch.from_numpy(given["y"])).backward()


@needs_muon
def test_hidden_matrices_follow_muon_and_the_rest_adamw():
    ours = trainer(Hidden, train__optimizer="muon", train__learning_rate=0.01, train__weight_decay=0.1)
    plain = copy.deepcopy(ours.network)
    matrix = plain[2].weight
    muon = torch.optim.Muon([matrix], lr=0.01, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    others = torch.optim.AdamW([p for p in plain.parameters() if p is not matrix], lr=0.02, weight_decay=0.1)
    for step in range(5):
        gradients(plain, step)
        muon.step()
        others.step()
        ours.train_step(batch(step), step)
    for one, other in zip(ours.network.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@needs_muon
def test_a_step_is_muons_by_its_definition():
    """The first step, by the published iteration (Jordan et al. 2024) in float64; PyTorch iterates in bfloat16."""
    rng = np.random.default_rng(0)
    gradient = np.linalg.qr(rng.normal(size=(8, 5)))[0] * np.linspace(0.5, 1, 5)  # singular values near each other
    weight = nn.Parameter(torch.zeros(8, 5))
    weight.grad = torch.tensor(gradient, dtype=torch.float32)
    MuonWithAdamW([{"params": [weight], "hidden": True}], lr=0.01).step()
    x = gradient.T / np.linalg.norm(gradient)
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    np.testing.assert_allclose(-weight.detach().numpy() / (0.01 * 0.2 * 8**0.5), x.T, atol=0.03)


@needs_muon
def test_it_continues_bit_for_bit():
    settings = {"train__optimizer": "muon", "train__weight_decay": 0.1, "train__clip": 0.5}
    whole, first, second = (trainer(Hidden, **settings) for _ in range(3))
    for step in range(6):
        whole.train_step(batch(step), step)
    for step in range(3):
        first.train_step(batch(step), step)
    second.load_state(first.state())
    for step in range(3, 6):
        second.train_step(batch(step), step)
    one, other = whole.state().tensors, second.state().tensors
    assert one.keys() == other.keys()
    assert all(np.asarray(one[name]).tobytes() == np.asarray(other[name]).tobytes() for name in one)
    assert any("momentum_buffer" in name for name in one)
    rest = sum(p.numel() for p in whole.network.parameters()) - 40
    fresh = trainer(Hidden, **settings)
    assert _of_twin(fresh.optimizer) == 4 * (40 + 2 * rest + 5)  # one average of 8 × 5 numbers; two, and a count, of 5


def test_where_it_cannot_be(monkeypatch):
    with pytest.raises(BadInput, match="does not say which matrices belong to hidden layers"):
        trainer(Layers, train__optimizer="muon")
    monkeypatch.delattr(torch.optim, "Muon", raising=False)
    with pytest.raises(BadInput, match=r"muon needs PyTorch 2\.9 or later, and this is .*: take adamw"):
        trainer(Hidden, train__optimizer="muon")


def test_parts_are_clipped_each_by_its_own_norm():
    class Parts(Layers):
        def clip_units(self, model):
            return [model[0], model[2]]

        def optimizer(self, groups):
            return torch.optim.SGD(groups, lr=0.05)

    ours = trainer(Parts, train__clip=0.1)
    plain = copy.deepcopy(ours.network)
    gradients(plain, 0)
    norms = []
    for part in (plain[0], plain[2], plain[4]):  # the last one in no unit
        norms.append(float(torch.cat([p.grad.flatten() for p in part.parameters()]).norm()))
        with torch.no_grad():
            for p in part.parameters():
                p -= 0.05 * p.grad * min(1.0, 0.1 / norms[-1])
    assert max(norms) > 0.1
    ours.train_step(batch(0), 0)
    for one, other in zip(ours.network.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    assert ours.read_log()["gradient_norm"] == pytest.approx(np.linalg.norm(norms), rel=1e-5)
