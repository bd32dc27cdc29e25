"""The part of metrics that no framework matters for: names, and which value is better."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runner_core.base.errors import BadInput
from runner_core.engines.validation import read_metrics as read
from runner_core.training.loop import Monitor


class Fixed:
    def __init__(self, **values):
        self.values = values

    def compute(self):
        return self.values


def test_values_of_all_metrics_together():
    assert read([Fixed(dice=0.5, iou=1), Fixed(f1=2)], {"loss": 3.0}) == {
        "loss": 3.0,
        "dice": 0.5,
        "iou": 1.0,
        "f1": 2.0,
    }


@pytest.mark.parametrize("metrics", [[Fixed(loss=1)], [Fixed(a=1), Fixed(a=2)]])
def test_names_are_not_shared(metrics):
    with pytest.raises(BadInput, match="two metrics are called"):
        read(metrics, {"loss": 3.0})


def test_unknown_monitor():
    with pytest.raises(BadInput, match=r"monitored metric 'dcie' .* did you mean 'dice'"):
        Monitor("dcie", "max").value({"loss": 1.0, "dice": 0.5})


@given(st.lists(st.floats(allow_nan=True), min_size=1), st.sampled_from(["max", "min"]))
def test_best_of_a_sequence(values, mode):
    """The first of the best numbers; NaN only when there is nothing else."""
    monitor, best = Monitor("x", mode), None
    for value in values:
        if monitor.better(value, best):
            best = value
    numbers = [v for v in values if not math.isnan(v)]
    assert best == (max if mode == "max" else min)(numbers) if numbers else math.isnan(best)
