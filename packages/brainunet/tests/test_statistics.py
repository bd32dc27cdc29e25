"""Scores of a network that ignores its input."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from runner_brainunet.config import LossConfig
from runner_brainunet.losses import bce_loss, dice_loss
from runner_brainunet.project import BrainUNet
from runner_brainunet.statistics import chance_losses
from runner_core.testing import open_store


def test_it_is_the_best_of_all_probabilities_that_are_the_same_everywhere() -> None:
    target = torch.zeros(1, 1, 200, 500)
    target[..., :60] = 1
    found = chance_losses(0.12, LossConfig(bce=1.0, dice=0.5))
    losses = []
    for p in np.linspace(0.01, 0.99, 99):
        logits = torch.full(target.shape, float(np.log(p / (1 - p))))
        losses.append((float(bce_loss(logits, target)), float(dice_loss(logits, target))))
    totals = [bce + 0.5 * dice for bce, dice in losses]
    best = int(np.argmin(totals))
    assert found["loss"] == pytest.approx(totals[best], rel=2e-3)
    assert (found["bce_loss"], found["dice_loss"]) == pytest.approx(losses[best], rel=2e-2)


def test_cross_entropy_alone_ends_at_the_entropy_of_the_share() -> None:
    found = chance_losses(0.1, LossConfig(bce=1.0, dice=0.0))["loss"]
    assert found == pytest.approx(-(0.1 * np.log(0.1) + 0.9 * np.log(0.9)), rel=1e-6)


def test_the_share_is_that_of_the_training_slices(project: BrainUNet, write_head: Callable[..., Path]) -> None:
    assert project.health().chance_losses() == {}
    root = write_head().parent.parent
    write_head("sub-02/sub-02_ses-1_T1w", shape=(40, 48, 30))
    records = project.records(root)
    project.config.cache.mode = "memory"
    store = open_store(project, records)
    masks = [store.arrays["mask"].read(record) for record in range(2)]
    share = project.fit(store, [0, 1])["brain_share"]
    assert share == pytest.approx(np.mean(np.concatenate(masks)), rel=1e-12)
    assert project.fit(store, [1])["brain_share"] != share
    project.statistics = {"brain_share": share}
    assert project.health().chance_losses() == chance_losses(share, project.config.loss)
