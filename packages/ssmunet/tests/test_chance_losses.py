"""Losses of a network that ignores its input, and the places at which the loss does not look."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from runner_core import Progress
from runner_ssmunet.config import demo
from runner_ssmunet.losses import weighted_cross_entropy
from runner_ssmunet.project import SSMUNet
from runner_ssmunet.statistics import balanced

COUNTS = np.array([600, 250, 100, 50, 0])
LABELS = torch.from_numpy(np.repeat(np.arange(5), COUNTS)).reshape(1, 20, 50)


def project(weights: str = "balanced", ignore: int | None = 0) -> SSMUNet:
    config = demo()
    config.loss.class_weights, config.data.ignore = weights, ignore
    made = SSMUNet(config)
    made.statistics = {"class_counts": COUNTS, "class_weights": balanced(COUNTS, 10)}
    return made


@pytest.mark.parametrize("weighting", ["balanced", "none"])
def test_no_constant_answer_has_a_lower_cross_entropy(weighting: str) -> None:
    own = project(weighting)
    weights = own.statistics["class_weights"] if weighting == "balanced" else np.ones(5)
    answer = torch.from_numpy(COUNTS * weights + 1e-30).double().log()

    def loss(logits: torch.Tensor) -> float:
        everywhere = logits[None, :, None, None].expand(1, 5, 20, 50)
        return float(weighted_cross_entropy(everywhere, LABELS, torch.from_numpy(weights)))

    found = own.health().chance_losses()["cross_entropy"]
    assert found == pytest.approx(loss(answer), rel=1e-6)
    generator = torch.Generator().manual_seed(0)
    assert all(loss(answer + torch.randn(5, generator=generator) / 3) > found for _ in range(20))


def test_it_is_ln_k_where_classes_weigh_the_same() -> None:
    assert project().health().chance_losses()["cross_entropy"] == pytest.approx(
        np.log(4), abs=0.05
    )  # the rarest weighs 10 at most


def gradient(own: SSMUNet, batch: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradient of the step's loss for its prediction (B, K, H, W), and the ignored pixels, as large."""
    logits = torch.randn(2, 5, 6, 6, generator=torch.Generator().manual_seed(0)).requires_grad_()
    network: Any = lambda spectra, tissue: logits  # noqa: E731
    step = own.step(network, batch, Progress(0, 10, 0))
    (found,) = torch.autograd.grad(step.loss, step.prediction)
    ignored = own.health().ignored(batch)
    assert ignored is not None
    return found, ignored.expand(found.shape)


def test_the_loss_has_no_gradient_where_it_is_ignored_and_one_elsewhere() -> None:
    target = torch.from_numpy(np.random.default_rng(0).integers(-1, 4, (2, 6, 6)))
    batch = {"spectra": torch.zeros(2, 6, 6, 3), "tissue": torch.ones(2, 6, 6, dtype=torch.bool), "target": target}
    found, ignored = gradient(project(), batch)
    assert ignored.any()
    assert not found[ignored].any()
    assert found.abs().sum(1)[target >= 0].all()


def test_nothing_is_ignored_where_the_settings_say_so() -> None:
    ignored = project(ignore=None).health().ignored(vars(SimpleNamespace(target=torch.zeros(1, 2, 2))))
    assert ignored is not None
    assert not ignored.any()
