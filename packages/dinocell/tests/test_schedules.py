"""The courses of what changes in training, and that they are functions of where training stands."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runner_core import Progress
from runner_dinocell import schedules
from runner_dinocell.config import CellConfig, default, demo


def over(course, config: CellConfig, steps: int) -> list[float]:
    return [course(config, Progress(step, steps, 0)) for step in range(steps + 1)]


def test_the_learning_rate_warms_up_and_ends_at_its_final_value() -> None:
    config = default()
    factors = over(schedules.learning_rate, config, 1000)
    np.testing.assert_allclose(factors[:100], np.arange(1, 101) / 100)
    assert factors[100] == 1.0
    assert all(b < a for a, b in pairwise(factors[100:]))
    assert factors[1000] * config.train.learning_rate == pytest.approx(config.optim.final_learning_rate)
    middle = (config.train.learning_rate + config.optim.final_learning_rate) / 2
    assert factors[550] * config.train.learning_rate == pytest.approx(middle)


def test_train_schedule_is_the_course_of_the_learning_rate() -> None:
    config = default()
    config.train.schedule = "constant"
    assert set(over(schedules.learning_rate, config, 1000)[100:]) == {1.0}
    config.train.schedule = "linear"
    factors = over(schedules.learning_rate, config, 1000)
    np.testing.assert_allclose(np.diff(factors[100:]), np.diff(factors[100:])[0], rtol=1e-9)
    assert factors[1000] * config.train.learning_rate == pytest.approx(config.optim.final_learning_rate)
    config.train.learning_rate = 0.0  # a health rule has the say then
    assert all(np.isfinite(over(schedules.learning_rate, config, 1000)))


def test_weight_decay_and_momentum_rise_along_cosines() -> None:
    config = default()
    for course, begin, end in ((schedules.weight_decay, 0.04, 0.4), (schedules.momentum, 0.992, 1.0)):
        values = over(course, config, 100)
        expected = [end + (begin - end) * (1 + math.cos(math.pi * i / 100)) / 2 for i in range(101)]
        np.testing.assert_allclose(values, expected)
        assert (values[0], values[-1]) == pytest.approx((begin, end), rel=1e-12)


def test_the_teachers_temperature_rises_to_its_own_and_stays() -> None:
    config = default()
    values = over(schedules.teacher_temperature, config, 100)
    np.testing.assert_allclose(values[:31], np.linspace(0.04, 0.07, 31))
    np.testing.assert_allclose(values[30:], 0.07)
    config.loss.teacher_warmup = 0.0
    assert set(over(schedules.teacher_temperature, config, 10)) == {0.07}


def test_prototypes_are_frozen_at_first_only() -> None:
    assert [schedules.prototypes_frozen(default(), Progress(step, 200, 0)) for step in range(4)] == [1, 1, 0, 0]
    config = demo()
    config.optim.freeze_prototypes = 0.0
    assert not schedules.prototypes_frozen(config, Progress(0, 200, 0))


@given(step=st.integers(0, 10**6), steps=st.integers(1, 10**6), warmup=st.floats(0, 1))
def test_every_course_stays_within_its_ends(step, steps, warmup) -> None:
    config = default()
    config.train.warmup = config.loss.teacher_warmup = warmup
    progress = Progress(min(step, steps), steps, 0)
    assert 0 < schedules.learning_rate(config, progress) <= 1
    assert 0.04 - 1e-12 <= schedules.weight_decay(config, progress) <= 0.4 + 1e-12
    assert 0.992 - 1e-12 <= schedules.momentum(config, progress) <= 1
    assert 0.04 - 1e-12 <= schedules.teacher_temperature(config, progress) <= 0.07 + 1e-12


def test_dinov2s_own_warm_ups_begin_at_0_and_end_a_step_earlier() -> None:
    config = default()
    config.train.recipe = "dinov2-exact"
    rates, temperatures = (over(c, config, 100) for c in (schedules.learning_rate, schedules.teacher_temperature))
    np.testing.assert_allclose(rates[:10], np.linspace(0, 1, 10))
    np.testing.assert_allclose(temperatures[:30], np.linspace(0.04, 0.07, 30))
    assert rates[10] == 1.0
    assert set(temperatures[30:]) == {0.07}
    config.train.warmup = config.loss.teacher_warmup = 0.01
    assert over(schedules.learning_rate, config, 100)[:2] == [0.0, 1.0]
