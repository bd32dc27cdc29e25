"""The rules say what they should, and are silent in healthy runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from runner_core.protocols import Finding, HealthEvent
from runner_vesuvius.health import WildShare


def observed(rule: Any, ratios: Sequence[float], first: int = 200) -> list[Finding | None]:
    return [
        rule.observe(HealthEvent("validation", first + 50 * i, i, {"surface_ratio": ratio}))
        for i, ratio in enumerate(ratios)
    ]


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
