"""The rules say what they should, and are silent in healthy runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from runner_core import Finding, HealthEvent
from runner_vesuvius import runner_health
from runner_vesuvius.config import TermConfig, demo
from runner_vesuvius.health import NeverComputed, SurfaceRatio, WildShare


def observed(rule: Any, ratios: Sequence[float], first: int = 200) -> list[Finding | None]:
    return [
        rule.observe(HealthEvent("validation", first + 50 * i, i, {"surface_ratio": ratio}))
        for i, ratio in enumerate(ratios)
    ]


def test_a_run_has_its_rules_each_time_anew() -> None:
    rules = runner_health(demo())
    assert [rule.name for rule in rules] == ["loss never computed", "share of surface"]
    assert not any(one is other for one, other in zip(rules, runner_health(demo()), strict=True))


def test_the_ratio_is_of_annotated_voxels_of_all_batches() -> None:
    import torch

    metric = SurfaceRatio(0.0)
    generator = torch.Generator().manual_seed(0)
    found = true = 0
    for count in (1, 3):
        logits = torch.randn(count, 1, 4, 5, 6, generator=generator)
        known = torch.rand(logits.shape, generator=generator) < 0.7
        surface = ((torch.rand(logits.shape, generator=generator) < 0.3) & known).float()
        metric.update(logits, {"known": known, "surface": surface})
        found, true = found + int(((logits > 0) & known).sum()), true + int(surface.sum())
    assert metric.compute() == {"surface_ratio": found / true}
    metric.reset()
    assert np.isnan(metric.compute()["surface_ratio"])


@pytest.mark.parametrize("ratio", [0.3, 1.0, 3.5, float("nan")])
def test_a_share_like_the_labels_is_no_finding(ratio) -> None:
    assert observed(WildShare(), [ratio] * 5) == [None] * 5


@pytest.mark.parametrize(("ratio", "said"), [(9.0, "9 times as much"), (0.02, "2.0% of the surface"), (0.0, "0.0%")])
def test_a_wild_share_is_said_once_after_three_validations(ratio, said) -> None:
    found = observed(WildShare(), [ratio] * 5)
    assert [f is None for f in found] == [True, True, False, True, True]
    assert found[2].level == "warning"
    assert said in found[2].message
    assert "3 validations" in found[2].message


def test_a_network_that_is_still_young_is_left_alone() -> None:
    assert observed(WildShare(), [20.0] * 4, first=1)[:2] == [None, None]
    assert all(f is None for f in observed(WildShare(), [20.0, 20.0, 1.0, 20.0, 20.0], first=1))


def test_it_is_said_again_when_it_comes_back() -> None:
    found = observed(WildShare(), [9.0] * 3 + [1.0] + [9.0] * 3)
    assert [i for i, f in enumerate(found) if f is not None] == [2, 6]


def test_other_events_and_validations_without_the_metric_are_left_alone() -> None:
    rule = WildShare()
    for moment in ("first_step", "log", "end"):
        assert rule.observe(HealthEvent(moment, 500, 1, {"surface_ratio": 99.0})) is None
    assert rule.observe(HealthEvent("validation", 500, 1, {})) is None


# ------------------------------------------------------------ losses that no step computed


def at_the_end(steps: int, epochs: int, planned: int, every: int = 50, **terms: TermConfig) -> str:
    """Return the findings after so many steps in so many of the planned epochs; the losses are demo's and `terms`."""
    config = demo()
    config.train.epochs, config.loss.topology_every = planned, every
    for name, term in terms.items():
        setattr(config.loss, name, term)
    finding = NeverComputed(config).observe(HealthEvent("end", steps, epochs, {}))
    assert finding is None or finding.level == "warning"
    return "" if finding is None else finding.message


def test_losses_that_steps_computed_are_no_finding() -> None:
    assert at_the_end(448, 16, 16) == ""
    assert at_the_end(50, 1, 1, topology=TermConfig(0.01)) == ""
    assert at_the_end(100, 10, 10, boundary=TermConfig(1.0, begin=0.99)) == ""
    assert at_the_end(6, 1, 1, topology=TermConfig(0.0, begin=0.9)) == ""


def test_too_few_steps_for_topology_are_said() -> None:
    text = at_the_end(6, 2, 2, topology=TermConfig(0.01))
    assert "the loss topology has the weight 0.01" in text
    assert "loss.topology_every is 50, and there were 6 steps" in text
    assert "bce" not in text


def test_a_loss_that_begins_after_the_end_is_said() -> None:
    text = at_the_end(6, 2, 2, boundary=TermConfig(1.0, begin=0.9))
    assert "loss.boundary.begin is 0.9, and the last of 6 steps came after 0.833 of the training" in text
    text = at_the_end(120, 4, 4, topology=TermConfig(1.0, begin=0.9))
    assert "step 100, the last at which it is looked at, came after 0.825" in text
    assert "loss.topology_every" in text


def test_a_training_that_patience_ended_early_is_measured_by_its_plan() -> None:
    assert "the last of 40 steps came after 0.39" in at_the_end(40, 4, 10, boundary=TermConfig(1.0, begin=0.5))
    assert at_the_end(40, 4, 10, boundary=TermConfig(1.0, begin=0.3)) == ""


def test_two_that_were_missed_are_one_finding_at_the_end_alone() -> None:
    late = {"boundary": TermConfig(1.0, begin=1.0), "cldice": TermConfig(1.0, begin=1.0)}
    text = at_the_end(40, 4, 4, **late)
    assert "loss boundary" in text
    assert "loss cldice" in text
    config = demo()
    config.loss.boundary = late["boundary"]
    assert NeverComputed(config).observe(HealthEvent("validation", 40, 4, {})) is None
