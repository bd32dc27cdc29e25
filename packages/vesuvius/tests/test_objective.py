"""The loss of a step: what counts when, and that batches may be cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from runner_core import Progress
from runner_vesuvius.config import LossConfig, TermConfig
from runner_vesuvius.losses import soft_dice, weighted_bce
from runner_vesuvius.objective import objective
from torch import Tensor

NAMES = ("bce", "dice", "skeleton_recall", "cldice", "boundary", "surface_distance", "topology")


def only(**weights: float) -> LossConfig:
    """These losses count, no other."""
    config = LossConfig(**{name: TermConfig(weights.get(name, 0.0)) for name in NAMES})
    config.topology_crop, config.topology_every = 8, 10
    return config


def batch(count: int = 2, side: int = 12) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    label = torch.zeros(count, 1, side, side, side)
    label[:, :, 4:7] = 1
    known = torch.rand(label.shape, generator=generator) < 0.8
    surface = label * known
    distance = (torch.arange(side).float()[:, None, None] - 5).abs().expand(label.shape) - 1
    middle = torch.zeros_like(known)
    middle[:, :, 5] = True
    return {"surface": surface, "known": known, "tube": surface > 0, "medial": middle & known, "distance": distance}


def logits(count: int = 2, side: int = 12, levels: int = 2) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    sides = [side // 2**level for level in range(levels)]
    return [torch.randn(count, 1, s, s, s, generator=generator).requires_grad_() for s in sides]


def at(step: int, steps: int = 100) -> Progress:
    return Progress(step, steps, 0)


def test_the_loss_is_the_weighted_sum_of_its_terms_over_all_levels() -> None:
    made = objective(logits(), batch(), only(bce=1.0, dice=0.5, boundary=0.25), at(0), True)
    assert set(made.terms) == {"bce_loss", "dice_loss", "boundary_loss"}
    expected = made.terms["bce_loss"] + 0.5 * made.terms["dice_loss"] + 0.25 * made.terms["boundary_loss"]
    torch.testing.assert_close(made.loss, expected)
    one = logits(levels=1)
    alone = objective(one, batch(), only(bce=1.0, dice=1.0), at(0), True)
    known = batch()["known"]
    by_hand = weighted_bce(one[0], batch()["surface"], known, LossConfig().positive) + soft_dice(
        one[0], batch()["surface"], known
    )
    torch.testing.assert_close(alone.loss, by_hand)
    assert made.prediction.shape == (2, 1, 12, 12, 12)


def gradients(answers: Sequence[Tensor]) -> list[float]:
    return [0.0 if a.grad is None else float(a.grad.abs().sum()) for a in answers]


def test_dense_losses_reach_every_level_and_those_of_shape_the_finest() -> None:
    answers = logits()
    objective(answers, batch(), only(bce=1.0), at(0), True).loss.backward()
    assert min(gradients(answers)) > 0
    answers = logits()
    objective(answers, batch(), only(cldice=1.0), at(0), True).loss.backward()
    assert gradients(answers)[0] > 0
    assert gradients(answers)[1] == 0


def test_a_loss_that_begins_later_is_not_computed_before() -> None:
    config = only(bce=1.0)
    config.boundary = TermConfig(1.0, begin=0.5, full=0.9)
    losses = {step: objective(logits(), batch(), config, at(step), True) for step in (0, 49, 70, 95)}
    assert set(losses[0].terms) == set(losses[49].terms) == {"bce_loss"}
    for step, weight in ((70, 0.5), (95, 1.0)):
        terms = losses[step].terms
        torch.testing.assert_close(losses[step].loss, terms["bce_loss"] + weight * terms["boundary_loss"])


def test_topology_is_looked_at_every_so_many_steps_and_never_in_validation() -> None:
    config = only(bce=1.0, topology=1.0)
    looked = [s for s in range(30) if "topology_loss" in objective(logits(), batch(), config, at(s), True).terms]
    assert looked == [9, 19, 29]
    assert "topology_loss" not in objective(logits(), batch(), config, at(9), False).terms
    answers = logits()
    made = objective(answers, batch(), config, at(9), True)
    made.terms["topology_loss"].backward()
    assert gradients(answers)[0] > 0


def test_what_is_not_known_has_no_gradient() -> None:
    answers, own = logits(levels=1), batch()
    config = only(**dict.fromkeys(NAMES, 1.0))
    made = objective(answers, own, config, at(9), True)
    assert set(made.terms) == {f"{name}_loss" for name in NAMES}
    made.loss.backward()
    assert (answers[0].grad[~own["known"]] == 0).all()
    assert (answers[0].grad[own["known"]] != 0).any()


def test_gradients_are_measured_at_the_answers_of_all_levels() -> None:
    answers = logits()
    made = objective(answers, batch(), only(bce=2.0, dice=1.0), at(3), True)
    assert made.outputs is answers
    assert made.prediction is answers[0]


def test_a_batch_may_be_cut_into_micro_batches() -> None:
    config = only(**dict.fromkeys(NAMES, 1.0))
    whole, own = logits(count=4), batch(count=4)
    objective(whole, own, config, at(9), True).loss.backward()
    parts = logits(count=4)
    for part in (slice(0, 1), slice(1, 3), slice(3, 4)):
        some: dict[str, Any] = {name: tensor[part] for name, tensor in own.items()}
        share = len(some["known"]) / 4
        (share * objective([p[part] for p in parts], some, config, at(9), True).loss).backward()
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(one.grad, other.grad)
