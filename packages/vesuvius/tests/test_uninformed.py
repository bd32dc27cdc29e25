"""Losses of a network that ignores its input, and the places at which the loss does not look."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from runner_core import Progress
from runner_vesuvius.config import ScrollConfig, TermConfig
from runner_vesuvius.project import Vesuvius
from torch import Tensor

NAMES = ("bce", "dice", "skeleton_recall", "cldice", "boundary", "surface_distance", "topology")


class Network:
    """Answers what it is told, at two levels."""

    training = True

    def __init__(self, *logits: Tensor) -> None:
        self.logits = logits

    def __call__(self, image: Tensor) -> tuple[Tensor, ...]:
        return self.logits


def batch() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    label = torch.zeros(2, 1, 12, 12, 12)
    label[:, :, 4:7] = 1
    known = torch.rand(label.shape, generator=generator) < 0.6
    surface = label * known
    distance = (torch.arange(12).float()[:, None, None] - 5).abs().expand(label.shape) - 1
    every = {"surface": surface, "known": known, "tube": surface > 0, "medial": surface > 0, "distance": distance}
    return {"image": label, **every}


def test_it_is_that_of_every_patch_at_every_level(config: ScrollConfig) -> None:
    project = Vesuvius(config)
    silent: Any = Network(torch.zeros(2, 1, 12, 12, 12), torch.zeros(2, 1, 6, 6, 6))
    terms = project.step(silent, batch(), Progress(0, 10, 0)).terms
    assert project.health().chance_losses() == {"bce_loss": pytest.approx(math.log(2)), "skeleton_recall_loss": 0.5}
    assert float(terms["bce_loss"]) == pytest.approx(math.log(2), rel=1e-6)
    assert float(terms["skeleton_recall_loss"]) == pytest.approx(0.5, abs=0.01)  # but for its epsilon
    config.loss.positive = 2.0
    assert Vesuvius(config).health().chance_losses() == {}


@pytest.mark.parametrize("name", NAMES)
def test_no_loss_has_a_gradient_where_it_is_ignored(config: ScrollConfig, name: str) -> None:
    for other in NAMES:
        setattr(config.loss, other, TermConfig(float(other in (name, "bce"))))  # topology does not go alone
    config.loss.topology_every = 1
    project, given = Vesuvius(config), batch()
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(2, 1, 12, 12, 12, generator=generator).requires_grad_()
    network: Any = Network(logits, torch.randn(2, 1, 6, 6, 6, generator=generator))
    step = project.step(network, given, Progress(0, 10, 0))
    (found,) = torch.autograd.grad(step.loss, step.prediction)
    ignored = project.health().ignored(given)
    assert ignored.any()
    assert not found[ignored].any()
    assert found[~ignored].any()
