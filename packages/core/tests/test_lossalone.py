"""The loss alone: the network runs once, its answers are played back, and the loss is computed every time."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent / "engine_toy"))
import engine_toy as toy
import keras_toy
from runner_core.contract import Precision, Progress, Step

PROGRESS = Progress(3, 10, 0)
BATCH = {"image": (5, 2, toy.SIDE, toy.SIDE), "mask": (5, 1, toy.SIDE, toy.SIDE)}


def arrays():
    rng = np.random.default_rng(0)
    return {
        "image": rng.normal(size=BATCH["image"]).astype(np.float32),
        "mask": rng.integers(0, 2, BATCH["mask"]).astype(np.uint8),
    }


@pytest.fixture
def in_torch():
    torch = pytest.importorskip("torch")
    from runner_core.engines.torch.lossalone import Replay

    def seconds(project, count=3):
        network = project.model(None).train()
        calls = []
        network[0].register_forward_hook(lambda *_: calls.append(0))
        tensors = {name: torch.from_numpy(array) for name, array in arrays().items()}
        found = Replay(project, network, tensors, PROGRESS, nullcontext()).seconds(count)
        assert all(parameter.grad is None for parameter in network.parameters())
        return found, len(calls)

    return seconds


@pytest.mark.torch
def test_network_runs_once_and_the_loss_every_time(in_torch):
    losses, gradients = [], []

    class Watched(toy.Toy):
        def step(self, model, batch, progress):
            assert progress == PROGRESS
            step = super().step(model, batch, progress)
            losses.append(step.loss.item())
            step.prediction.register_hook(lambda gradient: gradients.append(gradient.abs().sum().item()))
            return step

    seconds, calls = in_torch(Watched(toy.small()))
    assert seconds > 0
    assert calls == 1
    assert len(set(losses)) == 1
    assert len(losses) == 1 + 3
    assert len(set(gradients)) == 1
    assert gradients[0] > 0


@pytest.mark.torch
def test_parts_and_methods_of_a_network_are_played_back_too(in_torch):
    """Several answers, nested, some of them without gradients."""
    import torch

    class Parts(toy.Toy):
        def step(self, model, batch, progress):
            with torch.no_grad():
                teacher = model.forward(batch["image"])
            first = {"features": [model.forward(batch["image"])]}
            second = model(batch["image"])
            assert second.requires_grad
            assert not teacher.requires_grad
            assert model.training
            return Step((first["features"][0] - second).square().mean() + second.mean(), {}, second)

    seconds, calls = in_torch(Parts(toy.small()))
    assert seconds > 0
    assert calls == 3


@pytest.mark.torch
def test_what_calls_no_network_cannot_be_told_apart(in_torch):
    class Weights(toy.Toy):
        def step(self, model, batch, progress):
            return Step(model.state_dict()["0.weight"].square().sum(), {}, None)

    assert in_torch(Weights(toy.small()))[0] is None


def test_keras_plays_back_too():
    pytest.importorskip("keras", reason="the keras engine is not installed (extra keras)")
    import keras
    from runner_core.engines.keras.engine import backend
    from runner_core.engines.keras.network import Bound, build
    from runner_core.engines.keras.phases import loss_seconds

    class Eager(keras_toy.KerasToy):
        def step(self, model, batch, progress):
            step = super().step(model, batch, progress)
            self.seen.append(model)
            return step

    project = Eager(toy.small())
    project.seen = []
    project.statistics = project.fit(None, [])
    network = build(project, Precision("float32"), 0)
    calls = []
    tensors = {name: keras.ops.convert_to_tensor(array) for name, array in arrays().items()}
    tensors = {name: keras.ops.transpose(tensor, (0, 2, 3, 1)) for name, tensor in tensors.items()}

    class Counting(Bound):
        def __call__(self, *inputs, **options):
            calls.append(0)
            return super().__call__(*inputs, **options)

    seconds = loss_seconds(project, Counting(network, True), tensors, PROGRESS, 3, backend(), False)
    assert seconds > 0
    assert len(calls) == 1
    assert len(project.seen) == 2  # once to hear the answers, once to compile

    class Blind(keras_toy.KerasToy):
        def step(self, model, batch, progress):
            return Step(keras.ops.mean(batch["image"]), {}, None)

    assert loss_seconds(Blind(toy.small()), Bound(network, True), tensors, PROGRESS, 3, backend(), False) is None
